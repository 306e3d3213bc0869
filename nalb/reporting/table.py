"""Makes tables for terminals: a comparison's, and what sets the pace."""

import math
from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from nalb.errors import printable
from nalb.reporting.pace import Pace, paces
from nalb.reporting.record import Record
from nalb.reporting.run_file import RunFile
from nalb.reporting.summary import Row, notes, summarise

UNEXPLAINED_PART = 0.1  # of an iteration: less is not worth a row

HEADINGS = (  # headings are as narrow as their values, so that rows fit on one line of 100 columns
    "scheme",
    "communi-\ncation s",
    "min - max",
    "x\nbound",
    "x\ngoodput\nbound",
    "speed-\nup",
    "iteration\ns",
    "samples\n/ min",
    "plan\nwait s",
    "link error",
)
TRAINING_HEADINGS = (
    "scheme",
    "iterations",
    "iteration\ns",
    "speed-\nup",
    "exchange\ns",
    "exposed\ns",
    "x goodput\nbound",
    "samples\n/ min",
)


def in_cell(words: str) -> str:
    """Words of a file, such as names, as rich shows them as they are: without markup, and without what would steer a terminal."""
    return escape(printable(words))


def seconds(value_s: float) -> str:
    """A time as text: three decimals, or two digits where it is shorter."""
    return f"{value_s:.3f}" if value_s >= 0.01 or not value_s else f"{value_s:.2g}"


def comparison_table(record: Record) -> Table:
    """Make a row per scheme: median communication time and range, that time over the bounds, speed-up and the rest of Row."""
    run, rows = record.run, summarise(record)
    table = _table(record, rows, HEADINGS)
    for row in rows:
        known = run.schemes[row.scheme].link_error is not None
        table.add_row(
            in_cell(row.scheme),
            f"{row.communication_s:.3f}",
            f"{row.least_s:.2f} - {row.greatest_s:.2f}" if row.counted else "-",
            f"{row.over_bound:.2f}",
            "-" if math.isnan(row.over_goodput_bound) else f"{row.over_goodput_bound:.2f}",
            f"{row.speed_up:.2f}",
            f"{row.iteration_s:.3f}{' *' if row.overlaps else ''}",
            f"{row.samples_per_min:.0f}",
            f"{row.plan_wait_s:.3f}",
            f"{row.link_error:.1%} / {row.link_error_p95:.1%}" if known else "-",
        )
    return table


def training_table(record: Record) -> Table:
    """Make a row per scheme of a comparison of trainings: iterations, their time, what the exchange adds to it, and samples."""
    rows, exposed_s = summarise(record), {pace.scheme: pace.exposed_s for pace in paces(record)}
    table = _table(record, rows, TRAINING_HEADINGS)
    for row in rows:
        table.add_row(
            in_cell(row.scheme),
            str(len(record.run.schemes[row.scheme].iteration_s)),
            f"{row.iteration_s:.3f}{' *' if row.overlaps else ''}",
            f"{row.iteration_speed_up:.2f}",
            f"{row.communication_s:.3f}",
            f"{exposed_s[row.scheme]:.3f}" if row.scheme in exposed_s else "-",
            "-" if math.isnan(row.over_goodput_bound) else f"{row.over_goodput_bound:.2f}",
            "-" if math.isnan(row.samples_per_min) else f"{row.samples_per_min:.0f}",
        )
    return table


def printed_lines(run: RunFile) -> list[str]:
    """A line for each scheme that says what the script printed last under it."""
    told = {name: result.printed for name, result in run.schemes.items() if result.printed is not None}
    return [f"{name}, printed last: {printed}" for name, printed in told.items()]


def _table(record: Record, rows: list[Row], headings: Sequence[str]) -> Table:
    """A table without rows, whose title says what ran where, and whose caption says what looks wrong and is not."""
    run = record.run
    title = f"{run.workload} ({run.model_bytes / 1e6:.1f} MB) on {run.network}, {run.nodes} nodes"
    if run.bound_s is not None:
        title += f"; lossless bound {run.bound_s:.2f} s"
    if run.goodput_bound_s is not None:
        title += f", goodput bound {run.goodput_bound_s:.2f} s"
    title += " at the start" if record.changes else ""
    table = Table(title=in_cell(title), box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for heading in headings:
        is_name = heading == "scheme"
        table.add_column(heading, justify="left" if is_name else "right", overflow="fold", no_wrap=is_name)
    table.caption = "\n".join(map(in_cell, notes(rows, paces(record)))) or None
    table.caption_justify = "left"
    return table


def pace_table(pace: Pace, most: int | None = None) -> Table:
    """Make a row for each thing that an iteration waits for, at most `most`, from what sets the pace downwards."""
    times = map(seconds, (pace.iteration_s, pace.exchange_s, pace.exposed_s))
    title = "{}: an iteration takes {} s, its exchange {} s, of which computing does not hide {} s".format(
        pace.scheme, *times
    )
    title += f" (medians of {pace.iterations}"
    if pace.left_out:
        title += f", of the last of {1 + pace.left_out} jobs"
    elif pace.jobs > 1:
        title += f", of {pace.jobs} jobs"
    title += ")"
    table = Table(title=in_cell(title), box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for heading in ("what", "needs s", "twice as fast:\niteration s", "known by"):
        table.add_column(heading, justify="left" if heading in ("what", "known by") else "right")
    for limit in pace.limits[:most]:
        times = map(seconds, (limit.takes_s, limit.doubled_s))
        table.add_row(in_cell(limit.thing.words), *times, limit.source.value)
    if pace.unexplained_s > UNEXPLAINED_PART * pace.iteration_s:
        why = ": messages wait for each other" if pace.are_loads_known else ""
        table.add_row(f"not explained{why}", seconds(pace.unexplained_s), "", "")
    return table
