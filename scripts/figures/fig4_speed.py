"""Repeats Figure 4 of Cai et al.: training speed of five schemes on three models, beside the ceilings that each network sets."""

import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.networks import random_network, write_network
from experiments.runs import Comparison, finish_all, run_script
from experiments.speed import ceilings_of, speed
from nalb.launch.network import configured_capacities
from nalb.reporting.record import Record
from netem.network_file import load_network

SCHEMES = ("stock", "average", "elastic", "aware", "exact")
ITERATIONS = {"mobilenet": 6, "resnet50": 4, "alexnet": 3}  # iterations of a scheme on a network; two do not count
SEEDS = range(1, 11)
PAPER = {"mobilenet": (1.14, 2.68), "resnet50": (1.56, 1.76), "alexnet": (1.23, 1.32)}  # elastic, aware over average


def main(out: Path, quick: bool) -> None:
    """Make the runs that are missing; after each network, print its model's table of all networks so far."""
    models = {"mobilenet": 3} if quick else ITERATIONS
    nodes, seeds = (4, range(1, 2)) if quick else (12, SEEDS)
    networks = [
        write_network(out / "networks", f"fig4-n{nodes}-s{seed}", random_network(f"fig4-n{nodes}-s{seed}", nodes, seed))
        for seed in seeds
    ]
    wanted = [
        Comparison(f"{model}-{net.stem}", net, model, SCHEMES, models[model]) for model in models for net in networks
    ]
    done: dict[str, list[tuple[Record, Path]]] = {model: [] for model in models}
    for run, record in zip(wanted, finish_all("fig4", out, wanted), strict=True):
        done[run.replay].append((record, run.network))
        Console(width=120).print(_table(run.replay, done[run.replay]))


def _table(model: str, mine: list[tuple[Record, Path]]) -> Table:
    """The table of a model, with medians over its networks."""
    nodes = len(mine[0][0].nodes)
    table = Table(
        title=f"{model}, {nodes} nodes, {len(mine)} networks: samples a minute (Eq. 16), medians over networks"
    )
    for heading in ("scheme", "speed", "over average", "min - max", "paper", "over stock", "min - max"):
        table.add_column(heading, justify="left" if heading == "scheme" else "right")
    for scheme in SCHEMES:
        over = {base: [speed(r, scheme) / speed(r, base) for r, _ in mine] for base in ("average", "stock")}
        paper = dict(zip(("elastic", "aware"), PAPER[model], strict=True)).get(scheme)
        middle = statistics.median(speed(record, scheme) for record, _ in mine)
        table.add_row(
            scheme, f"{middle:.0f}", *_spread(over["average"]), f"{paper:.2f}" if paper else "-", *_spread(over["stock"])
        )  # fmt: skip
    limits = [ceilings_of(record, configured_capacities(load_network(net), 0.0)) for record, net in mine]
    ceiling = {"average": [one.over_average for one in limits], "stock": [one.over_stock for one in limits]}
    table.add_row("ceiling", "-", *_spread(ceiling["average"]), "-", *_spread(ceiling["stock"]), style="bold")
    for scheme in ("aware", "exact"):
        reached = {
            base: [speed(r, scheme) / speed(r, base) / top for (r, _), top in zip(mine, ceiling[base], strict=True)]
            for base in ceiling
        }
        table.add_row(f"{scheme} / ceiling", "-", *_spread(reached["average"]), "-", *_spread(reached["stock"]))
    return table


def _spread(values: list[float]) -> tuple[str, str]:
    return f"{statistics.median(values):.2f}", f"{min(values):.2f} - {max(values):.2f}"


if __name__ == "__main__":
    sys.exit(run_script("fig4", __doc__, main))
