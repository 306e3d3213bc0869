"""Measures alpha of the slice size x = sqrt(M alpha / N) on this machine: one held job iterates under several values of alpha."""

import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from nalb.compare.comparison import AlphaTimes, run_alphas
from nalb.launch.network import NAMESPACE_PORT, configured_bound_s, inside, job_network, places_in
from nalb.launch.roles import process_specs
from nalb.launch.run_dir import observer_address
from nalb.launch.signals import ending_on_signals
from nalb.launch.supervisor import Job, print_line
from nalb.options import JobOptions
from nalb.process.own_program import own_argv
from nalb.transport.observer import Observer
from nalb.workloads import bytes_of
from netem.network_file import Network

STEPS_PER_DECADE = 2


def ladder(low: float, high: float) -> list[float]:
    """Values of alpha from low to high, in equal ratios, about STEPS_PER_DECADE to a decade, both ends included; 0 < low < high."""
    count = max(2, round(STEPS_PER_DECADE * math.log10(high / low)) + 1)
    return [low * (high / low) ** (k / (count - 1)) for k in range(count)]


def calibrate(
    network: Network, replay: str, alphas: Sequence[float], rounds: int, options: JobOptions, run_dir: Path
) -> dict[float, AlphaTimes]:
    """Run the held job in `run_dir` and return the iteration times and slice size of each alpha. Raises JobError."""
    with ending_on_signals(), ExitStack() as stack:
        address = observer_address(stack, run_dir)
        samples = str(run_dir / "samples.jsonl")
        options = replace(options, root_port=NAMESPACE_PORT, observers=address, samples_path=samples, hold=True)
        emulation = stack.enter_context(job_network(network))
        command = own_argv("kvstore_patch.roles.replay", replay)
        specs = process_specs(places_in(emulation), command, options, os.environ)
        job = stack.enter_context(Job(specs, inside(emulation), os.environ, run_dir / "logs", check=emulation.check))
        observer = stack.enter_context(Observer(address))
        print_line(f"nalb calibrate: {len(alphas)} values of alpha, {rounds} rounds each")
        return run_alphas(job, observer, network, alphas, rounds, configured_bound_s(network, bytes_of(replay)))
