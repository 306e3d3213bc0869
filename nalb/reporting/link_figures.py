"""Draws figures of links: measured and configured rates over the run, and the throughput inside one iteration."""

import statistics
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from nalb.events import Row
from nalb.reporting.drawing import grid, notice, shown, top, whole_ticks
from nalb.reporting.record import Record, Step, rate
from nalb.reporting.run_file import WARM_UP
from nalb.schemes import AUTO, SCHEMES
from nalb.units import GOODPUT_PART, bytes_per_s_to_mbps

HOPED_FROM = 1.001  # times the proven rate: plans hope for more
BINS = 60  # parts of the iteration over each of which the throughput is averaged
NO_SAMPLES = (
    "samples.jsonl has no samples of messages. Only measuring schemes (elastic, aware, exact, oracle) send the\n"
    "forecasts that time a message; stock, p3 and average do not."
)
Floats = npt.NDArray[np.float64]


def _mbps(rates: list[float | None]) -> list[float]:
    return [np.nan if value is None else bytes_per_s_to_mbps(value) for value in rates]


def rates_over_run(record: Record, direction: str) -> Figure:
    """Draw a panel per node: its measured rate in each measured iteration, with the configured rate and that rate's goodput.

    direction: "up" or "down".
    """
    steps = [step for step in record.ordered() if step.event.measured]
    known = [rate(step.event.estimate, direction, node) for step in steps for node in record.nodes]
    if not any(value is not None for value in known):
        return notice(f"No measured {direction}link rates in samples.jsonl.\n{NO_SAMPLES}")
    figure, panels = grid(len(record.nodes), 3 if len(record.nodes) != 4 else 2, 1.6)
    highest = [0.0]
    for axes, node in zip(panels, record.nodes, strict=True):
        hoped = _mbps([rate(step.event.estimate, direction, node) for step in steps])
        measured = _mbps([_proven(step, direction, node) for step in steps])
        configured = _mbps([rate(step.event.configured, direction, node) for step in steps])
        _rate_panel(axes, measured, hoped, configured, [step.saturated(direction, node) for step in steps])
        axes.set_title(shown(node), loc="left", fontweight="bold")
        _mark_schemes(axes, [step.event.scheme for step in steps])
        highest += measured + configured
    panels[0].set(xlim=(-0.5, len(steps) - 0.5), ylim=(0, top(highest)))
    whole_ticks(panels[0])
    handles = [
        Patch(facecolor="0.9", edgecolor="0.55", label="configured"),
        Line2D([], [], color="0.35", linestyle=(0, (5, 2)), label="its goodput (1448/1514)"),
        Line2D([], [], color="black", marker="o", markersize=4, label="measured, link saturated"),
        Line2D(
            [], [], color="black", marker="o", markersize=4, markerfacecolor="white", label="measured, not saturated"
        ),
        Line2D([], [], color="0.45", linestyle="", marker="_", label="hoped for by plans"),
    ]
    order = list(dict.fromkeys(shown(step.event.scheme).strip() for step in steps))
    figure.supxlabel(f"measured iteration of the run (in turn, between light lines: {', '.join(order)})", fontsize=9)
    figure.supylabel(f"{direction}link rate (Mbit/s)", fontsize=9.5)
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


def _proven(step: Step, direction: str, node: str) -> float | None:
    """The rate that the iteration proved at least, bytes per second; the estimate where the record does not tell."""
    least = rate(step.event.least, direction, node)
    return rate(step.event.estimate, direction, node) if least is None else least


def _rate_panel(
    axes: Axes, measured: list[float], hoped: list[float], configured: list[float], saturated: list[bool]
) -> None:
    edges = np.arange(len(measured) + 1) - 0.5
    if np.isfinite(configured).any():
        axes.stairs(configured, edges, fill=True, facecolor="0.92", edgecolor="none")
        axes.stairs(configured, edges, color="0.55", baseline=None)
        goodput = [GOODPUT_PART * value for value in configured]
        axes.stairs(goodput, edges, color="0.35", linestyle=(0, (5, 2)), baseline=None)
    else:
        axes.text(0.98, 0.04, "configured rate not known", transform=axes.transAxes, ha="right", fontsize=8)
    axes.plot(measured, color="black", linewidth=0.9)
    above = [(k, value) for k, value in enumerate(hoped) if value > HOPED_FROM * measured[k]]
    if above:
        axes.plot(*zip(*above, strict=True), linestyle="", marker="_", markersize=5, color="0.45")
    size = 4 if len(measured) <= 60 else 2.5
    for full in (True, False):
        chosen = [k for k, flag in enumerate(saturated) if flag == full]
        face = "black" if full else "white"
        axes.plot(chosen, [measured[k] for k in chosen], "o", color="black", markerfacecolor=face, markersize=size)


