"""`nalb metrics DIR --port P`: serves a running job's figures to Prometheus, from its run directory alone."""

import argparse
import os
import signal
import time
from pathlib import Path

from nalb.cli.flags import HIGH_PORT, LOOPBACK
from nalb.errors import InputError
from nalb.extras import require
from nalb.live.tail import RunTail

LOOK_S = 0.5  # between two looks at whether the job is over


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("run_dir", metavar="DIR", type=Path, help="run directory of a job that runs, or has run")
    parser.add_argument("--port", type=int, required=True, metavar="P", help="TCP port; 0: one that is free")
    parser.add_argument(
        "--address",
        default=LOOPBACK,
        metavar="A",
        help=f"address to listen on (default: {LOOPBACK}); anyone there may read",
    )
    parser.add_argument("--while", dest="process", type=int, metavar="PID", help="end when this process does")


def main(args: argparse.Namespace) -> int:
    """Serve until a signal comes, or the process of --while has ended. Raises InputError, MachineError without the extra."""
    require("prometheus_client", "nalb metrics")
    if not 0 <= args.port <= HIGH_PORT:
        raise InputError(f"--port {args.port}: give 0 to {HIGH_PORT}")
    from nalb.live.metrics import serving  # prometheus_client is an extra

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serving(RunTail(args.run_dir), args.address, args.port) as (port, _):
            print(f"nalb metrics: http://{args.address}:{port}/metrics has {args.run_dir}", flush=True)
            while args.process is None or _is_there(args.process):
                time.sleep(LOOK_S)
    except KeyboardInterrupt:
        pass
    return 0


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
