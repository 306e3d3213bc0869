"""Figures and numbers of batches: the samples of each worker, and how long it computed them."""

from dataclasses import dataclass
from math import nan
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nalb.reporting.drawing import WIDTH_IN, look, shown, top, whole_ticks
from nalb.reporting.record import Timeline


@dataclass(frozen=True)
class BatchRow:
    """One worker's row: sizes in samples; times and CPU share are medians over the later half of its iterations."""

    worker: str
    first_size: int
    last_size: int
    first_s: float  # computing in the first iteration
    compute_s: float
    wait_s: float
    cpu_share: float


def batch_rows(timeline: Timeline) -> list[BatchRow]:
    """The workers' rows, in the order in which they were first named."""
    rows = []
    for name in _workers(timeline):
        own = [(event, event.workers.index(name)) for event in timeline.batches if name in event.workers]
        (first, first_rank), (last, last_rank), later = own[0], own[-1], own[len(own) // 2 :]
        rows.append(
            BatchRow(
                name,
                first.sizes[first_rank],
                last.sizes[last_rank],
                first.compute_s[first_rank],
                median(event.compute_s[rank] for event, rank in later),
                median(event.wait_s[rank] for event, rank in later),
                median(event.cpu_share[rank] for event, rank in later),
            )
        )
    return rows


def _workers(timeline: Timeline) -> list[str]:
    """The workers of all jobs, in the order in which they were first named."""
    return list(dict.fromkeys(name for event in timeline.batches for name in event.workers))


def batches_over_run(timeline: Timeline) -> Figure:
    """Draw each worker's batch size and computing time over the iterations."""
    figure = Figure(figsize=(WIDTH_IN, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    workers = _workers(timeline)
    for axes, field in ((above, "sizes"), (below, "compute_s")):
        told = [dict(zip(event.workers, getattr(event, field), strict=True)) for event in timeline.batches]
        _lines(axes, [[one.get(name, nan) for one in told] for name in workers], workers)
    above.set(ylabel="samples of a batch")
    below.set(ylabel="computing (s)", xlabel="iteration")
    whole_ticks(below)
    figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=7)
    return figure


def _lines(axes: Axes, series: list[list[float]], workers: list[str]) -> None:
    for rank, values in enumerate(series):
        style = look(rank)
        axes.plot(values, color=style.colour, linestyle=style.line, linewidth=1.5, label=shown(workers[rank]))
    axes.set_ylim(0, top([value for values in series for value in values]))
