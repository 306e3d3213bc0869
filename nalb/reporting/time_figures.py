"""Draws figures of the iterations' times: by scheme, and one after another."""

import statistics
from itertools import accumulate, pairwise

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from nalb.reporting.drawing import FEW, WIDTH_IN, grid, look, notice, shown, top, whole_ticks
from nalb.reporting.record import Record
from nalb.reporting.run_file import WARM_UP

BOUND = {"color": "black", "linestyle": (0, (6, 2)), "linewidth": 1.3}
CHANGE = {"color": "0.45", "linestyle": ":", "linewidth": 1.1}


def times_by_scheme(record: Record) -> Figure:
    """Draw the communication and iteration times of each scheme as boxes over the iterations after the warm-up, with the bound."""
    schemes = record.run.schemes
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _boxes(left, record, [result.steady(result.communication_s) for result in schemes.values()])
    _boxes(right, record, [result.steady(result.iteration_s) for result in schemes.values()])
    left.set(title="communication: first push to last pull", ylabel="time of an iteration (s)")
    right.set(title="whole iteration", ylabel="time of an iteration (s)")
    handles = [
        Line2D([], [], color="black", linewidth=2, label="median"),
        Patch(facecolor="0.8", edgecolor="0.2", label="middle half"),
        Line2D([], [], color="0.2", linewidth=1, label="min to max"),
        Line2D([], [], color="0.2", marker="o", linestyle="", markersize=3, label="one iteration"),
        Line2D([], [], **BOUND, label="bound on communication"),  # type: ignore[arg-type]
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    return figure


def _boxes(axes: Axes, record: Record, series: list[list[float]]) -> None:
    names, results = list(record.run.schemes), record.run.schemes
    for index, values in enumerate(series):
        if not values:
            axes.text(index, 0, "no iterations", rotation=90, ha="center", va="bottom")
            continue
        box = axes.boxplot(
            [values],
            positions=[index],
            widths=0.55,
            whis=(0, 100),
            showfliers=False,
            patch_artist=True,
            medianprops={"color": "black", "linewidth": 2},
            manage_ticks=False,
        )
        box["boxes"][0].set(facecolor=look(index).colour, edgecolor="0.2", hatch=look(index).hatch, alpha=0.55)
        spread = [index + 0.34 + 0.05 * (k % 3) for k in range(len(values))]
        axes.plot(spread, values, "o", color="0.2", markersize=2.6, alpha=0.7)
        axes.annotate(
            f"{statistics.median(values):.3g}",
            (index, max(values)),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
        )
    bounds = [results[name].steady(record.bounds_s(name)) or [record.run.known_bound_s] for name in names]
    for index, own in enumerate(bounds):  # schemes with other precisions have other bounds
        ends = index - 0.4, index + 0.4
        if max(own) > min(own):
            axes.fill_between(ends, min(own), max(own), color="0.9", zorder=0)
        axes.plot(ends, [statistics.median(own)] * 2, **BOUND)  # type: ignore[arg-type]
    slanted = len(names) > 5 or max(map(len, names)) > 9
    axes.set_xticks(range(len(names)), [shown(name) for name in names], rotation=30 if slanted else 0)
    axes.set_xlim(-0.6, len(names) - 0.3)
    axes.set_ylim(0, 1.04 * top([value for values in (*bounds, *series) for value in values]))
    axes.grid(visible=False, axis="x")


def times_over_iterations(record: Record) -> Figure:
    """Draw a panel per scheme: each iteration's communication time, the bound that held for it, and the network's changes."""
    schemes = record.run.schemes
    if not any(result.communication_s for result in schemes.values()):
        return notice("run.json has no iterations: nothing to draw.")
    figure, panels = grid(len(schemes), 1 if len(schemes) <= 3 else 2, 1.75)
    first = next(iter(schemes))
    reference_s = schemes[first].median_s(schemes[first].communication_s)
    highest = 0.0
    for index, (axes, (name, result)) in enumerate(zip(panels, schemes.items(), strict=True)):
        values, bounds = result.communication_s, record.bounds_s(name)
        numbers = range(len(values))
        ends = list(accumulate(result.rounds or [len(values)]))
        for low, high in pairwise([0, *ends]):
            if high - low > WARM_UP:
                axes.axvspan(low - 0.5, low + WARM_UP - 0.5, color="0.94", zorder=0)
        axes.axhline(reference_s, color="0.6", linewidth=1)
        axes.step([n - 0.5 for n in (*numbers, len(values))], [*bounds, *bounds[-1:]] or [0.0], where="post", **BOUND)
        marker = look(index).marker if len(values) <= FEW else ""
        axes.plot(numbers, values, marker=marker, markersize=4.5, color="0.15", linewidth=1.4)
        for place in record.change_places(name):
            axes.axvline(place - 0.5, **CHANGE)  # type: ignore[arg-type]
        axes.set_title(shown(name), loc="left", fontweight="bold")
        highest = max([highest, *values, *bounds])
    longest = max(len(result.communication_s) for result in schemes.values())
    panels[0].set(xlim=(-0.5, longest - 0.5), ylim=(0, top([highest])))
    whole_ticks(panels[0])
    handles: list[Artist] = [
        Line2D([], [], color="0.15", linewidth=1.4, label="slowest worker"),
        Line2D([], [], **BOUND, label="lossless bound"),  # type: ignore[arg-type]
        Line2D([], [], color="0.6", label=f"median of {shown(first).strip()}"),
        Patch(color="0.94", label="warm-up, not counted"),
    ]
    if record.changes:
        handles.append(Line2D([], [], **CHANGE, label="network changed"))  # type: ignore[arg-type]
    figure.supxlabel("iteration of the scheme", fontsize=9.5)
    figure.supylabel("communication time (s)", fontsize=9.5)
    figure.legend(handles=handles, loc="outside upper center", ncols=4 if len(handles) == 4 else 3)
    return figure
