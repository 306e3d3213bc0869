"""Times planning, and shows how a synchronisation scales: python benchmarks/planning.py [--only planning|sites|scale]

Planning: decides shares, whole slices on servers, and slots (nalb.schemes.decide) for jobs of up to 10,000 nodes and a
million slices. The slices exist beforehand, since they are cut once per job. The goals are 1 ms for 100 nodes and 1,000
slices, and 1 s and 1 GB for 10,000 and 1,000,000. The slope of log time over log (nodes x slices)^(1/2) shows the growth.

Sites: plans owners and leaders for jobs that sum within sites first. The goal is 1 s for 10 sites of 100 machines.

Scale: simulates synchronisations of ResNet-50's gradients (94.2 MB) by flows, at rates drawn from 20 to 220 Mbit/s, and
computes the messages and bytes that the coordinator then receives and sends in an iteration.
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
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import bound_s
from nalb.planning.sites import Sites, Uplinks
from nalb.planning.slices import Layout, Tensor, build_layout
from nalb.protocol import wire
from nalb.schemes import decide
from nalb.services.exchange import messages as m
from nalb.simulation.families import HIGH_MBPS, LOW_MBPS, uniform_network
from nalb.simulation.job import SCHEMES, by_flows
from nalb.units import GOODPUT_PART, mbps_to_bytes_per_s
from nalb.workloads import load

SIZES = ((100, 1_000), (300, 10_000), (1_000, 30_000), (3_000, 200_000), (10_000, 1_000_000))
GOALS_S = {(100, 1_000): 1e-3, (10_000, 1_000_000): 1.0}
GOAL_MEMORY_MB = 1000
SITES = ((2, 3, 1_000), (3, 4, 1_000), (10, 10, 3_000), (10, 100, 10_000))  # sites, machines of each, slices
SITE_GOALS_S = {(10, 100): 1.0}
LAN_LOW_MBPS, LAN_HIGH_MBPS = 200.0, 1000.0
SLICE_BYTES = 60_000
HEARTBEAT_S = 0.25


def layout_of(nodes: int, slices: int) -> Layout:
    """A layout of one tensor in nearly `slices` slices, in which 2 probes per node and a long row's small end slices count too."""
    common = slices - 2 * nodes - 1 if slices <= 10 * nodes else slices - 8 * nodes
    return build_layout(
        [Tensor("model", common * SLICE_BYTES // 4, "float32")], num_nodes=nodes, num_servers=nodes, alpha_bytes=1.0,
        fixed_slice_bytes=SLICE_BYTES,
    )  # fmt: skip


def planning(console: Console) -> bool:
    """Time plans and print a table; return whether every goal is met."""
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


def sites(console: Console) -> bool:
    """Time plans by sites and print a table; return whether every goal is met."""
    table = Table(
        "sites", "machines of each", "slices", "plan ms", "goal ms", title="planning by sites, median of five"
    )
    met, draw = True, np.random.default_rng(1)
    for count, size, slices in SITES:
        told = Sites(tuple(f"s{k // size}" for k in range(count * size)))
        up, down = (mbps_to_bytes_per_s(1.0) * draw.uniform(LOW_MBPS, HIGH_MBPS, count) for _ in range(2))
        rates = mbps_to_bytes_per_s(1.0) * draw.uniform(LAN_LOW_MBPS, LAN_HIGH_MBPS, (2, count * size))
        capacities = Capacities(rates[0], rates[1], {}, None, Uplinks(told, up, down))
        nodes = [Node(f"n{k}") for k in range(count * size)]
        situation = Situation(0, nodes, layout_of(count * size, slices), capacities, sites=told)
        times: list[float] = []
        for _ in range(5):
            start_s = time.perf_counter()
            decide("exact", situation)
            times.append(time.perf_counter() - start_s)
        median_s, goal_s = statistics.median(times), SITE_GOALS_S.get((count, size))
        met = met and (goal_s is None or median_s <= goal_s)
        goal = "-" if goal_s is None else f"{goal_s * 1e3:g}"
        table.add_row(str(count), str(size), str(len(situation.layout.slices)), f"{median_s * 1e3:.2f}", goal)
    console.print(table)
    return met


def scale(console: Console) -> None:
    """Print simulated times and the coordinator's load for growing numbers of nodes."""
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
        windows = [2_000_000] * nodes
        plan = m.Plan(1, 1, 0, "exact", True, windows, [nodes - 1] * slices, [slices // nodes] * slices)
        row = wire.SampleRow(2 * nodes, SLICE_BYTES, 10**15, 10**15 + 10**7)
        report, some = (len(wire.encode(wire.Report(1e5, 1, [row] * k, 0))) for k in (0, 100))
        samples = 2 * slices * (nodes - 1)  # every push and every answer gives one sample
        reports = 2 * nodes * max(1, round(found[-1][-1] / HEARTBEAT_S)) + nodes
        done = len(wire.encode(m.Done(1, 1.0, 1.0, 0.0, 1e5, 1e5)))
        received = reports * report + samples * (some - report) / 100 + nodes * done
        sent = nodes * len(wire.encode(plan)) + 2 * nodes * found[-1][-1] / HEARTBEAT_S * len(wire.encode(wire.Alive()))
        load_table.add_row(
            str(nodes), str(slices), str(reports + nodes), f"{received / 1e6:.1f}",
            str(nodes + round(2 * nodes * found[-1][-1] / HEARTBEAT_S)), f"{sent / 1e6:.1f}",
        )  # fmt: skip
    console.print(times)
    console.print(load_table)


def main() -> int:
    """Run the chosen parts; returns 1 if a goal of planning is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("planning", "sites", "scale"))
    args = parser.parse_args()
    console = Console()
    met = True
    for part, timed in (("planning", planning), ("sites", sites)):
        if args.only in (None, part):
            reached = timed(console)
            print(f"goals of {part}: " + ("reached" if reached else "missed"))
            met = met and reached
    if args.only in (None, "scale"):
        scale(console)
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
