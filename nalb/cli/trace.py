"""`nalb trace DIR`: writes a run's timeline for Chrome or Perfetto, and prints the communication that computing does not hide."""

import argparse
from pathlib import Path

import msgspec
from rich.table import Table

from nalb.cli.flags import check_run
from nalb.compare.progress import table_text
from nalb.errors import InputError, as_text
from nalb.reporting.page import replace_file
from nalb.reporting.record import read_timeline, without_iterations
from nalb.reporting.trace import chrome_trace, exposures

FILE = "trace.json"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("run_dir", metavar="DIR", type=Path, help="run directory of `nalb compare` or `nalb launch`")
    parser.add_argument("--force", action="store_true", help="write over a trace that is there")


def main(args: argparse.Namespace) -> int:
    """Write DIR/trace.json and print the table of exposed communication. Raises InputError."""
    check_run(args.run_dir)
    path = args.run_dir / FILE
    if path.exists() and not args.force:
        raise InputError(f"{path} is there already: use --force to write over it")
    record = read_timeline(args.run_dir)
    if not record.has_events and not record.tokens:
        raise without_iterations(args.run_dir, record)
    try:
        replace_file(path, msgspec.json.encode(chrome_trace(record)))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: make room there, or make the directory writable") from None
    table = Table(title="communication that computing does not hide (the worker with most of it, medians)")
    for heading in ("scheme", "iteration s", "communication s", "exposed s", "hidden"):
        table.add_column(heading, justify="left" if heading == "scheme" else "right")
    for row in exposures(record):
        times = (f"{value:.3f}" for value in (row.iteration_s, row.communication_s, row.exposed_s))
        table.add_row(row.scheme, *times, f"{row.hidden_part:.0%}")
    print(table_text(table))
    print(as_text(f"trace: {path} (open it in ui.perfetto.dev, or the Performance panel of Chrome's DevTools)"))
    return 0
