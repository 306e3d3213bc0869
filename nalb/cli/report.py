"""`nalb report DIR`: writes report.html, tokens.html, batching.html and figures/ of a run directory from its files alone.

In a run directory of `nalb compare --parallel` or `--batching`, the folder of each training gets a report of its own.
"""

import argparse
import sys
from pathlib import Path

from nalb.cli.flags import check_run
from nalb.errors import as_text, printable
from nalb.reporting.pace import paces
from nalb.reporting.page import FOLDER, run_dirs, write_report
from nalb.reporting.precisions import precision_lines
from nalb.reporting.record import Record
from nalb.reporting.summary import headline, shared_uplinks, summarise


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("run_dir", metavar="DIR", type=Path, help="a run directory of `nalb compare` or `nalb launch`")
    parser.add_argument("--force", action="store_true", help="write over a report that is there")


def main(args: argparse.Namespace) -> int:
    """Write the reports and print their paths. Raises InputError."""
    check_run(args.run_dir)
    for run_dir in run_dirs(args.run_dir):
        pages = write_report(run_dir, args.force, _show)
        first = pages[0].record
        if isinstance(first, Record):
            print(printable(headline(first, summarise(first), paces(first))))
        for page in pages:
            figures = f"{len(page.figures)} figures in {run_dir / FOLDER}"
            print(as_text(f"report: {run_dir / page.file} (and {figures})"))
        for note in (*precision_lines(first.steps), *shared_uplinks(first)):
            print(printable(note))
    return 0


def _show(name: str) -> None:
    """Print which figure is being drawn, since drawing takes a few seconds."""
    print(f"nalb report: drawing {name}", file=sys.stderr, flush=True)
