"""Repeats Figure 5 of Cai et al.: aware and average while the network changes, and how soon aware is back near the bound."""

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.networks import random_network, write_network
from experiments.recovery import NEAR, recoveries
from experiments.runs import Comparison, finish_all, run_script
from nalb.reporting.record import Record

SEED = 2023


@dataclass(frozen=True)
class Run:
    """A comparison on a network whose rates are drawn anew every `every_s` seconds."""

    name: str
    nodes: int
    mbps: tuple[float, float]
    every_s: int
    iterations: int
    schemes: tuple[str, ...]


RUNS = (
    Run("fig5-n12", 12, (20, 220), 60, 50, ("aware", "average")),
    Run("fig5-n12-third", 12, (20 / 3, 220 / 3), 120, 60, ("aware",)),  # two cores carry these rates with ease
)
QUICK = (Run("fig5-n4", 4, (80, 220), 12, 12, ("aware", "average")),)


def main(out: Path, quick: bool) -> None:
    """Make the runs that are missing; print every iteration with the changes marked, then the recoveries."""
    runs = QUICK if quick else RUNS
    wanted = []
    for run in runs:
        text = random_network(run.name, run.nodes, SEED, *run.mbps, every_s=run.every_s)
        network = write_network(out / "networks", run.name, text)
        wanted.append(Comparison(run.name, network, "mobilenet", run.schemes, run.iterations))
    for run, record in zip(runs, finish_all("fig5", out, wanted), strict=True):
        for scheme in run.schemes:
            Console().print(_series(run, record, scheme))
        Console().print(_recoveries(run, record))
        print(f"figures: nalb report {out / run.name}")


def _series(run: Run, record: Record, scheme: str) -> Table:
    title = (
        f"{scheme}, {run.nodes} nodes, {run.mbps[0]:.3g} to {run.mbps[1]:.3g} Mbit/s, drawn anew every {run.every_s} s"
    )
    table = Table(title=title)
    for heading in ("iteration", "seconds", "bound", "x bound", ""):
        table.add_column(heading, justify="right")
    places = record.change_places(scheme)
    for number, (step, bound_s) in enumerate(zip(record.steps[scheme], record.bounds_s(scheme), strict=True)):
        mark = "change during it" if any(number <= at < number + 1 for at in places) else ""
        took_s = step.communication_s
        table.add_row(str(number), f"{took_s:.2f}", f"{bound_s:.2f}", f"{took_s / bound_s:.2f}", mark)
    return table


def _recoveries(run: Run, record: Record) -> Table:
    table = Table(title=f"iterations after a change until within {NEAR - 1:.0%}; 1 is the first wholly after it")
    for heading in ("scheme", "changes", "of new bound: median", "recovered", "of settled level: median", "recovered"):
        table.add_column(heading, justify="left" if heading == "scheme" else "right")
    for scheme in run.schemes:
        found = recoveries(record, scheme)
        cells = []
        for counts in ([one.to_bound for one in found], [one.to_settled for one in found]):
            back = sum(count != float("inf") for count in counts)
            cells += [f"{statistics.median(counts):g}" if counts else "-", f"{back} of {len(counts)}"]
        table.add_row(scheme, str(len(found)), *cells)
    return table


if __name__ == "__main__":
    sys.exit(run_script("fig5", __doc__, main))
