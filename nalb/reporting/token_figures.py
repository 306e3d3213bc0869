"""Figures and numbers of tokens: which worker computed which tokens and when, the help between workers, and fetched bytes."""

import statistics
from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from nalb.events import TokenRow, TokensEvent, TokenShapeEvent
from nalb.reporting.drawing import WIDTH_IN, notice, shown, top, whole_ticks
from nalb.reporting.record import Timeline, TokenTimes

NOT_LISTED = "samples.jsonl lists the tokens of no iteration: there is nothing to draw over time."
NAMED = 80  # up to this many tokens in an iteration each bears its name
LIGHTEST, DARKEST = 0.9, 0.35  # the greys of the first and the last sub-model
INPUTS, STEP = "#8fb8de", "0.55"  # the colours of waits for inputs and for the model's step
HELPED, OWN = "#c03018", "0.2"  # the colours of edges: tokens from another worker's bucket, and own tokens
MOST_NAMED = 3  # the table names at most this many workers whom a worker helped


@dataclass(frozen=True)
class WorkerRow:
    """One worker's totals over the whole run. helped_whom counts only the iterations whose tokens are listed."""

    worker: str
    tokens: int
    helped: int
    helped_whom: str
    compute_s: float
    fetch_s: float
    fetched_bytes: int


def worker_rows(timeline: Timeline) -> list[WorkerRow]:
    """The workers' rows, by rank."""
    events = timeline.tokens
    if not events:
        return []
    whom: dict[int, Counter[int]] = {}
    for event in events:
        for row in event.rows or ():
            if row.owner != row.worker:
                whom.setdefault(row.worker, Counter())[row.owner] += 1
    names = events[-1].workers
    return [
        WorkerRow(
            name,
            sum(event.tokens[rank] for event in events),
            sum(event.helped[rank] for event in events),
            ", ".join(f"{names[owner]} ({n})" for owner, n in whom.get(rank, Counter()).most_common(MOST_NAMED)),
            sum(event.compute_s[rank] for event in events),
            sum(event.fetch_s[rank] for event in events),
            sum(event.fetched_bytes[rank] for event in events),
        )
        for rank, name in enumerate(names)
    ]


def representative(timeline: Timeline) -> TokensEvent | None:
    """The iteration of median length among those that list their tokens and have the last listed shape; None if none lists any."""
    listed = [event for event in timeline.tokens if event.rows]
    if not listed:
        return None
    last = max((one.iteration for one in timeline.shapes if one.iteration <= listed[-1].iteration), default=0)
    listed = [event for event in listed if event.iteration >= last]
    return sorted(listed, key=lambda event: (event.iteration_s, event.iteration))[(len(listed) - 1) // 2]


def tokens_over_time(timeline: Timeline) -> Figure:
    """Draw the representative iteration: a row per worker, a bar per token."""
    event = representative(timeline)
    if event is None or not event.rows:
        return notice(NOT_LISTED)
    sub_models = 1 + max(_sub_model(row.level) for row in event.rows)
    figure = Figure(figsize=(WIDTH_IN, 0.42 * len(event.workers) + 1.8), layout="constrained")
    axes = figure.subplots()
    for row in event.rows:
        _bar(axes, row, sub_models, is_named=len(event.rows) <= NAMED)
    axes.set_yticks(range(len(event.workers)), [shown(name) for name in event.workers])
    axes.set(ylim=(len(event.workers) - 0.4, -0.6), xlim=(0, top([event.iteration_s])))
    axes.set(xlabel=f"time since iteration {event.iteration} began (s)")
    axes.grid(visible=False, axis="y")
    handles = [
        Patch(facecolor=_grey(one, sub_models), edgecolor="0.2", label=f"sub-model {one + 1}")
        for one in range(sub_models)
    ]
    handles += [
        Patch(facecolor="white", edgecolor="0.2", hatch="////", label="backward"),
        Patch(facecolor="white", edgecolor=HELPED, linewidth=1.6, label="another worker's"),
        Patch(facecolor=INPUTS, label="waits for inputs"),
        Patch(facecolor=STEP, label="waits for a step"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)))
    return figure


