"""Repeats Figure 4 of Cai et al.: training speed of six schemes on three models, beside the ceilings that each network sets.

`cai` is scheme `aware` with the paper's own estimator, `aware` the same scheme with nalb's. A run of a large model has one
or two schemes, so that no run takes more than ten minutes, but for AlexNet under stock MXNet.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from experiments.networks import random_network, write_network
from experiments.runs import Comparison, finish_all, run_script
from experiments.speed import Ceilings, ceilings_of, speed
from nalb.launch.network import configured_capacities
from nalb.reporting.record import Record
from netem.network_file import load_network

CAI = "cai"  # scheme `aware` with the paper's own estimator
SCHEMES = ("stock", "average", "elastic", CAI, "aware", "exact")
TOGETHER = {  # the schemes of a run, by model
    "mobilenet": ((CAI,), ("stock", "average", "elastic", "aware", "exact")),
    "resnet50": ((CAI,), ("aware", "exact"), ("average",), ("stock",), ("elastic",)),
    "alexnet": ((CAI,), ("aware", "exact"), ("average",), ("stock",), ("elastic",)),
}
ITERATIONS = {"mobilenet": 6, "resnet50": 4, "alexnet": 3}  # iterations of a scheme on a network; two do not count
# With three, the one of `exact` that counts would be its only one without a window, which takes a tenth longer.
MORE_ITERATIONS: dict[tuple[str, tuple[str, ...]], int] = {("alexnet", ("aware", "exact")): 5}
SEEDS = range(1, 11)
PAPER = {"mobilenet": (1.14, 2.68), "resnet50": (1.56, 1.76), "alexnet": (1.23, 1.32)}  # elastic, aware over average


def main(out: Path, quick: bool) -> None:
    """Make the runs that are missing; print the table of each model."""
    models = {"mobilenet": 3} if quick else ITERATIONS
    nodes, seeds = (4, range(1, 2)) if quick else (12, SEEDS)
    networks = [
        write_network(out / "networks", f"fig4-n{nodes}-s{seed}", random_network(f"fig4-n{nodes}-s{seed}", nodes, seed))
        for seed in seeds
    ]
    for model in models:
        groups = TOGETHER[model]
        wanted = [
            _comparison(model, net, group, MORE_ITERATIONS.get((model, group), models[model]))
            for group in groups
            for net in networks
        ]
        records = list(finish_all("fig4", out, wanted))
        by_network = [
            Runs(dict(zip(groups, records[k :: len(networks)], strict=True)), net) for k, net in enumerate(networks)
        ]
        Console(width=120).print(_table(model, by_network))


def run_name(model: str, network: str, group: tuple[str, ...]) -> str:
    """The name of the folder of a run of some schemes."""
    return f"{model}-{network}-{'-'.join(group)}"


def _comparison(model: str, network: Path, group: tuple[str, ...], iterations: int) -> Comparison:
    """The run of some schemes on a network."""
    name = run_name(model, network.stem, group)
    if group == (CAI,):
        return Comparison(name, network, model, ("aware",), iterations, options=("--estimator", "paper"))
    return Comparison(name, network, model, group, iterations)


class Runs(NamedTuple):
    """All runs of a model on one network."""

    records: dict[tuple[str, ...], Record]  # by the schemes of the run
    network: Path

    def speed(self, scheme: str) -> float:
        """Samples a minute under a scheme."""
        record = next(record for group, record in self.records.items() if scheme in group)
        return speed(record, "aware" if scheme == CAI else scheme)

    def ceilings(self) -> Ceilings:
        """What the network allows, with stock's loads as in stock's own run."""
        record = next(record for group, record in self.records.items() if "stock" in group)
        return ceilings_of(record, configured_capacities(load_network(self.network), 0.0))


def _table(model: str, mine: Sequence[Runs]) -> Table:
    """The table of a model, with medians over its networks."""
    table = Table(title=f"{model}, {len(mine)} networks: samples a minute (Eq. 16), medians over networks")
    for heading in ("scheme", "speed", "over average", "min - max", "paper", "over stock", "min - max"):
        table.add_column(heading, justify="left" if heading == "scheme" else "right")
    for scheme in SCHEMES:
        over = {base: [runs.speed(scheme) / runs.speed(base) for runs in mine] for base in ("average", "stock")}
        paper = dict(zip(("elastic", CAI), PAPER[model], strict=True)).get(scheme)
        middle = statistics.median(runs.speed(scheme) for runs in mine)
        table.add_row(
            scheme, f"{middle:.0f}", *_spread(over["average"]), f"{paper:.2f}" if paper else "-", *_spread(over["stock"])
        )  # fmt: skip
    limits = [runs.ceilings() for runs in mine]
    ceiling = {"average": [one.over_average for one in limits], "stock": [one.over_stock for one in limits]}
    table.add_row("ceiling", "-", *_spread(ceiling["average"]), "-", *_spread(ceiling["stock"]), style="bold")
    for scheme in (CAI, "aware", "exact"):
        reached = {
            base: [runs.speed(scheme) / runs.speed(base) / top for runs, top in zip(mine, ceiling[base], strict=True)]
            for base in ceiling
        }
        table.add_row(f"{scheme} / ceiling", "-", *_spread(reached["average"]), "-", *_spread(reached["stock"]))
    return table


def _spread(values: list[float]) -> tuple[str, str]:
    return f"{statistics.median(values):.2f}", f"{min(values):.2f} - {max(values):.2f}"


if __name__ == "__main__":
    sys.exit(run_script("fig4", __doc__, main))
