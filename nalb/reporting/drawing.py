"""The common style of all figures: sizes, marks that differ also without colour, names as plain text, PNG.

Figures are built as objects, without pyplot, so they need no display and no global state, and nothing has to be closed.
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
LONGEST_NAME = 24  # a figure shows at most this many characters of a name
FEW = 40  # up to this many iterations each gets a mark of its own
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
    """The look of one scheme in every figure."""

    colour: str  # the colours of LOOKS differ in lightness
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
    """The look of the index-th scheme; the looks repeat after the last."""
    return LOOKS[index % len(LOOKS)]


def shown(name: str) -> str:
    """A name from a file made fit for a figure: printable, on one line, at most LONGEST_NAME characters."""
    clean = "".join(c if c.isprintable() else "?" for c in name) or "(no name)"
    if len(clean) > LONGEST_NAME:
        clean = clean[: LONGEST_NAME - 1] + "…"
    return f" {clean}" if clean.startswith("_") else clean  # a leading underscore would hide it from a legend


def grid(count: int, columns: int, panel_height_in: float, head_in: float = 0.7) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels with common axes, in at most `columns` columns, and the axes of its panels."""
    columns = max(1, min(columns, count))
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH_IN, rows * panel_height_in + head_in), layout="constrained")
    cells = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    axes = list(cells.flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    for above in axes[max(0, count - columns) : count]:  # the lowest panel of each column keeps its numbers
        above.tick_params(labelbottom=True)
    return figure, axes[:count]


def notice(text: str) -> Figure:
    """A figure that only has a text: it replaces one that cannot be drawn and says why."""
    figure = Figure(figsize=(WIDTH_IN, 1.4), layout="constrained")
    figure.text(0.5, 0.5, text, ha="center", va="center", color="0.25", wrap=True)
    return figure


def whole_ticks(axes: Axes) -> None:
    """Set the x axis to whole numbers, for iterations."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def png(draw: Callable[[], Figure]) -> bytes:
    """Draw a figure in the common style and return the bytes of its PNG file."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # letters that the font lacks are shown as boxes
        buffer = io.BytesIO()
        draw().savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def top(values: Sequence[float], floor: float = 1e-9) -> float:
    """An upper limit for an axis that starts at 0, a little above the largest finite value and at least above `floor`."""
    return max([floor, *(v for v in values if math.isfinite(v))]) * 1.08
