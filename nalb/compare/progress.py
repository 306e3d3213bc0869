"""Shows the progress of `nalb compare`: a live table on a terminal, lines elsewhere. A lost terminal does not end the comparison.

A round is one iteration of each scheme. Schemes take turns of several iterations, so a turn fills one column of several rounds.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nalb.events import IterationEvent
from nalb.launch.supervisor import print_line, print_unfinished
from nalb.process.streams import discard_output
from nalb.reporting.run_file import WARM_UP
from nalb.units import duration

LINE_EVERY_S = 2.0  # between lines on iterations, where there is no terminal
LINES_AROUND = 8  # lines of a terminal kept for the table's head and the lines above it
BAR_WIDTH = 20  # characters


def new_console(to_stderr: bool = False) -> Console:
    """A console that prints what it is given: rich would print an emoji for the end of a user's `module:KEY:`."""
    return Console(stderr=to_stderr, emoji=False)


def say(text: str) -> None:
    """Print a line that begins with the command's name."""
    print_line(f"nalb compare: {text}")


def table_text(table: Table, least_width: int = 0) -> str:
    """A table as text for stdout, at least `least_width` characters wide.

    Raises OSError where stdout does not take what was printed before: rich flushes it too, and then ends the process silently.
    """
    sys.stdout.flush()
    console = new_console()
    console.width = max(least_width, console.width)
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip("\n")


def show_table(table: Table, least_width: int = 0) -> None:
    """Print a table at least `least_width` characters wide; the command goes on where nobody reads it."""
    print_line(table_text(table, least_width))


class Lines:
    """A context that prints progress as lines: for each turn and each round where schemes take turns, else for each iteration."""

    def __init__(self, schemes: Sequence[str], iterations: int, takes_turns: bool, bound_s: float | None):
        """`iterations` counts those of each scheme; `bound_s` is the lossless bound of an iteration at the network's start."""
        self._times_s: dict[str, list[float]] = {scheme: [] for scheme in schemes}
        self._iteration_s: dict[str, list[float]] = {scheme: [] for scheme in schemes}  # computing included
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
        self._iteration_s[scheme].append(max(event.iteration_s.values(), default=took_s))
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
        self._console = new_console()
        self._live = Live(self._table(), console=self._console, auto_refresh=False)
        draw(self._live.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._turn, self._caption = None, ""
        self._live.update(self._table())
        draw(self._live.stop)

    def turn(self, scheme: str, count: int) -> None:
        self._turn = scheme, len(self._times_s[scheme]) + count
        self._caption = self._turn_text(scheme, count)
        draw(lambda: self._live.update(self._table(), refresh=True))

    def iteration(self, scheme: str, event: IterationEvent) -> None:
        self._add(scheme, event)
        draw(lambda: self._live.update(self._table(), refresh=True))

    def _table(self) -> Group:
        table = Table(box=box.SIMPLE)
        table.add_column(self._unit, justify="right")
        for scheme in self._times_s:
            table.add_column(escape(scheme), justify="right", min_width=8)
        for number in self._numbers(max(1, self._console.height - LINES_AROUND)):
            table.add_row(str(number), *(self._cell(scheme, number) for scheme in self._times_s))
        done, whole = sum(map(len, self._times_s.values())), self._iterations * len(self._times_s)
        head = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=whole, completed=done, width=BAR_WIDTH)
        left = f"{done} of {whole} iterations{left_words(self._left_s())}"
        head.add_row("Seconds from first push to last pull:", bar, left)
        return Group(head, table, Text(self._caption))

    def _left_s(self) -> float | None:
        """Seconds that all iterations still take, by the medians of those so far; None before there is one."""
        told = [took_s for times_s in self._iteration_s.values() for took_s in times_s]
        if not told:
            return None
        return sum(
            (self._iterations - len(times_s)) * statistics.median(times_s or told)
            for times_s in self._iteration_s.values()
        )

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


