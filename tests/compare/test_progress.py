"""What a comparison shows while it runs: to a reader, to none, and on a terminal, which is a real one."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.markup import escape
from rich.table import Table

from nalb.compare.progress import Lines, Runs, TimeLeft, show_table
from nalb.events import IterationEvent
from nalb.reporting.record import read_record
from nalb.reporting.table import comparison_table
from tests.reporting.runs import write_fake_run

pytestmark = pytest.mark.jobs

SHOWN = """
import sys, time
from rich.table import Table
from nalb.launch.signals import ending_on_signals
from nalb.compare.progress import progress_of, say, show_table
from nalb.errors import JobError
from nalb.events import IterationEvent

def turn(scheme, *times_s):
    progress.turn(scheme, len(times_s))
    for took_s in times_s:
        told = {"n0": took_s / 2, "n1": took_s}
        progress.iteration(scheme, IterationEvent(at_s=0.0, iteration=0, scheme=scheme, communication_s=told))

say("starting")
try:
    with ending_on_signals(), progress_of(["stock", "exact"], 7, True, 1.5) as progress:
        turn("stock", 3.01, 3.02, 3.03, 3.04, 3.05)
        turn("exact", 2.01, 2.02)
        THEN
    show_table(Table("medians"))
except JobError as error:
    print(error)
"""
RUNS = """
import time
from nalb.compare.progress import runs_of
from nalb.events import IterationEvent
from nalb.launch.supervisor import print_line

with runs_of(2, None) as progress:
    for name in ("stock", "exact"):
        progress.begin(name, "python train.py")
        for iteration in range(2):
            took_s = {"n0": 1.0}
            progress.iteration(IterationEvent(at_s=0.0, iteration=0, scheme=name, communication_s=took_s))
            print_line("[n0 worker] loss 0.5")
        THEN
