"""The comparison as a table for terminals."""

from rich.markup import escape
from rich.table import Table

from nalb.reporting.record import Record
from nalb.reporting.summary import summarise


def comparison_table(record: Record) -> Table:
    """One row per scheme: median communication time with its spread, over the bound of the time, and against the first scheme."""
    run = record.run
    at_first = " at the start" if record.changes else ""
    title = (
        f"{run.workload} ({run.model_bytes / 1e6:.1f} MB) on {run.network}, {run.nodes} nodes; "
        f"lossless bound {run.bound_s:.2f} s{at_first}"
    )
    table = Table(title=escape(title))
    for heading in (
        "scheme",
        "communication s",
        "min - max",
        "x bound",
        "speed-up",
        "iteration s",
        "samples/min",
        "plan wait s",
        "link error",
    ):
        is_name = heading == "scheme"
        table.add_column(heading, justify="left" if is_name else "right", overflow="fold", no_wrap=is_name)
    for row in summarise(record):
        known = run.schemes[row.scheme].link_error is not None
        table.add_row(
            escape(row.scheme),
            f"{row.communication_s:.3f}",
            f"{row.least_s:.2f} - {row.greatest_s:.2f}" if row.counted else "-",
            f"{row.over_bound:.2f}",
            f"{row.speed_up:.2f}",
            f"{row.iteration_s:.3f}",
            f"{row.samples_per_min:.0f}",
            f"{row.plan_wait_s:.3f}",
            f"{row.link_error:.1%} / {row.link_error_p95:.1%}" if known else "-",
        )
    return table
