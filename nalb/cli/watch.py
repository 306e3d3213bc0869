"""`nalb watch DIR`: shows a running job live, from its run directory alone. It leaves nothing behind, and costs the job nothing."""

import argparse
import sys
import time
from pathlib import Path

from rich.live import Live

from nalb.compare.progress import new_console
from nalb.errors import InputError
from nalb.launch.signals import exit_on_signals
from nalb.live.following import Follower
from nalb.live.view import line, screen

LEAST_S, MOST_S = 0.1, 3600.0  # of --every


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("run_dir", metavar="DIR", type=Path, help="run directory of a job that runs, or has run")
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between two looks (default: 1)")
    parser.add_argument("--once", action="store_true", help="show the present state and leave")


def main(args: argparse.Namespace) -> int:
    """Show the state until the job is over. Raises InputError."""
    if not LEAST_S <= args.every <= MOST_S:
        raise InputError(f"--every {args.every:g}: give {LEAST_S:g} to {MOST_S:g} seconds")
    follower = Follower(args.run_dir)
    if nothing := follower.nothing:
        if args.once:
            raise InputError(nothing)
        print(f"nalb watch: {nothing}; waiting for one", file=sys.stderr, flush=True)
    follower.look()
    console = new_console()
    if args.once or not (sys.stdout.isatty() and not console.is_dumb_terminal):
        _print_lines(follower, args.every, args.once)
        return 0
    exit_on_signals()  # else the terminal would keep no cursor
    with Live(screen(follower.state, follower.iterations), console=console, auto_refresh=False) as live:
        while not follower.is_over(time.monotonic()):
            follower.tell_blindness()
            time.sleep(args.every)
            follower.look()
            live.update(screen(follower.state, follower.iterations), refresh=True)
        follower.look()  # what was written between the last look and the end
        follower.state.ended()
        live.update(screen(follower.state, follower.iterations), refresh=True)
    print("nalb watch: the job is over", flush=True)
    return 0


def _print_lines(follower: Follower, every_s: float, is_once: bool) -> None:
    """Print a line at each look that has something new."""
    shown, is_over = "", is_once
    while True:
        if is_over and follower.tail.sees_end and not follower.tail.is_running:
            follower.state.ended()
        told = line(follower.state, follower.iterations)
        if told != shown:
            print(f"nalb watch: {told}", flush=True)
            shown = told
        if is_over:
            break
        follower.tell_blindness()
        time.sleep(every_s)
        is_over = follower.is_over(time.monotonic())  # asked before the look, so that nothing written by then is missed
        follower.look()
    if not is_once:
        print("nalb watch: the job is over", flush=True)
