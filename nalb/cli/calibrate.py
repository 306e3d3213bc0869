"""`nalb calibrate`: measures alpha of the slice size x = sqrt(M alpha / N) on this machine, by trying one alpha after another."""

import argparse

from rich.table import Table

from nalb.cli.flags import HIGH_ALPHA_BYTES, LOW_ALPHA_BYTES, add_process_flags, job_options
from nalb.compare.calibration import calibrate, ladder
from nalb.compare.progress import table_text
from nalb.errors import InputError, as_text
from nalb.launch.roles import mxnet_program
from nalb.launch.run_dir import make_run_dir
from nalb.workloads import NAMES
from netem.network_file import find_network, load_network
from netem.rootless import ensure_privilege

ROUNDS = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--network", default="wan4-static", metavar="NETWORK", help="default: wan4-static")
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


def main(args: argparse.Namespace) -> int:
    """Time each alpha and print the one with the least median communication time. Raises NalbError."""
    if not LOW_ALPHA_BYTES <= args.low < args.high <= HIGH_ALPHA_BYTES:
        limits = f"{LOW_ALPHA_BYTES:g} <= low < high <= {HIGH_ALPHA_BYTES:g}"
        raise InputError(f"--low {args.low:g} --high {args.high:g}: give {limits}")
    if not 1 <= args.rounds <= 1000:
        raise InputError(f"--rounds {args.rounds}: choose 1 to 1000")
    alphas, options = ladder(args.low, args.high), job_options(args)
    mxnet_program(()).require()
    ensure_privilege()
    network = load_network(find_network(args.network))
    run_dir = make_run_dir(args.out)
    print(as_text(f"run directory: {run_dir}"), flush=True)
    times = calibrate(network, args.replay, alphas, args.rounds, options, run_dir)
    table = Table(title=f"replay {args.replay} on {network.name}, shares by the configured rates")
    for heading in ("alpha bytes", "slice bytes", "communication s", "over best"):
        table.add_column(heading, justify="right")
    medians = {alpha: found.median_s for alpha, found in times.items()}
    best = min(medians, key=lambda alpha: medians[alpha])
    for alpha, median in medians.items():
        table.add_row(f"{alpha:.4g}", str(times[alpha].slice_bytes), f"{median:.3f}", f"{median / medians[best]:.3f}")
    print(table_text(table))
    print(f"alpha = {best:.4g} bytes: use --alpha-bytes {best:.4g}, or NALB_ALPHA_BYTES={best:.4g}")
    return 0
