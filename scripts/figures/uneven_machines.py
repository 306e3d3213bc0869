"""Measures by real training the gains of batch sizes and joint plans on uneven machines, and of federated rounds.

    python scripts/figures/uneven_machines.py [--out DIR] [--quick]

cpu: trains a small CNN on uneven4-cpu under every batching (Chen et al., Figs. 10 and 12; Yao et al.; Tyagi and Sharma). both:
trains MobileNet on uneven4-joint with the network alone balanced, with batch sizes alone and under scheme joint, and gives the
times of the overlapped model (nalb/batching/joint.py) at the measured speeds. federated: trains FedAvg on uneven5-cpu with five
clients of two classes each (Chen et al., 5.5). Each part has a directory in DIR; one that is finished is read and not run again.
"""

import sys
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.runs import another_run, clear, run_script
from experiments.trainings import compare_batchings, nalb
from nalb.batching.joint import overlapped_s, plan_after_slowest
from nalb.batching.sizes import Bounds
from nalb.batching.time_models import Polynomial
from nalb.events import BatchEvent, LayoutEvent
from nalb.launch.network import configured_capacities
from nalb.planning.nodes import Capacities, Node
from nalb.reporting.batching_file import batching_table
from nalb.reporting.run_file import read_events, write_whole
from netem.network_file import find_network, load_network

ROOT = Path(__file__).resolve().parents[2]
COMPARISONS = {  # directory -> network, batchings, iterations in full and with --quick, model, samples of an iteration
    "cpu": (
        "uneven4-cpu",
        "off,static,dynamic,lb-bsp,lb-bsp-gpu,lbb",
        (60, 20),
        ("cnn", 4096),
    ),
    "both": (
        "uneven4-joint",
        "off@aware,lb-bsp@average,joint",
        (40, 16),
        ("mobilenet", 512),
    ),
}
PAPERS = (
    "papers: lb-bsp 0.42 to 0.48 x BSP's iteration (Chen et al., Table 3), 30 % under the others where the slowest is 1/3 of the "
    "fastest (Fig. 12); federated rounds 27 % shorter; lbb's epochs 65 % shorter than SSGD's (Yao et al.)"
)


PAYLOAD = 1 / 1.064  # the part of a link's rate beside headers and acknowledgements, counted on wan6-static


def ceilings(out: Path, network_file: str, batchings: list[str]) -> dict[str, float]:
    """The seconds of an iteration by the overlapped model, at the speeds of these runs' later halves and the configured links.

    The first of `batchings` gets equal sizes and the best shares, the second the best sizes and equal shares, the third both. The
    times hold if every estimate is right and nothing else takes time.
    """
    network = load_network(find_network(network_file))
    nodes = [Node(node.name) for node in network.nodes]
    rates = configured_capacities(network, 0.0)
    links = Capacities(rates.up * PAYLOAD, rates.down * PAYLOAD, rates.pairs)
    speeds: dict[str, list[float]] = {node.name: [] for node in nodes}
    for name in batchings:
        events = read_events(out / name)
        batches = [event for event in events if isinstance(event, BatchEvent)]
        model_bytes = next(event.model_bytes for event in events if isinstance(event, LayoutEvent))
        for event in batches[len(batches) // 2 :]:
            for node, size, seconds in zip(event.workers, event.sizes, event.compute_s, strict=True):
                speeds[node].append(size / seconds)
    total = sum(batches[0].sizes)
    speed = np.array([np.median(speeds[node.name]) for node in nodes])
    bounds = Bounds.of(total, len(nodes))
    best = plan_after_slowest(nodes, [Polynomial((0.0, 1 / v)) for v in speed], bounds, model_bytes, links)
    equal_sizes, equal_shares = np.full(len(nodes), total / len(nodes)), np.full(len(nodes), model_bytes / len(nodes))
    plans = [(equal_sizes, best.shares_bytes), (best.sizes, equal_shares), (best.sizes, best.shares_bytes)]
    found = [overlapped_s(nodes, np.array(b) / speed, shares, model_bytes, links) for b, shares in plans]
    return dict(zip(batchings, found, strict=True))


class Averaged(msgspec.Struct):
    """The fields shown here of the line that examples/train_federated.py prints at its end."""

    rounds: int
    round_s: float
    accuracy: float


def federated(out: Path, batching: str, rounds: int) -> Averaged:
    """Run one FedAvg training unless it is finished; return what rank 0 printed. Raises InputError where there is another one."""
    log = out / batching / "printed.txt"
    if not log.exists():
        clear(out / batching)
        script = ["--", sys.executable, str(ROOT / "examples/train_federated.py"), "--rounds", str(rounds)]
        job = ["launch", "--network", "uneven5-cpu", "--scheme", "average", "--batching", batching]
        printed = nalb([*job, "--out", str(out / batching), *script])
        write_whole(log, "".join(printed).encode())
    line = next(line for line in log.read_text(encoding="utf-8").splitlines() if '"round_s"' in line)
    row = msgspec.json.decode(line[line.index("{") :], type=Averaged)
    if row.rounds != rounds:
        raise another_run(out / batching, f"{row.rounds} rounds")
    return row


def main(out: Path, quick: bool) -> None:
    """Run the trainings that are missing and print the tables."""
    console = Console(width=max(130, Console().width))
    tables = []
    for name, (network, batchings, iterations, training) in COMPARISONS.items():
        tables.append(batching_table(compare_batchings(out / name, network, batchings, iterations[quick], *training)))
    table = Table(title="FedAvg, 5 clients x 2 classes on uneven5-cpu, 20 local steps; accuracy: federated_accuracy.py")
    for heading in ("batching", "round s", "over off", "accuracy (last 5 models)"):
        table.add_column(heading, justify="left" if heading == "batching" else "right")
    rows = {name: federated(out / "federated", name, 15 if quick else 60) for name in ("off", "lb-bsp-federated")}
    for name, row in rows.items():
        table.add_row(name, f"{row.round_s:.2f}", f"{row.round_s / rows['off'].round_s:.2f}", f"{row.accuracy:.3f}")
    for one in (*tables, table):
        console.print(one)
    network, batchings, _, _ = COMPARISONS["both"]
    expected = ceilings(out / "both", network, batchings.split(","))
    console.print("both, by the overlapped model:", ", ".join(f"{name} {s:.2f} s" for name, s in expected.items()))
    console.print(PAPERS)


if __name__ == "__main__":
    sys.exit(run_script("uneven-machines", __doc__, main))
