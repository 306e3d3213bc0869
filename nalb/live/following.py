"""Follows a run until its job is over, and serves its metrics in a process beside it."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nalb.errors import InputError, as_text
from nalb.events import AnyEvent
from nalb.live.state import FAILED, RUNNING, LiveState
from nalb.live.tail import RunTail
from nalb.process.own_program import own_argv
from nalb.reporting.about_file import ABOUT, is_held, read_about
from nalb.reporting.record import Timeline, without_iterations
from nalb.reporting.run_file import SAMPLES

# Without a coordinator's socket for so long, a failed job is over that might have been restarted. Before the next attempt the
# launcher looks which hosts are lost: that takes up to 20 s for every eight of them.
BETWEEN_S = 60.0
LAST_WORDS_S = 2.0  # after its socket is gone a job may still tell that it has failed
END_S = 5.0  # for the process that serves metrics to end


class Follower:
    """Keeps the state of a run up to date."""

    def __init__(self, run_dir: Path):
        """Raises InputError where there is no such directory."""
        self.tail, self.state = RunTail(run_dir), LiveState()
        about = read_about(run_dir)
        self.iterations = None if about is None else about.iterations  # that the run will have; None: not known
        self._max_restarts = None if about is None else about.max_restarts  # None: not known
        self._gone_s: float | None = None  # since when there is no socket
        self._has_run = False
        self._is_told = False  # that the end cannot be seen

    def look(self) -> None:
        """Take in what the run has appended. Raises InputError for a damaged file, and as `require_own` does."""
        for _ in self.fresh():
            pass
        self.require_own()

    def require_own(self) -> None:
        """Raise InputError where the run has no record of its own, but one for each of its jobs."""
        run_dir = self.tail.run_dir
        is_of_several = (run_dir / ABOUT).exists() and not (run_dir / SAMPLES).exists() and not self.state.restarts
        if is_of_several and any(run_dir.glob(f"*/{SAMPLES}")):
            raise without_iterations(run_dir, Timeline())

    @property
    def nothing(self) -> str:
        """What to tell where the directory holds nothing of a run; empty: it does."""
        if self.tail.is_running or any((self.tail.run_dir / name).exists() for name in (ABOUT, SAMPLES)):
            return ""
        return f"{self.tail.run_dir} holds nothing of a run: give the run directory that the job printed, or its --out"

    def fresh(self) -> Iterator[AnyEvent]:
        """Take in what the run has appended, and yield each event after it. Raises InputError for a damaged file."""
        for event in self.tail.fresh():
            self.state.restarted(self.tail.restarts)
            self.state.take(event)
            yield event

    def is_over(self, now_s: float) -> bool:
        """Whether the run has ended, by its directory's lock and sockets. One with a record that ended before is over at once.

        False where that cannot be seen.
        """
        if self.tail.is_running:
            self._gone_s, self._has_run = None, True
            return False
        if not self._has_run:
            if not self.tail.sees_end:
                return False
            has_begun = self.state.phase in (RUNNING, FAILED) or self.state.iterations + self.state.tokens > 0
            if has_begun or self._is_record_empty():
                return True
            if not self._was_here():
                return False
        self._gone_s = now_s if self._gone_s is None else self._gone_s
        has_more = self._max_restarts is None or self.state.restarts < self._max_restarts
        return now_s - self._gone_s >= (BETWEEN_S if has_more and self.state.phase == FAILED else LAST_WORDS_S)

    def tell_blindness(self) -> None:
        """Print once, where there is a record, that its end cannot be seen."""
        run_dir = self.tail.run_dir
        if self._is_told or self._has_run or self.tail.sees_end or not (run_dir / SAMPLES).exists():
            return
        self._is_told = True
        words = f"nalb: {run_dir} has no {ABOUT}, so nalb does not see when the job ends: following until Ctrl-C"
        print(as_text(words), file=sys.stderr, flush=True)

    def _was_here(self) -> bool:
        """Whether the run began on this machine, where its command's lock can be seen."""
        about = read_about(self.tail.run_dir)
        return about is not None and about.is_of_here and is_held(self.tail.run_dir) is not None

    def _is_record_empty(self) -> bool:
        """Whether a coordinator has begun a record, which it does once its socket stands, and has noted nothing."""
        try:
            return (self.tail.attempt_dir / SAMPLES).stat().st_size == 0
        except OSError:
            return False


def check_port(address: str, port: int, flag: str) -> None:
    """Raise InputError where nothing can listen there. flag: that named the port."""
    try:
        with socket.create_server((address, port)):
            pass
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)  # create_server adds the address to its own words
        raise InputError(f"{flag} {port} on {address}: {why}: choose another") from None


@contextmanager
def metrics_beside(run_dir: Path, port: int | None) -> Iterator[None]:
    """Serve the run's metrics on loopback in a process of its own meanwhile; None: do not. The process also ends with this one."""
    if port is None:
        yield
        return
    words = own_argv("nalb.cli.main", "metrics", str(run_dir), "--port", str(port), "--while", str(os.getpid()))
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
