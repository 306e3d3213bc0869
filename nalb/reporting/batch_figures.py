"""Figures and numbers of batches: the samples of each worker, and how long it computed them."""

from dataclasses import dataclass
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nalb.reporting.drawing import WIDTH_IN, look, shown, top, whole_ticks
from nalb.reporting.record import Timeline


@dataclass(frozen=True)
class BatchRow:
    """One worker's row: sizes in samples; times and CPU share are medians over the later half of the iterations."""

    worker: str
    first_size: int
    last_size: int
    first_s: float  # computing in the first iteration
    compute_s: float
    wait_s: float
    cpu_share: float


def batch_rows(timeline: Timeline) -> list[BatchRow]:
    """The workers' rows, by rank."""
    events = timeline.batches
    later = events[len(events) // 2 :]
    return [
        BatchRow(
            name,
            events[0].sizes[rank],
            events[-1].sizes[rank],
            events[0].compute_s[rank],
            median(event.compute_s[rank] for event in later),
            median(event.wait_s[rank] for event in later),
            median(event.cpu_share[rank] for event in later),
        )
        for rank, name in enumerate(events[-1].workers if events else ())
    ]


def batches_over_run(timeline: Timeline) -> Figure:
    """Draw each worker's batch size and computing time over the iterations."""
    figure = Figure(figsize=(WIDTH_IN, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    events = timeline.batches
    workers = events[-1].workers
    _lines(above, [[event.sizes[rank] for event in events] for rank in range(len(workers))], workers)
    _lines(below, [[event.compute_s[rank] for event in events] for rank in range(len(workers))], workers)
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
