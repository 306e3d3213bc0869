"""The comparison as a table for terminals."""

from rich.markup import escape
from rich.table import Table

from nalb.reporting.run_file import RunFile, median_s, ratio, steady


def comparison_table(run: RunFile) -> Table:
    """One row per scheme: median communication time with its spread, over the bound, and against the first scheme."""
    title = (
        f"{run.workload} ({run.model_bytes / 1e6:.1f} MB) on {run.network}, {run.nodes} nodes; "
        f"lossless bound {run.bound_s:.2f} s"
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
        table.add_column(heading, justify="left" if heading == "scheme" else "right")
    first = median_s(next(iter(run.schemes.values())).communication_s) if run.schemes else 0.0
    for name, result in run.schemes.items():
        values = steady(result.communication_s)
        middle = median_s(result.communication_s)
        error = f"{result.link_error.median:.1%} / {result.link_error.p95:.1%}" if result.link_error else "-"
        table.add_row(
            escape(name),
            f"{middle:.3f}",
            f"{min(values):.2f} - {max(values):.2f}" if values else "-",
            f"{ratio(middle, run.bound_s):.2f}",
            f"{ratio(first, middle):.2f}",
            f"{median_s(result.iteration_s):.3f}",
            f"{result.samples_per_min:.0f}",
            f"{median_s(result.plan_wait_s):.3f}",
            error,
        )
    return table
