"""How long planning takes, and how a synchronisation scales: python benchmarks/planning.py [--only planning|scale]

Planning: shares, whole slices on servers, and slots (nalb.schemes.decide) for jobs of up to 10,000 nodes and a
million slices; the slices exist beforehand, since they are cut once per job. Goals: 1 ms for 100 nodes and 1,000
slices; 1 s and 1 GB for 10,000 and 1,000,000. The slope of log time over log (nodes x slices)^(1/2) tells the growth.

Scale: simulated synchronisations of ResNet-50's gradients (94.2 MB), by flows, rates drawn from 20 to 220 Mbit/s; and what
the coordinator then has to take in and send in an iteration.
"""

import argparse
import resource
import statistics
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from nalb.planning.distribution import Situation
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.shares import bound_s
from nalb.planning.slices import Layout, Tensor, build_layout
from nalb.protocol import messages as m
from nalb.schemes import decide
from nalb.simulation.families import HIGH_MBPS, LOW_MBPS, uniform_network
from nalb.simulation.job import SCHEMES, by_flows
from nalb.units import GOODPUT_PART
from nalb.workloads import load

SIZES = ((100, 1_000), (300, 10_000), (1_000, 30_000), (3_000, 200_000), (10_000, 1_000_000))
GOALS_S = {(100, 1_000): 1e-3, (10_000, 1_000_000): 1.0}
GOAL_MEMORY_MB = 1000
SLICE_BYTES = 60_000
HEARTBEAT_S = 0.25


def layout_of(nodes: int, slices: int) -> Layout:
    """One tensor, cut into nearly `slices` slices in all: 2 probes per node, the ends' small slices in long rows, others."""
    common = slices - 2 * nodes - 1 if slices <= 10 * nodes else slices - 8 * nodes
    return build_layout(
        [Tensor("model", common * SLICE_BYTES // 4, "float32")], num_nodes=nodes, num_servers=nodes, alpha_bytes=1.0,
        fixed_slice_bytes=SLICE_BYTES,
    )  # fmt: skip


def planning(console: Console) -> bool:
    """Time plans; whether every goal is met."""
    table = Table("nodes", "slices", "scheme", "plan ms", "goal ms", title="planning, median time")
    points: dict[str, list[tuple[float, float]]] = {"exact": [], "aware": []}
    met = True
    for nodes, slices in SIZES:
        peers, capacities = uniform_network(nodes, LOW_MBPS, HIGH_MBPS, 1)
        layout = layout_of(nodes, slices)
        for scheme, found in points.items():
            times: list[float] = []
            while (sum(times) < 0.5 and len(times) < 100) or len(times) < 3:
                start_s = time.perf_counter()
                decide(scheme, Situation(0, peers, layout, estimated=capacities))
                times.append(time.perf_counter() - start_s)
            median_s, goal_s = statistics.median(times), GOALS_S.get((nodes, slices))
            met = met and (goal_s is None or median_s <= goal_s)
            found.append((0.5 * np.log(nodes * len(layout.slices)), np.log(median_s)))
            goal = "-" if goal_s is None else f"{goal_s * 1e3:g}"
            table.add_row(str(nodes), str(len(layout.slices)), scheme, f"{median_s * 1e3:.2f}", goal)
    console.print(table)
    for scheme, found in points.items():
        x, y = np.array(found).T
        slope = np.polyfit(x, y, 1)[0]
        print(f"{scheme}: time grows as (nodes x slices)^(1/2) to the power {slope:.2f}")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"peak memory, slices included: {peak_mb:.0f} MB (goal {GOAL_MEMORY_MB} MB)")
    return met and peak_mb <= GOAL_MEMORY_MB


def scale(console: Console) -> None:
    """Simulated times and the coordinator's load."""
    tensors = [Tensor(t.name, t.elements, t.dtype) for t in load("resnet50")]
    model_bytes = sum(tensor.size_bytes for tensor in tensors)
    times = Table("nodes", "bound s", *SCHEMES, "shares ms (aware)", title="time over the lossless bound, with headers")
    load_table = Table(
        "nodes", "slices", "messages in", "MB in", "messages out", "MB out", title="coordinator, per iteration"
    )
    for nodes in (100, 1_000, 10_000):
        peers, capacities = uniform_network(nodes, LOW_MBPS, HIGH_MBPS, 1)
        bound = bound_s(peers, model_bytes, capacities)
        found = [by_flows(scheme, peers, tensors, capacities, 5, GOODPUT_PART) for scheme in SCHEMES]
        start_s = time.perf_counter()
        SCHEMES["aware"].shares(Situation(0, peers, Layout(tuple(tensors), ()), capacities))
        took_ms = 1e3 * (time.perf_counter() - start_s)
        times.add_row(str(nodes), f"{bound:.1f}", *(f"{one[-1] / bound:.2f}" for one in found), f"{took_ms:.1f}")
        layout = build_layout(tensors, num_nodes=nodes, num_servers=nodes, alpha_bytes=FIRST_ALPHA_BYTES)
        slices = len(layout.slices)
        plan = m.Plan(1, 1, 0, "exact", True, 2_000_000, [nodes - 1] * slices, [slices // nodes] * slices)
        row = m.SampleRow(2 * nodes, SLICE_BYTES, 10**15, 10**15 + 10**7)
        report, some = (len(m.encode(m.Report(1e5, 1, [row] * k, 0))) for k in (0, 100))
        samples = 2 * slices * (nodes - 1)  # every push and every answer is timed once
        reports = 2 * nodes * max(1, round(found[-1][-1] / HEARTBEAT_S)) + nodes
        done = len(m.encode(m.Done(1, 1.0, 1.0, 0.0, 1e5, 1e5)))
        received = reports * report + samples * (some - report) / 100 + nodes * done
        sent = nodes * len(m.encode(plan)) + 2 * nodes * found[-1][-1] / HEARTBEAT_S * len(m.encode(m.Alive()))
        load_table.add_row(
            str(nodes), str(slices), str(reports + nodes), f"{received / 1e6:.1f}",
            str(nodes + round(2 * nodes * found[-1][-1] / HEARTBEAT_S)), f"{sent / 1e6:.1f}",
        )  # fmt: skip
    console.print(times)
    console.print(load_table)


def main() -> int:
    """Print both; 1 where a goal of planning is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("planning", "scale"))
    args = parser.parse_args()
    console = Console()
    met = True
    if args.only != "scale":
        met = planning(console)
        print("goals of planning: " + ("reached" if met else "missed"))
    if args.only != "planning":
        scale(console)
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
