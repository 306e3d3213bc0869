"""Makes a comparison's table for terminals."""

import math

from rich import box
from rich.markup import escape
from rich.table import Table

from nalb.reporting.record import Record
from nalb.reporting.summary import summarise

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


def comparison_table(record: Record) -> Table:
    """Make a row per scheme: median communication time and range, that time over the bounds, speed-up and the rest of Row."""
    run = record.run
    at_first = " at the start" if record.changes else ""
    bounds = f"lossless bound {run.bound_s:.2f} s"
    if run.goodput_bound_s is not None:
        bounds += f", goodput bound {run.goodput_bound_s:.2f} s"
    title = f"{run.workload} ({run.model_bytes / 1e6:.1f} MB) on {run.network}, {run.nodes} nodes; {bounds}{at_first}"
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for heading in HEADINGS:
        is_name = heading == "scheme"
        table.add_column(heading, justify="left" if is_name else "right", overflow="fold", no_wrap=is_name)
    for row in summarise(record):
        known = run.schemes[row.scheme].link_error is not None
        table.add_row(
            escape(row.scheme),
            f"{row.communication_s:.3f}",
            f"{row.least_s:.2f} - {row.greatest_s:.2f}" if row.counted else "-",
            f"{row.over_bound:.2f}",
            "-" if math.isnan(row.over_goodput_bound) else f"{row.over_goodput_bound:.2f}",
            f"{row.speed_up:.2f}",
            f"{row.iteration_s:.3f}",
            f"{row.samples_per_min:.0f}",
            f"{row.plan_wait_s:.3f}",
            f"{row.link_error:.1%} / {row.link_error_p95:.1%}" if known else "-",
        )
    return table
