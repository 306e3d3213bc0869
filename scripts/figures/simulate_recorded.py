"""Compares recorded runs with their simulations with noise: iteration times, and messages as receivers saw them; a line per run.

A line has medians over a run's iterations after each scheme's warm-up. Speeds are those of full-sized messages over their speeds
in the exact fluid, given as three numbers: the 10th percentile, the median and the 90th percentile. `late` messages have less than
half of their speed in the fluid. `at once` are messages that were read within 0.5 ms of their forecasts. `pause` is the 99th
percentile of the pauses between two readings of a process. Under each measured number stands the simulated one.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from nalb.errors import InputError, NalbError
from nalb.reporting.run_file import RunFile, read_events, read_run, steady
from nalb.simulation.noise import Noise
from nalb.simulation.recorded import Compared, Seen, simulate_events

COLUMNS = ("run", "network", "nodes", "iterations", "time s", "error", "speeds", "late", "at once", "pause ms")


def main() -> int:
    """Simulate each run and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="DIR", help="of `nalb compare`")
    parser.add_argument("--seed", type=int, default=1, help="of the noise (default: 1)")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each run, every iteration in it")
    args = parser.parse_args()
    table, told_to = Table(*COLUMNS), Console(stderr=True)
    try:
        if args.seed < 0:
            raise InputError(f"--seed {args.seed}: give 0 or more")
        for word in track(args.runs, "simulating", console=told_to, transient=True, disable=not told_to.is_terminal):
            run, compared = simulate(Path(word), args.seed)
            if args.json:
                iterations = [asdict(one) for one in compared]
                print(json.dumps({"run": word, "network": run.network, "iterations": iterations}), flush=True)
            else:
                for row in rows(Path(word).name, run, compared):
                    table.add_row(*row)
    except NalbError as error:
        parser.exit(error.exit_code, f"simulate_recorded: {error}\n")
    if not args.json:
        Console(width=120).print(table)
    return 0


def simulate(run_dir: Path, seed: int) -> tuple[RunFile, list[Compared]]:
    """Simulate a run; return its run.json and its iterations after the warm-up. Raises InputError."""
    run = read_run(run_dir)
    every = simulate_events(read_events(run_dir), noise=Noise((seed,)))
    compared = [one for name in run.schemes for one in steady([each for each in every if each.scheme == name])]
    if not any(one.measured for one in compared):
        raise InputError(f"{run_dir / 'samples.jsonl'}: no iteration whose messages were all timed: give another run")
    return run, compared


def rows(name: str, run: RunFile, compared: list[Compared]) -> tuple[list[str], list[str]]:
    """The two table rows of a run: its measured numbers, and below them the simulated ones."""
    errors = [one.simulated_s / one.measured_s - 1 for one in compared]
    timed = [(one.measured, one.simulated) for one in compared if one.measured and one.simulated]
    measured, simulated = zip(*timed, strict=True)
    above = [name, run.network, f"{run.nodes}", f"{len(timed)} of {len(compared)}"]
    above += [f"{median(one.measured_s for one in compared):.3f}", "", *told(measured)]
    below = ["", "simulated", "", "", f"{median(one.simulated_s for one in compared):.3f}", f"{median(errors):+.1%}"]
    return above, below + told(simulated)


def told(seen: tuple[Seen, ...]) -> list[str]:
    """The cells for messages as receivers saw them: medians over iterations."""

    def middle(field: str) -> Any:
        return median(getattr(one, field) for one in seen)

    speeds = " ".join(f"{middle(field):.2f}" for field in ("slow", "usual", "fast"))
    return [speeds, f"{middle('late_part'):.1%}", f"{middle('at_once_part'):.1%}", f"{1e3 * middle('pause_s'):.0f}"]


if __name__ == "__main__":
    sys.exit(main())