class TimeLeft:
    """Foresees how long a script's runs still take. How many iterations a run has is told, or known once the first run is over."""

    def __init__(self, runs: int, iterations: int | None):
        """iterations: of each run; None: not known."""
        self._runs, self.iterations = runs, iterations
        self._whole_s: list[float] = []  # of the runs that are over
        self._begun_s = self._first_s = 0.0
        self.done = 0  # iterations of this run

    def begin(self, at_s: float) -> None:
        """The next run begins, so the one before is over."""
        if self.done:
            self._whole_s.append(at_s - self._begun_s)
            self.iterations = self.iterations or self.done
        self._begun_s, self.done = at_s, 0

    def iterated(self, at_s: float) -> None:
        """The run has completed an iteration."""
        self._first_s = self._first_s if self.done else at_s
        self.done += 1

    def left_s(self, at_s: float) -> float | None:
        """Seconds that the runs still take; None: not known."""
        if self.iterations is None or self.done < 2:
            return None
        each_s = (at_s - self._first_s) / (self.done - 1)
        this_s = max(0, self.iterations - self.done) * each_s
        whole_s = statistics.mean([*self._whole_s, at_s - self._begun_s + this_s])
        return this_s + (self._runs - len(self._whole_s) - 1) * whole_s


class Runs:
    """A context that prints lines on how far a script's runs are, one after another; of iterations one line in LINE_EVERY_S."""

    def __init__(self, runs: int, iterations: int | None):
        """iterations: of each run; None: not known."""
        self._left, self._count, self._number = TimeLeft(runs, iterations), runs, 0
        self._name, self._told_s = "", 0.0
        self.show_unfinished: Callable[[str], None] | None = print_unfinished  # unfinished lines of the script

    def __enter__(self) -> "Runs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the context; nothing needs an end."""

    def begin(self, name: str, what: str) -> None:
        """A run begins. name: its scheme. what: starts, for people."""
        self._number += 1
        self._name, self._told_s = name, 0.0
        self._left.begin(time.monotonic())
        of = f"run {self._number} of {self._count}, " if self._count > 1 else ""
        say(f"{of}{name}: {what}")

    def iteration(self, event: IterationEvent) -> None:
        """The run has completed an iteration."""
        now_s = time.monotonic()
        self._left.iterated(now_s)
        self._show(event, now_s)

    def _show(self, event: IterationEvent, now_s: float) -> None:
        is_last = self._left.done == self._left.iterations
        if is_last or now_s - self._told_s >= LINE_EVERY_S:
            self._told_s = now_s
            say(f"{self._name}, {self._words(event, now_s)}")

    def _words(self, event: IterationEvent, now_s: float) -> str:
        of = f" of {self._left.iterations}" if self._left.iterations else ""
        exchange_s = max(event.communication_s.values())
        over = f", {exchange_s / event.bound_s:.2f} x bound" if event.bound_s else ""
        return (
            f"iteration {self._left.done}{of}: exchange {exchange_s:.2f} s{over}{left_words(self._left.left_s(now_s))}"
        )


class RunsBar(Runs):
    """A bar below the script's lines, drawn anew at each iteration."""

    def __enter__(self) -> "RunsBar":
        self.show_unfinished = None  # the bar is the terminal's last line
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=None, words="")
        draw(self._bar.start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.update(self._task, visible=False)
        draw(self._bar.stop)

    def begin(self, name: str, what: str) -> None:
        super().begin(name, what)
        self._bar.reset(self._task, total=self._left.iterations, description=name, words="starting")
        draw(self._bar.refresh)

    def _show(self, event: IterationEvent, now_s: float) -> None:
        self._bar.update(self._task, completed=self._left.done, words=self._words(event, now_s))
        draw(self._bar.refresh)


def left_words(left_s: float | None) -> str:
    """The time left as the rest of a sentence; nothing where it is not known."""
    return "" if left_s is None else f", about {duration(left_s)} left"


def draw(action: Callable[[], None]) -> None:
    """Draw on the terminal; the command goes on where the terminal is gone."""
    try:
        action()
    except OSError:
        discard_output()


def _is_live() -> bool:
    """Whether stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and not new_console().is_dumb_terminal


def runs_of(runs: int, iterations: int | None) -> Runs:
    """Make a bar on a terminal, else lines. The arguments are those of Runs."""
    return (RunsBar if _is_live() else Runs)(runs, iterations)


def progress_of(schemes: Sequence[str], iterations: int, takes_turns: bool, bound_s: float | None) -> Lines:
    """Make a live table where stdout is a terminal that can move its cursor, else make lines."""
    return (LiveTable if _is_live() else Lines)(schemes, iterations, takes_turns, bound_s)
