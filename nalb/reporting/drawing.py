"""How all figures look: sizes, marks that can be told apart without colour, names as plain text, PNG.

Figures are built as objects, without pyplot: no display, no global state, nothing to close.
"""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

WIDTH_IN = 9.0
DPI = 110
LONGEST_NAME = 24  # characters of a name that a figure shows
FEW = 40  # iterations up to which each gets its own mark
STYLE = {
    "text.parse_math": False,  # names come from files: a dollar sign is a dollar sign
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.88",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
}


@dataclass(frozen=True)
class Look:
    """How one scheme looks in every figure."""

    colour: str  # each of another lightness
    line: str
    marker: str
    hatch: str


LOOKS = (
    Look("#b8b8b8", "-", "o", ""),
    Look("#d98c3f", "--", "s", "////"),
    Look("#1f4e8c", "-", "^", "xxxx"),
    Look("#6aa84f", "-.", "D", "...."),
    Look("#7a1f3d", ":", "v", "\\\\\\\\"),
    Look("#8fb8de", (0, (5, 1, 1, 1)), "P", "++++"),  # type: ignore[arg-type]  # a dash pattern is a line style too
    Look("#2b2b2b", "--", "X", "oo"),
)


def look(index: int) -> Look:
    """The look of the index-th scheme."""
    return LOOKS[index % len(LOOKS)]


def shown(name: str) -> str:
    """A name from a file, fit for a figure: one line, not too long."""
    clean = "".join(c if c.isprintable() else "?" for c in name) or "(no name)"
    if len(clean) > LONGEST_NAME:
        clean = clean[: LONGEST_NAME - 1] + "…"
    return f" {clean}" if clean.startswith("_") else clean  # a leading underscore would hide it from a legend


def grid(count: int, columns: int, panel_height_in: float, head_in: float = 0.7) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels of one kind with common axes; columns are given up where there are fewer panels."""
    columns = max(1, min(columns, count))
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH_IN, rows * panel_height_in + head_in), layout="constrained")
    cells = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes = list(cells.flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    for above in axes[max(0, count - columns) : count]:  # the lowest of each column keeps its numbers
        above.tick_params(labelbottom=True)
    return figure, axes[:count]


def notice(text: str) -> Figure:
    """Stands where a figure cannot be drawn, and says why."""
    figure = Figure(figsize=(WIDTH_IN, 1.4), layout="constrained")
    figure.text(0.5, 0.5, text, ha="center", va="center", color="0.25", wrap=True)
    return figure


def whole_ticks(axes: Axes) -> None:
    """Iterations have no halves."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def png(draw: Callable[[], Figure]) -> bytes:
    """Draw in the common style; the picture's bytes."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in letters that the font lacks: boxes are shown
        buffer = io.BytesIO()
        draw().savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def top(values: Sequence[float], floor: float = 1e-9) -> float:
    """An upper limit of an axis from 0 with some air."""
    return max([floor, *(v for v in values if math.isfinite(v))]) * 1.08
