"""`nalb why DIR`: says what sets the pace of a run's iterations, also while the run goes on."""

import argparse
from pathlib import Path

from nalb.cli.flags import check_run, parse_names
from nalb.compare.progress import table_text
from nalb.errors import InputError, printable
from nalb.reporting.pace import paces
from nalb.reporting.precisions import precision_lines
from nalb.reporting.record import of_last_job, read_timeline, without_iterations
from nalb.reporting.table import pace_table

SHOWN = 8  # things in a table


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("run_dir", metavar="DIR", type=Path, help="run directory, of a run that may still go on")
    parser.add_argument("--schemes", metavar="A,B", help="of these schemes alone (default: all that the run has)")
    parser.add_argument("--last", type=int, metavar="N", help="only the newest N iterations of each (default: all)")
    parser.add_argument("--all", action="store_true", help=f"list everything (default: the first {SHOWN})")


def main(args: argparse.Namespace) -> int:
    """Print a table for each scheme. Raises InputError."""
    if args.last is not None and args.last < 1:
        raise InputError(f"--last {args.last}: give 1 or more")
    check_run(args.run_dir)
    timeline = of_last_job(args.run_dir, read_timeline(args.run_dir))
    if not timeline.has_events:
        raise without_iterations(args.run_dir, timeline)
    found = paces(timeline, args.last)
    if args.schemes is not None:
        words = parse_names("--schemes", args.schemes)
        if unknown := set(words) - timeline.steps.keys():
            raise InputError(f"--schemes: the run has no {min(unknown)!r}: choose of {', '.join(timeline.steps)}")
        found = [pace for pace in found if pace.scheme in words]
    for pace in found:
        print(table_text(pace_table(pace, None if args.all else SHOWN)))
        print(printable(f"{pace.scheme}: {pace.sentence or 'nothing is known of links and workers'}"))
        for line in precision_lines({pace.scheme: timeline.steps[pace.scheme]}):
            print(printable(line))
        if not pace.are_loads_known:
            print("which server sums what is not known under this scheme, so no link is listed")
    return 0
