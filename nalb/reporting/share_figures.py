"""Draws figures of the bytes that each server sums: by scheme, and over the iterations."""

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nalb.reporting.drawing import WIDTH_IN, look, notice, shown, top, whole_ticks
from nalb.reporting.record import Record, Step

MISSING = "samples.jsonl has no shares of servers: MXNet's own schemes (stock, p3) route by themselves and report none."
CHANGED = "; dotted: network changed"
NUMBERED = 14  # up to this many iterations each share is printed as a number


def _shares(step: Step, nodes: list[str]) -> list[float]:
    """The bytes that each node's server sums, in node order; NaN where the event has none for the node."""
    return [np.nan if (value := step.event.shares.get(node)) is None else value for node in nodes]


def _told(record: Record) -> dict[str, list[list[float]]]:
    """The shares, by iteration and node, of each scheme that reports shares."""
    table = {name: [_shares(step, record.nodes) for step in record.steps.get(name, [])] for name in record.run.schemes}
    return {name: rows for name, rows in table.items() if rows and np.isfinite(rows).any()}


def bytes_by_scheme(record: Record) -> Figure:
    """Draw a bar per server and scheme: the median share, with the least and the greatest."""
    told = _told(record)
    if not told:
        return notice(MISSING)
    names = list(record.run.schemes)
    figure = Figure(figsize=(WIDTH_IN, 4.0), layout="constrained")
    axes = figure.subplots()
    width, greatest = 0.84 / len(told), 0.0
    for place, (name, all_rows) in enumerate(told.items()):
        # the framework routes some iterations itself
        planned = [row for row in record.run.schemes[name].steady(all_rows) if np.isfinite(row).any()]
        rows = np.array(planned or [row for row in all_rows if np.isfinite(row).any()]) / 1e6
        columns = [column[np.isfinite(column)] for column in rows.T]  # a node may have left, or come later
        middle, low, high = (
            np.array([of(column) if column.size else np.nan for column in columns])
            for of in (np.median, np.min, np.max)
        )
        style = look(names.index(name))
        axes.bar(
            np.arange(len(record.nodes)) + (place - (len(told) - 1) / 2) * width,
            middle,
            width,
            yerr=[middle - low, high - middle],
            error_kw={"elinewidth": 1, "capsize": 2},
            color=style.colour,
            hatch=style.hatch,
            edgecolor="0.15",
            linewidth=0.6,
            label=shown(name),
        )
        greatest = max(greatest, float(np.nanmax(high, initial=0.0)))
    slanted = len(record.nodes) > 8 or max(map(len, record.nodes)) > 8
    axes.set_xticks(range(len(record.nodes)), [shown(node) for node in record.nodes], rotation=30 if slanted else 0)
    axes.set(xlabel="server (node)", ylabel="bytes summed per iteration (MB)", ylim=(0, top([greatest])))
    axes.grid(visible=False, axis="x")
    figure.legend(loc="outside upper center", ncols=7)
    silent = [shown(name).strip() for name in names if name not in told]
    if silent:
        figure.supxlabel(f"not shown, reports no shares: {', '.join(silent)}", fontsize=8.5, color="0.3")
    return figure


def shares_over_iterations(record: Record) -> Figure:
    """Draw a map per scheme: a row per node, a column per iteration, darker for a larger part of the model."""
    told = _told(record)
    if not told:
        return notice(MISSING)
    panels, longest = len(told), max(len(rows) for rows in told.values())
    row_in = 0.23 if len(record.nodes) > 4 else 0.3
    figure = Figure(figsize=(WIDTH_IN, panels * (row_in * len(record.nodes) + 0.45) + 0.9), layout="constrained")
    cells = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    parts = {name: _parts(np.array(rows)) for name, rows in told.items()}
    equal = 100 / len(
        record.servers or record.nodes
    )  # the equal share of the model, in %; it is drawn well below black, so that larger and smaller shares both show
    darkest = min(100.0, max(2.2 * equal, *(float(np.nanmax(part)) for part in parts.values())))
    for axes, (name, part) in zip(cells, parts.items(), strict=True):
        image = axes.imshow(part, aspect="auto", cmap="Greys", vmin=0, vmax=darkest, interpolation="nearest")
        axes.set_title(shown(name), loc="left", fontweight="bold")
        axes.set_yticks(range(len(record.nodes)), [shown(node) for node in record.nodes])
        axes.grid(visible=False)
        for place in record.change_places(name):
            axes.axvline(place - 0.5, color="white", linewidth=2.4)
            axes.axvline(place - 0.5, color="black", linestyle=":", linewidth=1.3)
        if longest <= NUMBERED:
            _write_numbers(axes, part, darkest)
    cells[-1].set(
        xlabel=f"iteration of the scheme (equal shares: {equal:.3g} %{CHANGED if record.changes else ''})",
        xlim=(-0.5, longest - 0.5),
    )
    whole_ticks(cells[-1])
    figure.colorbar(image, ax=list(cells), label="part of the model summed by the node (%)", aspect=30, pad=0.01)
    return figure


def _parts(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The part of each iteration's bytes that each node sums in %, a row per node; NaN where the framework routes them itself."""
    whole = rows.sum(axis=1, where=np.isfinite(rows))
    return np.asarray((rows / np.where(whole > 0, whole, np.nan)[:, None]).T * 100)


def _write_numbers(axes: Axes, part: npt.NDArray[np.float64], darkest: float) -> None:
    for (node, number), value in np.ndenumerate(part):
        if np.isfinite(value):
            colour = "white" if value > 0.55 * darkest else "black"
            axes.text(number, node, f"{value:.0f}", ha="center", va="center", fontsize=8, color=colour)
