"""Judges schemes and estimators by time over the lossless bound, on ten seeded networks of 4 to 12 nodes and one that changes."""

import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.networks import random_network, write_network
from experiments.runs import Comparison, finish_all, run_script
from nalb.launch.network import configured_capacities
from nalb.planning.distribution import Situation
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.nodes import Node
from nalb.planning.slices import Tensor, build_layout
from nalb.reporting.record import Record
from nalb.reporting.run_file import steady
from nalb.schemes import decide
from nalb.workloads import load
from netem.network_file import load_network

# Each is a number of nodes, and the lowest and highest rate in Mbit/s. A machine with two cores moves about 1.6 Gbit/s between
# MXNet processes, over all nodes together, so twelve fast nodes would measure its cores.
STATIC = (
    (4, 20, 220), (6, 20, 220), (8, 20, 220), (10, 20, 220), (12, 20, 220),
    (4, 90, 220), (7, 90, 220), (10, 90, 220), (4, 150, 220), (6, 150, 220),
)  # fmt: skip
SCHEMES = ("average", "aware", "exact")
ESTIMATORS = ("capacity", "paper")
MODEL = "mobilenet"


def main(out: Path, quick: bool) -> None:
    """Make the runs that are missing; print a row per network, the medians and the highest values."""
    shapes, iterations, changing = (STATIC[:1], 3, 8) if quick else (STATIC, 6, 24)
    networks = [_network(out, seed, *shape) for seed, shape in enumerate(shapes, 1)]
    text = random_network("changing", shapes[-1][0], len(shapes) + 1, every_s=20)
    networks.append(write_network(out / "networks", "changing", text))
    lengths = [iterations] * len(shapes) + [changing]
    wanted = [
        Comparison(f"{net.stem}-{estimator}", net, MODEL, SCHEMES, length, options=("--estimator", estimator))
        for net, length in zip(networks, lengths, strict=True)
        for estimator in ESTIMATORS
    ]
    records = list(finish_all("judge", out, wanted))
    pairs = list(zip(records[::2], records[1::2], strict=True))  # capacity, paper
    table = Table(title=f"{MODEL}: iteration over the lossless bound, medians; rounding: greedy over continuous shares")
    for heading in (
        "network",
        "bound s",
        "average",
        *(f"{s}, {e}" for s in SCHEMES[1:] for e in ESTIMATORS),
        "rounding",
    ):
        table.add_column(heading, justify="left" if heading == "network" else "right")
    rows = []
    for net, both in zip(networks, pairs, strict=True):
        ratios = [_ratio(both[0], "average")] + [_ratio(record, s) for s in SCHEMES[1:] for record in both]
        is_static = load_network(net).is_static
        rounding = _rounding(net) if is_static else float("nan")
        table.add_row(net.stem, f"{both[0].run.known_bound_s:.2f}", *(f"{r:.3f}" for r in [*ratios, rounding]))
        if is_static:
            rows.append([*ratios, rounding])
    for word, middle in (("median, static", statistics.median), ("most, static", max)):
        table.add_row(word, "", *(f"{middle(column):.3f}" for column in zip(*rows, strict=True)), style="bold")
    Console(width=140).print(table)


def network_name(seed: int, nodes: int, low_mbps: float) -> str:
    """What the network of a row is called."""
    return f"n{nodes}-{low_mbps:g}-s{seed}"


def _network(out: Path, seed: int, nodes: int, low_mbps: float, high_mbps: float) -> Path:
    name = network_name(seed, nodes, low_mbps)
    return write_network(out / "networks", name, random_network(name, nodes, seed, low_mbps, high_mbps))


def _ratio(record: Record, scheme: str) -> float:
    """Median time over the bound, after the warm-up; where the network changes, the sum of times over the sum of bounds."""
    times_s, bounds_s = record.run.schemes[scheme].communication_s, record.bounds_s(scheme)
    if record.changes:
        return sum(times_s) / sum(bounds_s)
    return statistics.median(steady(times_s)) / record.run.known_bound_s


def _rounding(path: Path) -> float:
    """The cost of whole slices: the predicted time of Algorithm 2's shares over the bound, which no rounding can beat."""
    network = load_network(path)
    capacities, nodes = configured_capacities(network, 0.0), [Node(node.name) for node in network.nodes]
    layout = build_layout(
        [Tensor(t.name, t.elements, t.dtype) for t in load(MODEL)],
        num_nodes=len(nodes), num_servers=len(nodes), alpha_bytes=FIRST_ALPHA_BYTES,
    )  # fmt: skip
    plan, reason = decide("exact", Situation(0, nodes, layout, estimated=capacities, configured=capacities))
    assert plan is not None, reason
    assert plan.predicted_s is not None
    assert plan.bound_s is not None
    return plan.predicted_s / plan.bound_s


if __name__ == "__main__":
    sys.exit(run_script("judge", __doc__, main))
