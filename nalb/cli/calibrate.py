"""`nalb calibrate`: measure alpha of x = sqrt(M alpha / N) on this platform, by sweeping the slice size."""

import argparse
import math
import os
import statistics
import sys
from contextlib import ExitStack

from rich.table import Table

from nalb.cli.launch import (
    NAMESPACE_PORT,
    add_process_flags,
    ending_on_signals,
    job_options,
    make_run_dir,
    observer_address,
)
from nalb.cli.progress import show_table
from nalb.compare.comparison import run_alphas
from nalb.errors import InputError
from nalb.launch.network import configured_bound_s, inside, job_network, places_in
from nalb.launch.roles import process_specs
from nalb.launch.supervisor import Job, print_line
from nalb.transport.observer import Observer
from nalb.workloads import NAMES, bytes_of
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege

STEPS_PER_DECADE = 2
ROUNDS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Flags."""
    parser.add_argument("--network", default="wan4-static", metavar="FILE", help="default: wan4-static")
    parser.add_argument("--replay", choices=NAMES, default="mobilenet", help="default: mobilenet")
    parser.add_argument("--low", type=float, default=300.0, metavar="BYTES", help="smallest alpha tried (default: 300)")
    parser.add_argument(
        "--high", type=float, default=120_000.0, metavar="BYTES", help="largest (default: 120000, the paper's)"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"rounds of 3 iterations per alpha (default: {ROUNDS})"
    )
    parser.add_argument("--out", metavar="DIR", help="run directory (default: a new one in runs/)")
    add_process_flags(parser)
    parser.set_defaults(alpha_bytes=None, estimator="capacity")  # alpha is looked for, estimates have no part in it


def ladder(low: float, high: float) -> list[float]:
    """Alphas from low to high, STEPS_PER_DECADE a decade, both ends included."""
    if not (0 < low < high and math.isfinite(high)):
        raise InputError(f"--low {low:g} --high {high:g}: give 0 < low < high")
    count = max(2, round(STEPS_PER_DECADE * math.log10(high / low)) + 1)
    return [low * (high / low) ** (k / (count - 1)) for k in range(count)]


def main(args: argparse.Namespace) -> int:
    """Sweep and print the alpha whose median communication time is least."""
    alphas = ladder(args.low, args.high)
    if not 1 <= args.rounds <= 1000:
        raise InputError(f"--rounds {args.rounds}: choose 1 to 1000")
    network = load_network(find_network(args.network))
    ensure_privilege()
    run_dir = make_run_dir(args.out)
    bound = configured_bound_s(network, bytes_of(args.replay))
    with ending_on_signals(), ExitStack() as stack:
        options = job_options(args, NAMESPACE_PORT, observer_address(stack, run_dir), run_dir, hold=True)
        emulation = stack.enter_context(job_network(network))
        command = [sys.executable, "-m", "kvstore_patch.roles.replay", args.replay]
        specs = process_specs(places_in(emulation), command, options, os.environ)
        job = stack.enter_context(Job(specs, inside(emulation), os.environ, run_dir / "logs"))
        observer = stack.enter_context(Observer(options.observers or ""))
        print_line(f"nalb calibrate: {len(alphas)} values of alpha, {args.rounds} rounds each")
        times = run_alphas(job, observer, network, alphas, args.rounds, bound)
    table = Table(title=f"replay {args.replay} on {network.name}, shares by the configured rates")
    for heading in ("alpha bytes", "slice bytes", "communication s", "over best"):
        table.add_column(heading, justify="right")
    medians = {alpha: statistics.median(found.times_s) for alpha, found in times.items()}
    best = min(medians, key=lambda alpha: medians[alpha])
    for alpha, median in medians.items():
        table.add_row(f"{alpha:.0f}", str(times[alpha].slice_bytes), f"{median:.3f}", f"{median / medians[best]:.3f}")
    show_table(table)
    print_line(f"alpha = {best:.0f} bytes: use --alpha-bytes {best:.0f}, or NALB_ALPHA_BYTES={best:.0f}")
    return 0
