"""Compares precisions on the plane for PyTorch: two networks that come with nalb and six drawn ones, MobileNet and ResNet-50.

Run it in .venv-torch. `auto` takes part with MobileNet, and with ResNet-50 on the first two networks: it needs some iterations
before it chooses. All nodes share this machine's cores, which set the pace of the shortest exchanges where they are slow.
"""

import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

from experiments.networks import write_network
from experiments.runs import Comparison, finish_all, run_script
from nalb.reporting.run_file import SchemeResult
from nalb.simulation.families import draw_network, network_text
from netem.network_file import find_network

CARRIED = ("wan6-static", "wan4-static")  # networks that come with nalb
FAMILIES = {
    "asymmetric": 1.0,
    "heavy": 1.0,
    "even": 1.0,
    "adsl": 1.0,
    "capped": 1.0,
    "near": 0.6,
}  # and the factor of rates
NODES, SEED = 6, 31507
FORCED, AUTO = ("exact+float16", "exact+int8", "exact+int4"), "exact+auto"
CHOSEN_AFTER = 6  # iterations: auto measures links first, and then changes once
LEARNED_AFTER = 3  # iterations


class Row(NamedTuple):
    """A row of the table."""

    network: str
    model: str
    schemes: tuple[str, ...]
    iterations: int

    @property
    def name(self) -> str:
        """Of the run's folder."""
        return f"{self.network}-{self.model}"


ROWS = (
    *(Row(one, "mobilenet", (*FORCED, AUTO), 12) for one in (*CARRIED, *FAMILIES)),
    *(Row(one, "resnet50", (*FORCED, AUTO), 12) for one in CARRIED),
    *(Row(one, "resnet50", FORCED, 7) for one in FAMILIES),
)


def steady_s(scheme: str, result: SchemeResult) -> float:
    """Seconds of an iteration, the median of those after the first ones."""
    return median(result.communication_s[CHOSEN_AFTER if scheme == AUTO else LEARNED_AFTER :])


def network_of(folder: Path, row: Row) -> Path:
    """The file of a row's network: one that comes with nalb, or one drawn of a family."""
    if row.network in CARRIED:
        return find_network(row.network)
    return write_network(folder, row.name, network_text(draw_network(row.network, NODES, SEED, FAMILIES[row.network])))


def main(out: Path, quick: bool) -> None:
    """Make the runs that are missing; print what each precision takes of the lossless bound."""
    rows = [row._replace(iterations=8) for row in ROWS[:1]] if quick else ROWS
    options = ("--framework", "torch")
    wanted = [
        Comparison(
            row.name,
            network_of(out / "networks", row),
            row.model,
            row.schemes,
            row.iterations,
            options=options,
        )
        for row in rows
    ]
    for comparison, record in zip(wanted, finish_all("precisions", out, wanted), strict=True):
        run = record.run
        parts = (f"{one} {steady_s(one, done) / run.known_bound_s:.3f}" for one, done in run.schemes.items())
        print(f"{comparison.name}: of the bound of {run.known_bound_s:.2f} s: {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_script("precisions", __doc__, main))
