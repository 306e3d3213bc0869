"""Makes the runs of the main table: stock MXNet, equal shares and nalb's schemes on four networks, three runs of each.

No run takes ten minutes: with ResNet-50 the slower two schemes and the faster two have runs of their own.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.networks import random_network, write_network
from experiments.runs import Comparison, finish_all, run_script
from nalb.reporting.run_file import median_s
from netem.network_file import find_network

TURNS = (1, 2, 3)
TWELVE = "fig4-n12-s1"  # the first network of Cai et al.'s figure 4
SLOW, FAST = ("stock", "average"), ("aware", "exact")


class Row(NamedTuple):
    """A row of the table."""

    network: str
    model: str
    parts: tuple[tuple[tuple[str, ...], int], ...]  # the schemes and the iterations of each of its runs


ROWS = (
    Row("wan6-static", "mobilenet", (((*SLOW, *FAST), 8),)),
    Row("wan4-static", "mobilenet", (((*SLOW, *FAST), 8),)),
    Row("wan6-asymmetric", "mobilenet", (((*SLOW, *FAST), 10),)),
    Row(TWELVE, "mobilenet", (((*SLOW, *FAST), 6),)),
    Row("wan6-static", "resnet50", ((SLOW, 5), (FAST, 6))),
    Row("wan6-asymmetric", "resnet50", ((SLOW, 5), (FAST, 6))),
)


def name_of(row: Row, schemes: tuple[str, ...], turn: int) -> str:
    """The name of a run's folder."""
    return f"{row.network}-{row.model}-{schemes[0]}-{turn}"


def measure(figure: str, rows: Sequence[Row], out: Path, quick: bool, options: tuple[str, ...] = ()) -> None:
    """Make the runs that are missing, and print a line for each. options: further flags of `nalb compare`."""
    twelve = write_network(out / "networks", TWELVE, random_network(TWELVE, 12, 1))
    wanted = [
        Comparison(
            name_of(row, schemes, turn),
            twelve if row.network == TWELVE else find_network(row.network),
            row.model,
            schemes,
            3 if quick else iterations,
            options=options,
        )
        for turn in TURNS[: 1 if quick else None]
        for row in rows[: 1 if quick else None]
        for schemes, iterations in row.parts
    ]
    for comparison, record in zip(wanted, finish_all(figure, out, wanted), strict=True):
        times = ", ".join(f"{one} {median_s(done.communication_s):.2f} s" for one, done in record.run.schemes.items())
        print(f"{comparison.name}: bound {record.run.bound_s:.2f} s, {times}", flush=True)


def main(out: Path, quick: bool) -> None:
    """Make the runs of MXNet's plane."""
    measure("main-results", ROWS, out, quick)


if __name__ == "__main__":
    sys.exit(run_script("main-results", __doc__, main))
