"""Repeats figures 1, 3, 4, 6 and 7 of Dynamic Batching (Tyagi and Sharma, 2020) on this machine: three workers train a CNN.

    python scripts/figures/dynamic_batching_figures.py [--out DIR] [--quick]

3   cores as 3 : 5 : 12: the spread of the workers' iteration times, with uniform and with variable batches
4   the same cores: batch sizes under proportional control, from equal ones; and without a dead-band (simulated)
6   H-levels 1 to 10 with 1.2 cores in all: the iteration time of uniform batches over that of variable ones; figure 1 is the time
    of uniform batches over that of equal machines
7   two machines whose cores are as the paper's GPU and CPU, 0.813 : 0.187: uniform, static and dynamic batches

The paper's machines have 20 and 39 cores. dynamic_batching_levels.py simulates figure 6 on 39.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.networks import uneven_network, write_network
from experiments.runs import run_script
from experiments.trainings import batch_events, compare_batchings
from nalb.batching.decisions import Observation
from nalb.batching.dynamic import ProportionalControl
from nalb.batching.sizes import Bounds

CORES = 1.2  # the cores of all workers together; this machine has 2, and servers and the coordinator need some
START_CORES = 0.5  # the cores of each worker until training begins
PARTS = (3 / 20, 5 / 20, 12 / 20)  # each worker's part of the cores in Fig. 3
MIX = (0.813, 0.187)  # each worker's part of the cores in Fig. 7
LEVELS = (1, 2, 4, 6, 8, 10)
TOTAL = 1536  # samples of an iteration
TOTAL_6 = 4096  # the same for Fig. 6: as with the paper's ResNet, computing must take more time than the exchange
NOISE = 0.03  # the relative noise of simulated times
PAPER_6 = {2: "2.0", 10: "2.4"}  # the paper's gains for ResNet; on MNIST they reach 4


def level_cores(level: int) -> tuple[float, ...]:
    """The cores of the three workers: the smallest, a third of all, and the largest, which is `level` times the smallest."""
    rest = CORES * 2 / 3
    return rest / (1 + level), CORES / 3, rest * level / (1 + level)


def changes_made(dead_band: float, smoothing: float, window: int) -> int:
    """The number of changes of sizes in 100 iterations after the first 20, for workers as uneven as in Fig. 3."""
    generator = np.random.default_rng(0)
    start = (TOTAL // 3,) * 3
    control = ProportionalControl(start, Bounds.of(TOTAL, 3), None, dead_band, smoothing, window)
    all_sizes: list[tuple[int, ...]] = [start]
    for _ in range(120):
        times = np.array(all_sizes[-1]) / np.array(PARTS) * (1 + NOISE * generator.standard_normal(3))
        seen = [Observation(b, float(t)) for b, t in zip(all_sizes[-1], times, strict=True)]
        all_sizes.append(control.update(seen).sizes or all_sizes[-1])
    return sum(a != b for a, b in pairwise(all_sizes[20:]))


def main(out: Path, quick: bool) -> None:
    """Run the trainings that are missing and print the tables."""
    console, networks = Console(width=max(110, Console().width)), out / "networks"
    iterations = 40 if quick else 60
    cores = tuple(CORES * part for part in PARTS)
    network = write_network(networks, "dyn3", uneven_network("dyn3", cores, START_CORES))
    run = compare_batchings(out / "figure-3", network, "off,static,dynamic", iterations, "cnn", TOTAL)
    table = Table(title="Fig. 3: a worker's computing, ms: mean, 10th and 90th percentile of the later half")
    for heading in ("batching", *(f"{quota:.2f} cores" for quota in cores), "longest mean over shortest", "paper"):
        table.add_column(heading, justify="right")
    for name, one in run.batchings.items():
        by_node = np.argsort(batch_events(out / "figure-3" / name)[0].workers)  # columns are ranks
        times = np.array(one.compute_s[len(one.compute_s) // 2 :])[:, by_node] * 1e3
        low, high = np.percentile(times, [10, 90], axis=0)
        cells = [f"{mean:.0f} [{a:.0f}, {b:.0f}]" for mean, a, b in zip(times.mean(axis=0), low, high, strict=True)]
        ratio = times.mean(axis=0).max() / times.mean(axis=0).min()
        table.add_row(name, *cells, f"{ratio:.2f}", "about 4" if name == "off" else "similar distributions")
    console.print(table)

    sizes = run.batchings["dynamic"].sizes
    steps = [(0, sizes[0])] + [(k, b) for k, (a, b) in enumerate(pairwise(sizes), 1) if a != b]
    console.print("Fig. 4a: sizes under proportional control, from equal ones; the paper's settle after 2 adjustments")
    for k, changed in steps:
        console.print(f"   iteration {k:3d}: {' '.join(map(str, changed))}")
    free, held = changes_made(0.0, 1.0, 1), changes_made(0.05, 0.2, 5)
    console.print(
        f"Fig. 4b, simulated: of 100 iterations {free} change sizes without a dead-band, {held} with all three"
    )

    table = Table(title=f"Fig. 6: {CORES} cores in all, {TOTAL_6} samples; iteration in s, uniform over variable")
    for heading in (
        "H",
        "cores",
        "uniform s",
        "over H = 1 (Fig. 1)",
        "dynamic s",
        "gain",
        "ideal gain",
        "paper (ResNet)",
    ):
        table.add_column(heading, justify="right")
    equal_s = None
    for level in LEVELS:
        name = f"dyn6-{level}"
        network = write_network(networks, name, uneven_network(name, level_cores(level), START_CORES))
        run_dir = out / f"figure-6-{level}"
        run = compare_batchings(run_dir, network, "off,dynamic", iterations, "cnn", TOTAL_6)
        uniform, dynamic = run.batchings["off"], run.batchings["dynamic"]
        gain, equal_s = uniform.iteration_s / dynamic.iteration_s, equal_s or uniform.iteration_s
        ideal = uniform.slowest_s / uniform.ideal_s
        shown = " ".join(f"{quota:.2f}" for quota in level_cores(level))
        took = f"{uniform.iteration_s:.3f}", f"{uniform.iteration_s / equal_s:.2f}", f"{dynamic.iteration_s:.3f}"
        table.add_row(str(level), shown, *took, f"{gain:.2f}", f"{ideal:.2f}", PAPER_6.get(level, ""))
    console.print(table)

    cores = tuple(CORES * part for part in MIX)
    network = write_network(networks, "dyn7", uneven_network("dyn7", cores, START_CORES))
    run = compare_batchings(out / "figure-7", network, "off,static,dynamic", iterations, "cnn", TOTAL_6)
    table = Table(
        title=f"Fig. 7: machines of {' and '.join(f'{quota:.2f}' for quota in cores)} cores, {TOTAL_6} samples"
    )
    for heading in ("batching", "iteration s", "uniform over it", "paper"):
        table.add_column(heading, justify="right")
    for name, one in run.batchings.items():
        gain = run.batchings["off"].iteration_s / one.iteration_s
        table.add_row(
            name, f"{one.iteration_s:.3f}", f"{gain:.2f}", "" if name == "off" else "over 4 (ResNet), 1.2 (MNIST)"
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(run_script("dynamic-batching", __doc__, main))