def _bar(axes: Axes, row: TokenRow, sub_models: int, is_named: bool) -> None:
    """Draw a token: the wait for its inputs, the wait for the model's last step, and its computing."""
    given_s, inputs_s, start_s, done_s = TokenTimes.of(row)
    axes.barh(row.worker, inputs_s - given_s, 0.3, left=given_s, color=INPUTS)
    axes.barh(row.worker, start_s - inputs_s, 0.1, left=inputs_s, color=STEP)
    width_s = done_s - start_s
    sub_model = _sub_model(row.level)
    axes.barh(
        row.worker,
        width_s,
        0.7,
        left=start_s,
        facecolor=_grey(sub_model, sub_models),
        hatch="////" if row.level.startswith("B") else "",
        edgecolor=OWN if row.owner == row.worker else HELPED,
        linewidth=0.5 if row.owner == row.worker else 1.6,
    )
    if is_named:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8}
        axes.text(start_s + width_s / 2, row.worker, row.level, ha="center", va="center", fontsize=7, bbox=box)


def _sub_model(level: str) -> int:
    """The number of a level's sub-model, counted from 0. record.py has checked the level."""
    return int(level.lstrip("FB")) - 1


def _grey(sub_model: int, sub_models: int) -> str:
    return f"{LIGHTEST - (LIGHTEST - DARKEST) * sub_model / max(1, sub_models - 1):.3f}"


def tokens_over_run(timeline: Timeline) -> Figure:
    """Draw each iteration's time with the changes of shape, and each worker's part of the computed and helped tokens."""
    events = timeline.tokens
    if not events:
        return notice("samples.jsonl has no tokens.")
    names, numbers = events[-1].workers, [event.iteration for event in events]
    height_in = 0.26 * len(names) + 0.5
    figure = Figure(figsize=(WIDTH_IN, 2.2 + 2 * height_in + 0.8), layout="constrained")
    ratios = [2.2, height_in, height_in]
    above, computed, helped = figure.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": ratios})
    above.plot(numbers, [event.iteration_s for event in events], color="0.15", linewidth=1.4)
    above.set(ylabel="iteration (s)", ylim=(0, top([event.iteration_s for event in events])))
    for shape in timeline.shapes:
        above.axvline(shape.iteration - 0.5, color="0.45", linestyle=":", linewidth=1.1)
    all_tokens = np.maximum(1, [sum(event.tokens) for event in events])
    for axes, title, counts in (
        (computed, "tokens that the worker computed", [event.tokens for event in events]),
        (helped, "of them, from others' buckets", [event.helped for event in events]),
    ):
        part = np.array(counts, dtype=np.float64).T / all_tokens * 100
        edges = (numbers[0] - 0.5, numbers[-1] + 0.5, len(names) - 0.5, -0.5)
        darkest = max(200 / len(names), 1.0)
        image = axes.imshow(
            part, aspect="auto", cmap="Greys", vmin=0, vmax=darkest, extent=edges, interpolation="nearest"
        )
        axes.set_yticks(range(len(names)), [shown(name) for name in names])
        axes.set_title(title, loc="left", fontweight="bold")
        axes.grid(visible=False)
    figure.colorbar(image, ax=[computed, helped], label="part of the iteration's tokens (%)", aspect=20, pad=0.01)
    helped.set_xlabel("iteration (dotted: another shape)")
    whole_ticks(helped)
    return figure


@dataclass(frozen=True)
class ShapeRow:
    """The shape of the iterations from `iteration` on, until the next shape."""

    iteration: int
    parallel: str
    weights: str
    members: int  # the number of workers that compute the last sub-model
    chunks: int
    iteration_s: float  # the median time of the iterations with this shape; NaN where there is none
    reason: str


def shape_rows(timeline: Timeline) -> list[ShapeRow]:
    """The rows of all shapes, in the order in which they were used."""
    ends = [shape.iteration for shape in timeline.shapes[1:]] + [1 << 63]
    return [_shape_row(shape, end, timeline) for shape, end in zip(timeline.shapes, ends, strict=False)]


def _shape_row(shape: TokenShapeEvent, end: int, timeline: Timeline) -> ShapeRow:
    times_s = [event.iteration_s for event in timeline.tokens if shape.iteration <= event.iteration < end]
    return ShapeRow(
        shape.iteration,
        shape.parallel,
        ", ".join(map(str, shape.weights)),
        len(shape.eligible[-1]) if shape.eligible else 0,
        shape.chunks,
        statistics.median(times_s) if times_s else float("nan"),
        shape.reason,
    )
