"""Shows the progress of `nalb compare`: a live table on a terminal, lines elsewhere. A lost terminal does not end the comparison.

A round is one iteration of each scheme. Schemes take turns of several iterations, so a turn fills one column of several rounds.
"""

import sys
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nalb.events import IterationEvent
from nalb.launch.supervisor import print_line
from nalb.process.streams import discard_output
from nalb.reporting.run_file import WARM_UP

LINES_AROUND = 8  # lines of a terminal kept for the table's head and the lines above it


def say(text: str) -> None:
    """Print a line that begins with the command's name."""
    print_line(f"nalb compare: {text}")


def show_table(table: Table, least_width: int = 0) -> None:
    """Print a table at least `least_width` characters wide; the command goes on where nobody reads it."""
    console = Console()
    console.width = max(least_width, console.width)
    with console.capture() as captured:
        console.print(table)
    print_line(captured.get().rstrip("\n"))


class Lines:
    """A context that prints progress as lines: for each turn and each round where schemes take turns, else for each iteration."""

    def __init__(self, schemes: Sequence[str], iterations: int, takes_turns: bool, bound_s: float | None):
        """`iterations` counts those of each scheme; `bound_s` is the lossless bound of an iteration at the network's start."""
        self._times_s: dict[str, list[float]] = {scheme: [] for scheme in schemes}
        self._iterations, self._bound_s = iterations, bound_s
        self._takes_turns = takes_turns and len(self._times_s) > 1
        self._unit = "round" if self._takes_turns else "iteration"

    def __enter__(self) -> "Lines":
        for sentence in self._introduction():
            say(sentence)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the context; nothing needs an end."""

    def turn(self, scheme: str, count: int) -> None:
        """A scheme begins its next `count` iterations."""
        if len(self._times_s) > 1:
            say(self._turn_text(scheme, count))

    def iteration(self, scheme: str, event: IterationEvent) -> None:
        """Print a line for an iteration that has ended, or for its round once the round is complete."""
        took_s, number = self._add(scheme, event)
        of = f"{self._unit} {number} of {self._iterations}"
        if not self._takes_turns:
            bound_s = self._bound_s if event.bound_s is None else event.bound_s
            say(f"{scheme}, {of}: {took_s:.2f} s" + (f", {took_s / bound_s:.2f} x bound" if bound_s else ""))
        elif all(len(times_s) >= number for times_s in self._times_s.values()):
            say(f"{of}: " + ", ".join(f"{name} {times_s[number - 1]:.2f} s" for name, times_s in self._times_s.items()))

    def _add(self, scheme: str, event: IterationEvent) -> tuple[float, int]:
        """Add an iteration; return its communication time in seconds and its number, counted from 1."""
        took_s = max(event.communication_s.values())
        self._times_s[scheme].append(took_s)
        return took_s, len(self._times_s[scheme])

    def _turn_text(self, scheme: str, count: int) -> str:
        done = len(self._times_s[scheme])
        return f"{scheme} runs {self._unit}s {done + 1} to {done + count} of {self._iterations}"

    def _introduction(self) -> list[str]:
        *others, last = self._times_s
        sentences = []
        if others and self._takes_turns:
            sentences.append(
                f"{', '.join(others)} and {last} take turns on the same network; a round is one iteration of each"
            )
        elif others:
            sentences.append("the network changes with time, so each scheme runs in one go, from the network's start")
        else:
            sentences.append(f"{self._iterations} {self._unit}s of {last}")
        if self._iterations > WARM_UP:
            sentences.append(
                f"the first {WARM_UP} {self._unit}s do not count in the result, since links are measured in them"
            )
        if self._bound_s:
            sentences.append(f"the bound of an iteration is {self._bound_s:.2f} s")
        return sentences


class LiveTable(Lines):
    """A live table with a row for each round, drawn anew at each iteration. A low terminal shows the last rows only."""

    def __enter__(self) -> "LiveTable":
        super().__enter__()
        self._turn: tuple[str, int] | None = None  # the scheme whose turn it is, and the turn's last round
        self._caption = ""
        self._live = Live(self._table(), auto_refresh=False)
        self._draw(self._live.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn, self._caption = None, ""
        self._live.update(self._table())
        self._draw(self._live.stop)

    def turn(self, scheme: str, count: int) -> None:
        self._turn = scheme, len(self._times_s[scheme]) + count
        self._caption = self._turn_text(scheme, count)
        self._draw(lambda: self._live.update(self._table(), refresh=True))

    def iteration(self, scheme: str, event: IterationEvent) -> None:
        self._add(scheme, event)
        self._draw(lambda: self._live.update(self._table(), refresh=True))

    def _draw(self, draw: Callable[[], None]) -> None:
        try:
            draw()
        except OSError:  # the terminal is gone
            discard_output()

    def _table(self) -> Group:
        table = Table(box=box.SIMPLE)
        table.add_column(self._unit, justify="right")
        for scheme in self._times_s:
            table.add_column(escape(scheme), justify="right", min_width=8)
        for number in self._numbers(max(1, Console().height - LINES_AROUND)):
            table.add_row(str(number), *(self._cell(scheme, number) for scheme in self._times_s))
        return Group(Text("Seconds from first push to last pull:"), table, Text(self._caption))

    def _numbers(self, most: int) -> range:
        """The rounds to show, at most `most`: those that have begun, and the rest of the turn as far as there is room."""
        begun = max(map(len, self._times_s.values()))
        if self._turn is not None:
            scheme, last = self._turn
            begun = max(begun, min(last, max(most, len(self._times_s[scheme]) + 1)))
        return range(max(1, begun - most + 1), begun + 1)

    def _cell(self, scheme: str, number: int) -> str:
        times_s = self._times_s[scheme]
        if number <= len(times_s):
            return f"{times_s[number - 1]:.2f}"
        runs = self._turn is not None and self._turn[0] == scheme and number == len(times_s) + 1
        return "..." if runs else ""


def progress_of(schemes: Sequence[str], iterations: int, takes_turns: bool, bound_s: float | None) -> Lines:
    """Make a live table where stdout is a terminal that can move its cursor, else make lines."""
    kind = LiveTable if sys.stdout.isatty() and not Console().is_dumb_terminal else Lines
    return kind(schemes, iterations, takes_turns, bound_s)
