"""Repeats Figure 6 of Cai et al.: iteration time by slice size, and at the size that alpha gives; shares by configured rates."""

import math
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.networks import random_network, write_network
from experiments.runs import Comparison, finish_all, run_script
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.slices import slice_bytes
from nalb.reporting.run_file import median_s

ITEM_BYTES = 4  # the size of a float32 parameter
THIRDS = range(10, 18)  # sizes as thirds of a decade: 10^3.33 to 10^5.67 parameters
MODEL = "mobilenet"
STATES = {1: (20, 220), 2: (60, 130), 3: (90, 110)}  # by seed, the range of rates in Mbit/s; two cores move no more
CALIBRATED = "oracle"  # the variant without a size, whose slices are x = sqrt(M alpha / N)


def sizes_by_variant(thirds: Iterable[int] = THIRDS) -> dict[str, float]:
    """The sizes in bytes, by what `nalb compare` calls each."""
    sizes = [ITEM_BYTES * 10 ** (k / 3) for k in thirds]
    return {f"{CALIBRATED}@{round(size)}": size for size in sizes}


def main(out: Path, quick: bool) -> None:
    """Make the runs that are missing and print a table for each network."""
    nodes, iterations = (4, 3) if quick else (12, 6)
    thirds, states = (THIRDS[::3], {1: STATES[1]}) if quick else (THIRDS, STATES)
    sizes = sizes_by_variant(thirds)
    networks = []
    for seed, (low, high) in states.items():
        name = f"fig6-n{nodes}-s{seed}"
        networks.append(write_network(out / "networks", name, random_network(name, nodes, seed, low, high)))
    alpha = ("--alpha-bytes", f"{FIRST_ALPHA_BYTES:g}")
    wanted = [
        Comparison(f"{MODEL}-{net.stem}", net, MODEL, (CALIBRATED, *sizes), iterations, options=alpha)
        for net in networks
    ]
    for record, (low, high) in zip(finish_all("fig6", out, wanted), states.values(), strict=True):
        run = record.run
        sizes[CALIBRATED] = slice_bytes(run.model_bytes, run.nodes, FIRST_ALPHA_BYTES)
        medians = {word: median_s(result.iteration_s) for word, result in run.schemes.items()}
        best_s = min(medians.values())
        table = Table(title=f"{MODEL}, {nodes} nodes of {low} to {high} Mbit/s; bound {run.known_bound_s:.2f} s")
        for heading in ("slice bytes", "log10(parameters)", "iteration s", "over best"):
            table.add_column(heading, justify="right")
        for word in sorted(sizes, key=lambda word: sizes[word]):
            cells = f"{sizes[word]:.0f}", f"{math.log10(sizes[word] / ITEM_BYTES):.2f}", f"{medians[word]:.3f}"
            table.add_row(*cells, f"{medians[word] / best_s:.3f}", style="bold" if word == CALIBRATED else "")
        Console().print(table)
        print(
            f"calibrated x ({FIRST_ALPHA_BYTES:g} bytes of alpha): {medians[CALIBRATED] / best_s - 1:.1%} over the best"
        )


if __name__ == "__main__":
    sys.exit(run_script("fig6", __doc__, main))
