"""Simulates Figure 6 of Tyagi and Sharma (2020): the gain of variable batches over uniform ones, by heterogeneity.

    python scripts/figures/dynamic_batching_levels.py [--seeds 5]

Three workers share CORES cores. H is the cores of the largest over those of the smallest; the third worker has a third of all. A
worker takes (FIXED + PER_SAMPLE x samples) / cores seconds, with 3 % of noise; the two constants were measured for the CNN of
examples/ on one core. Every scheme begins with equal batches, and the table has medians of the last half of ITERATIONS iterations.
The paper's own times to an accuracy contain TensorFlow's parallelism within workers, restarts and communication, so that only the
trend is comparable.
"""

import argparse
import sys

import numpy as np
from rich.console import Console
from rich.table import Table

from nalb.batching.decisions import Observation
from nalb.batching.schemes import BatchJob, build
from nalb.planning.nodes import Floats

CORES = 39.0  # the cores of the paper's three workers together
LEVELS = range(1, 11)
TOTAL, ITERATIONS, NOISE = 384, 60, 0.03
FIXED, PER_SAMPLE = 5e-3, 95e-6  # the core seconds of a step, and of each sample in it
SCHEMES = ("static", "dynamic", "lb-bsp", "lbb")
PAPER = {2: "2.0", 6: "", 10: "2.4"}  # the paper's gains over uniform batching, by H: ResNet on CPUs


def cores(level: int) -> Floats:
    """The cores of the three workers: the smallest, a third of all, and `level` times the smallest."""
    rest = CORES * 2 / 3
    return np.array([rest / (1 + level), CORES / 3, rest * level / (1 + level)])


def iteration_s(scheme: str, level: int, seed: int) -> float:
    """Median time of the slowest worker in seconds, over the later half of the iterations."""
    generator = np.random.default_rng([seed, level])
    power = cores(level)
    controller, sizes = build(scheme, BatchJob((TOTAL // 3,) * 3))
    slowest = []
    for _ in range(ITERATIONS):
        noise = 1 + NOISE * np.clip(generator.normal(size=3), -3, 3)
        times = (FIXED + PER_SAMPLE * np.array(sizes)) / power * noise
        slowest.append(times.max())
        observations = [Observation(size, float(time)) for size, time in zip(sizes, times, strict=True)]
        sizes = controller.update(observations).sizes or sizes
    return float(np.median(slowest[ITERATIONS // 2 :]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    table = Table(title=f"simulated: uniform batches' iteration time over each scheme's, {options.seeds} seeds' median")
    for heading in ("H", "uniform ms", *SCHEMES, "ideal", "paper (ResNet)"):
        table.add_column(heading, justify="right")
    for level in LEVELS:

        def median(scheme: str, level: int = level) -> float:
            return float(np.median([iteration_s(scheme, level, seed) for seed in range(options.seeds)]))

        uniform, power = median("off"), cores(level)
        ideal = (3 * FIXED + PER_SAMPLE * TOTAL) / CORES  # each of the three workers has a fixed part
        gains = [f"{uniform / median(scheme):.2f}" for scheme in SCHEMES]
        least = max(FIXED / power.min(), ideal)
        table.add_row(str(level), f"{uniform * 1e3:.2f}", *gains, f"{uniform / least:.2f}", PAPER.get(level, ""))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