def _mark_schemes(axes: Axes, schemes: list[str]) -> None:
    """Draw light lines between iterations of different schemes."""
    for place, (before, after) in enumerate(pairwise(schemes)):
        if before != after:
            axes.axvline(place + 0.5, color="0.75", linewidth=0.8)


def representative(record: Record) -> tuple[str, int, Step] | None:
    """The iteration of a measured scheme whose time is nearest to the scheme's median, as (scheme, number, step); None if no
    scheme was measured."""
    measured = [name for name in record.run.schemes if any(step.rows for step in record.steps.get(name, []))]
    if not measured:
        return None
    scheme = min(measured, key=_interest)
    steps = [(number, step) for number, step in enumerate(record.steps[scheme]) if step.rows]
    steps = [pair for pair in steps if pair[0] >= WARM_UP] or steps
    middle_s = statistics.median(step.communication_s for _, step in steps)
    number, step = min(steps, key=lambda pair: (abs(pair[1].communication_s - middle_s), pair[0]))
    return scheme, number, step


def _interest(scheme: str) -> int:
    """The order in which schemes are chosen to be shown: nalb's default first, then others that follow estimates."""
    record = SCHEMES.get(scheme)
    if record is None:
        return 2
    return 0 if record == SCHEMES[AUTO] else 2 - record.follows_estimates


def binned_rates(rows: Iterable[Row], nodes: int, edges_us: Floats) -> tuple[Floats, Floats]:
    """(up, down) throughput in bytes per second, each of shape (nodes, bins); messages are spread evenly over their transfer.

    A message counts as up at its source and as down at its target; a message within a node does not count. The sum over the
    bins, times their width, equals the bytes that the rows carried between the edges.
    """
    up, down = np.zeros((nodes, len(edges_us) - 1)), np.zeros((nodes, len(edges_us) - 1))
    for source, target, _, size_bytes, start_us, end_us in rows:
        if source == target:
            continue
        last_us = max(end_us, start_us + 1)  # 1 us for a message that had arrived before
        overlap_us = np.minimum(edges_us[1:], last_us) - np.maximum(edges_us[:-1], start_us)
        carried = size_bytes * np.clip(overlap_us, 0, None) / (last_us - start_us)
        up[source] += carried
        down[target] += carried
    widths_s = np.diff(edges_us) / 1e6
    return up / widths_s, down / widths_s


def throughput_inside(record: Record) -> Figure:
    """Draw a panel per node: its sent and received throughput over time inside the representative iteration."""
    chosen = representative(record)
    if chosen is None:
        return notice(NO_SAMPLES)
    scheme, number, step = chosen
    rows = list(step.rows)
    first_us, last_us = min(row[4] for row in rows), max(max(row[5], row[4] + 1) for row in rows)
    edges_us = np.linspace(first_us, last_us, BINS + 1)
    up, down = binned_rates(rows, len(step.nodes), edges_us)
    figure, panels = grid(len(step.nodes), 3 if len(step.nodes) != 4 else 2, 1.6)
    edges_s = (edges_us - first_us) / 1e6
    highest = [0.0]
    for index, (axes, node) in enumerate(zip(panels, step.nodes, strict=True)):
        sent, received = bytes_per_s_to_mbps(1) * up[index], bytes_per_s_to_mbps(1) * down[index]
        axes.stairs(sent, edges_s, fill=True, facecolor="0.82", edgecolor="none")
        axes.stairs(sent, edges_s, color="0.45", linewidth=0.8)
        axes.stairs(received, edges_s, color="black", linewidth=1.1)
        limits = _mbps([rate(step.event.configured, direction, node) for direction in ("up", "down")])
        for limit, line in zip(limits, ("--", ":"), strict=True):
            if np.isfinite(limit):
                axes.axhline(GOODPUT_PART * limit, color="0.3", linestyle=line, linewidth=1)
        axes.set_title(shown(node), loc="left", fontweight="bold")
        # messages that had waited and are read together make peaks above any link's rate, which must not set the scale
        highest += [*limits, float(np.quantile([sent, received], 0.97))]
    panels[0].set(xlim=(0, edges_s[-1]), ylim=(0, 1.1 * top(highest)))
    handles = [
        Patch(facecolor="0.82", edgecolor="0.45", label="sent"),
        Line2D([], [], color="black", label="received"),
        Line2D([], [], color="0.3", linestyle="--", label="goodput of the uplink"),
        Line2D([], [], color="0.3", linestyle=":", label="goodput of the downlink"),
    ]
    figure.supxlabel(f"time since the first message (s), {shown(scheme).strip()}, iteration {number}", fontsize=9.5)
    figure.supylabel("throughput (Mbit/s)", fontsize=9.5)
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure
