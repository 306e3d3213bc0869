"""`nalb metrics DIR (--port P | --tensorboard LOGDIR)`: serves a job's figures to Prometheus, or writes them for TensorBoard.

It reads the run directory alone.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from nalb.cli.flags import HIGH_PORT, LOOPBACK
from nalb.errors import InputError, as_text
from nalb.extras import require
from nalb.launch.signals import exit_on_signals
from nalb.live.following import Follower
from nalb.live.tail import RunTail

HIGH_PID = 1 << 22  # Linux has no higher ids
LOOK_S = 0.5  # between two looks at whether the job is over


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("run_dir", metavar="DIR", type=Path, help="run directory of a job that runs, or has run")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--port", type=int, metavar="P", help="serve Prometheus at this TCP port; 0: one that is free")
    where.add_argument(
        "--tensorboard", type=Path, metavar="LOGDIR", help="write scalars for TensorBoard there, until the job is over"
    )
    parser.add_argument(
        "--address",
        metavar="A",
        help=f"address to listen on (default: {LOOPBACK}); anyone there may read",
    )
    parser.add_argument("--while", dest="process", type=int, metavar="PID", help="end when this process does")


def main(args: argparse.Namespace) -> int:
    """Serve until a signal comes, or the process of --while has ended. Raises InputError, MachineError without the extra.

    A damaged record ends it too, once a scrape has met the damage.
    """
    if args.tensorboard is not None:
        if args.address is not None or args.process is not None:
            raise InputError("--address and --while need --port: --tensorboard ends with the job")
        require("tensorboardX", "nalb metrics --tensorboard")
        from nalb.live.tensorboard import write  # tensorboardX is an extra

        _require_own(args.run_dir)
        written = write(args.run_dir, args.tensorboard)
        print(as_text(f"nalb metrics: {written} iterations written to {args.tensorboard}"))
        return 0
    require("prometheus_client", "nalb metrics")
    if not 0 <= args.port <= HIGH_PORT:
        raise InputError(f"--port {args.port}: give 0 to {HIGH_PORT}")
    if args.process is not None and not 1 <= args.process <= HIGH_PID:
        raise InputError(f"--while {args.process}: give the id of a process, 1 to {HIGH_PID}")
    from nalb.live.metrics import serving  # prometheus_client is an extra

    exit_on_signals()
    _require_own(args.run_dir)
    try:
        address = args.address or LOOPBACK
        with serving(RunTail(args.run_dir), address, args.port) as (port, collector):
            host = f"[{address}]" if ":" in address else address
            print(as_text(f"nalb metrics: http://{host}:{port}/metrics has {args.run_dir}"), flush=True)
            while args.process is None or _is_there(args.process):
                time.sleep(LOOK_S)
                if collector.damage is not None:
                    raise collector.damage
    except KeyboardInterrupt:
        pass
    return 0


def _require_own(run_dir: Path) -> None:
    """Raise InputError for a run that has records of its jobs alone. Where there is none yet, say so."""
    follower = Follower(run_dir)
    if nothing := follower.nothing:
        print(as_text(f"nalb metrics: {nothing}; waiting for one"), file=sys.stderr, flush=True)
    follower.require_own()


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True
