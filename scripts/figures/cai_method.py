"""Compares Cai et al.'s own method with nalb's `aware`, the same scheme with another estimator: three networks, three runs each."""

import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.networks import random_network, write_network
from experiments.runs import Comparison, finish_all, run_script
from nalb.measurement.estimators import ESTIMATORS
from nalb.reporting.record import Record
from nalb.reporting.run_file import median_s
from netem.network_file import find_network

CARRIED = ("wan6-static", "wan4-static")  # networks that come with nalb
TWELVE = "fig4-n12-s1"  # the first network of Figure 4
ITERATIONS, TURNS = 10, 3  # iterations of a run; runs of each estimator, by turns


def main(out: Path, quick: bool) -> None:
    """Make the runs that are missing; print the seconds of each network's runs."""
    networks = [find_network(name) for name in CARRIED]
    networks.append(write_network(out / "networks", TWELVE, random_network(TWELVE, 12, 1)))
    turns = range(1, 2 if quick else TURNS + 1)
    wanted = [
        Comparison(f"{net.stem}-{estimator}-{turn}", net, "mobilenet", ("aware",), ITERATIONS, options=("--estimator", estimator))
        for net in networks[: 1 if quick else None]
        for turn in turns
        for estimator in ESTIMATORS
    ]  # fmt: skip
    records = dict(zip([run.name for run in wanted], finish_all("cai-method", out, wanted), strict=True))
    table = Table(title="MobileNet, scheme aware: seconds of an iteration, the median of each run")
    for heading in ("network", "bound s", "Cai et al.", "nalb's aware", "over nalb's"):
        table.add_column(heading, justify="right")
    for net in networks[: 1 if quick else None]:
        runs = {one: [records[f"{net.stem}-{one}-{turn}"] for turn in turns] for one in ("paper", "capacity")}
        cai_s, nalb_s = (statistics.median(map(_took_s, runs[one])) for one in ("paper", "capacity"))
        cells = (" ".join(f"{_took_s(record):.3f}" for record in runs[one]) for one in ("paper", "capacity"))
        table.add_row(net.stem, f"{runs['paper'][0].run.bound_s:.2f}", *cells, f"{cai_s / nalb_s:.2f}")
    Console(width=120).print(table)


def _took_s(record: Record) -> float:
    return median_s(record.run.schemes["aware"].communication_s)


if __name__ == "__main__":
    sys.exit(run_script("cai-method", __doc__, main))