print("over")
"""
HEIGHT = 30
HEAD = "Seconds from first push to last pull:"


def took(took_s: float, bound_s: float | None = None) -> IterationEvent:
    told = {"n0": took_s / 2, "n1": took_s}
    return IterationEvent(at_s=0.0, iteration=0, scheme="stock", communication_s=told, bound_s=bound_s)


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.removeprefix("nalb compare: ") for line in capsys.readouterr().out.splitlines()]


def test_turns_are_told_and_rounds_stand_side_by_side(capsys: pytest.CaptureFixture[str]):
    with Lines(["stock", "average", "exact"], 3, takes_turns=True, bound_s=1.5) as progress:
        for scheme, took_s in (("stock", 3.0), ("average", 2.0), ("exact", 1.6)):
            progress.turn(scheme, 2)
            progress.iteration(scheme, took(took_s))
            progress.iteration(scheme, took(took_s + 0.1))
        progress.turn("stock", 1)
        progress.iteration("stock", took(3.2))
    assert lines_of(capsys) == [
        "stock, average and exact take turns on the same network; a round is one iteration of each",
        "the first 2 rounds do not count in the result, since links are measured in them",
        "the bound of an iteration is 1.50 s",
        "stock runs rounds 1 to 2 of 3",
        "average runs rounds 1 to 2 of 3",
        "exact runs rounds 1 to 2 of 3",
        "round 1 of 3: stock 3.00 s, average 2.00 s, exact 1.60 s",
        "round 2 of 3: stock 3.10 s, average 2.10 s, exact 1.70 s",
        "stock runs rounds 3 to 3 of 3",
    ]


def test_schemes_that_run_in_one_go_have_a_line_for_each_iteration(capsys: pytest.CaptureFixture[str]):
    with Lines(["stock", "exact"], 2, takes_turns=False, bound_s=1.5) as progress:
        for scheme in ("stock", "exact"):
            progress.turn(scheme, 2)
            progress.iteration(scheme, took(3.0))
            progress.iteration(scheme, took(3.0, bound_s=2.0))
    assert lines_of(capsys) == [
        "the network changes with time, so each scheme runs in one go, from the network's start",
        "the bound of an iteration is 1.50 s",
        "stock runs iterations 1 to 2 of 2",
        "stock, iteration 1 of 2: 3.00 s, 2.00 x bound",
        "stock, iteration 2 of 2: 3.00 s, 1.50 x bound",
        "exact runs iterations 1 to 2 of 2",
        "exact, iteration 1 of 2: 3.00 s, 2.00 x bound",
        "exact, iteration 2 of 2: 3.00 s, 1.50 x bound",
    ]


def test_a_name_between_colons_is_no_emoji(capsys: pytest.CaptureFixture[str]):
    show_table(Table(escape("own:ROCKET:"), title=escape("own:KEY:")))
    assert {"own:ROCKET:", "own:KEY:"} <= set(re.findall(r"[\w:]+", capsys.readouterr().out))


def test_one_scheme_takes_no_turns(capsys: pytest.CaptureFixture[str]):
    with Lines(["exact"], 3, takes_turns=True, bound_s=None) as progress:
        progress.turn("exact", 3)
        progress.iteration("exact", took(3.0))
    assert lines_of(capsys) == [
        "3 iterations of exact",
        "the first 2 iterations do not count in the result, since links are measured in them",
        "exact, iteration 1 of 3: 3.00 s",
    ]


def test_the_time_left_is_known_once_the_length_of_a_run_is():
    left = TimeLeft(runs=3, iterations=None)
    left.begin(0.0)
    for at_s in (10.0, 12.0, 14.0, 16.0):
        left.iterated(at_s)
        assert left.left_s(at_s) is None
    left.begin(20.0)  # a run took 20 s for 4 iterations
    left.iterated(30.0)
    assert left.left_s(30.0) is None
    left.iterated(31.0)
    assert (
        left.left_s(31.0) == 2 * 1.0 + (20.0 + 13.0) / 2
    )  # this run takes 11 + 2 s, the third as long as both on average
    known = TimeLeft(runs=1, iterations=5)
    known.begin(0.0)
    known.iterated(4.0)
    known.iterated(6.0)
    assert known.left_s(6.0) == 6.0


def test_runs_of_a_script_are_told_by_lines(capsys: pytest.CaptureFixture[str]):
    with Runs(2, None) as progress:
        for name in ("stock", "exact"):
            progress.begin(name, "python train.py in 5 processes on loopback")
            progress.iteration(took(3.0))
            progress.iteration(took(2.0, bound_s=1.0))
    lines = lines_of(capsys)
    assert lines[0] == "run 1 of 2, stock: python train.py in 5 processes on loopback"
    assert lines[1] == "stock, iteration 1: exchange 3.00 s"  # the second follows too soon
    assert lines[2].startswith("run 2 of 2, exact: ")
    assert lines[3] == "exact, iteration 1 of 2: exchange 3.00 s"
    assert lines[4].startswith("exact, iteration 2 of 2: exchange 2.00 s, 2.00 x bound, about 0 s left")


def test_a_terminal_shows_a_bar_below_the_scripts_lines():
    terminal = Terminal("time.sleep(0)", code=RUNS)
    terminal.read_until("over")
    assert terminal.end() == (0, b"")
    assert terminal.shown.index("[n0 worker] loss 0.5") < terminal.shown.rindex("iteration 2 of 2")
    assert "about " in terminal.shown
    assert "━" in terminal.shown
    os.close(terminal.master)


def test_output_closed_by_its_reader_does_not_end_a_comparison():
    """`nalb compare ... | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    shown = SHOWN.replace("THEN", 'turn("exact", 2.03)')
    done = subprocess.run([sys.executable, "-c", shown], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_last_table_without_a_reader_is_no_error_either():
    shown = "from rich.table import Table; from nalb.compare.progress import show_table; show_table(Table('medians'))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", shown], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


class Terminal:
    """A comparison that shows itself on a pseudo-terminal."""

    def __init__(self, then: str, height: int = HEIGHT, code: str = SHOWN):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, 100, 0, 0))
        environment = {**os.environ, "TERM": "xterm"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code.replace("THEN", then)],
            stdin=slave, stdout=slave, stderr=subprocess.PIPE, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.shown = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end inside a character

    def read_until(self, text: str) -> None:
        """More of what it shows."""
        end_s = time.monotonic() + 20
        while text not in self.shown and time.monotonic() < end_s:
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.shown += self.decoder.decode(os.read(self.master, 65536)).replace("\r", "")
                except OSError:  # it has ended
                    break
        assert text in self.shown, self.shown

    def end(self) -> tuple[int, bytes]:
        """Its exit code and what it said on stderr."""
        said = self.process.communicate(timeout=20)[1]
        return self.process.returncode, said

    def last_table(self) -> list[list[str]]:
        """The words of the rows of the table that was drawn last."""
        drawn = self.shown[: self.shown.rindex("\x1b[?25h")]  # shows the cursor again: the last of the table
        rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.rpartition(HEAD)[2]).splitlines()
        return [row.split() for row in rows if row.split() and row.split()[0].isdigit()]


def test_a_terminal_shows_a_table_that_fills():
    terminal = Terminal("time.sleep(0.2)")
    terminal.read_until("medians")
    assert terminal.end() == (0, b"")
    assert terminal.shown.index("take turns") < terminal.shown.index(HEAD)
    assert "stock runs rounds 1 to 5 of 7" in terminal.shown
    assert "exact runs rounds 1 to 5 of 7" not in terminal.shown
    assert "exact runs rounds 1 to 2 of 7" in terminal.shown
    assert terminal.last_table() == [
        ["1", "3.01", "2.01"], ["2", "3.02", "2.02"], ["3", "3.03"], ["4", "3.04"], ["5", "3.05"],
    ]  # fmt: skip
    assert "\x1b[1A" in terminal.shown, "drawn over the one before"
    assert "round 1 of 7" not in terminal.shown, "the table stands in for the lines"
    os.close(terminal.master)


def test_a_low_terminal_shows_the_last_rounds():
    terminal = Terminal('turn("exact", 2.03, 2.04, 2.05); turn("stock", 3.06)', height=11)
    terminal.read_until("medians")
    assert terminal.end() == (0, b"")
    assert terminal.last_table() == [["4", "3.04", "2.04"], ["5", "3.05", "2.05"], ["6", "3.06"]]
    os.close(terminal.master)


def test_an_interrupt_leaves_a_whole_table_and_the_cursor():
    terminal = Terminal("for _ in range(400): time.sleep(0.05)")
    terminal.read_until("2.02")
    terminal.process.send_signal(signal.SIGINT)
    terminal.read_until("ended by SIGINT")
    assert terminal.end() == (0, b"")
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l"), "the cursor is shown again"
    assert terminal.last_table()[1] == ["2", "3.02", "2.02"]
    os.close(terminal.master)


def test_a_terminal_that_goes_away_does_not_end_a_comparison(tmp_path):
    """As after `disown`: no SIGHUP comes, and writing fails."""
    gone = tmp_path / "gone"
    lines = "import os", f"while not os.path.exists({str(gone)!r}): time.sleep(0.01)", 'turn("exact", 2.03, 2.04)'
    terminal = Terminal(("\n" + 8 * " ").join(lines))
    terminal.read_until("2.02")
    os.close(terminal.master)
    gone.touch()
    assert terminal.end() == (0, b"")


def test_the_last_table_is_cut_nowhere(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "80")
    write_fake_run(tmp_path)
    show_table(comparison_table(read_record(tmp_path)))
    printed = capsys.readouterr().out
    assert " average " in printed
    assert "8.0%" in printed
    assert "\u2026" not in printed


def test_the_last_table_has_a_line_for_each_scheme(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """In 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    write_fake_run(tmp_path)
    show_table(comparison_table(read_record(tmp_path)))
    *_, average, aware = capsys.readouterr().out.rstrip().splitlines()
    assert " ".join(average.split()) == "average 3.127 3.08 - 3.18 1.49 1.42 1.30 3.227 1001 0.010 -"
    assert " ".join(aware.split()) == "aware 2.550 2.50 - 2.60 1.21 1.16 1.59 2.650 1002 0.010 2.0% / 8.0%"
