"""Measures alpha of the slice size x = sqrt(M alpha / N) on this machine: one held job iterates under several values of alpha."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nalb.compare.comparison import AlphaTimes, run_alphas
from nalb.launch.network import configured_bound_s
from nalb.launch.roles import mxnet_program
from nalb.launch.signals import ending_on_signals
from nalb.launch.supervisor import print_line
from nalb.launch.venue import Emulated, JobOrder
from nalb.options import JobOptions
from nalb.process.own_program import own_argv
from nalb.workloads import bytes_of
from netem.network import Network

STEPS_PER_DECADE = 2


def ladder(low: float, high: float) -> list[float]:
    """Values of alpha from low to high, in equal ratios, about STEPS_PER_DECADE to a decade, both ends included; 0 < low < high."""
    count = max(2, round(STEPS_PER_DECADE * math.log10(high / low)) + 1)
    return [low * (high / low) ** (k / (count - 1)) for k in range(count)]


def calibrate(
    network: Network, replay: str, alphas: Sequence[float], rounds: int, options: JobOptions, run_dir: Path
) -> dict[float, AlphaTimes]:
    """Run the held job in `run_dir` and return the iteration times and slice size of each alpha. Raises JobError."""
    program = mxnet_program(own_argv("kvstore_patch.roles.replay", replay))
    with ending_on_signals(), Emulated(network) as venue:
        job = venue.start(JobOrder(program, replace(options, hold=True), run_dir))
        print_line(f"nalb calibrate: {len(alphas)} values of alpha, {rounds} rounds each")
        return run_alphas(job, alphas, rounds, configured_bound_s(network, bytes_of(replay)))
