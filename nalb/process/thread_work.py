"""Tells whether a thread of this process is at work, or waits for somebody."""

import time
from pathlib import Path

AT_WORK_PART = (
    0.5  # of the time between two looks: a thread that can run for less waits, and looks now and then. Choice.
)


class ThreadWork:
    """A thread of this process, looked at now and then. One that has ended is not at work."""

    def __init__(self, number: int) -> None:
        """number: the kernel's. The main thread's is `os.getpid()`: Python has the parent's number after os.fork."""
        self._of_kernel = Path(f"/proc/self/task/{number}")
        self._could_run_s, self._looked_s = self._now()

    def is_at_work(self) -> bool:
        """Whether it could run for more than AT_WORK_PART of the time since the last look, or waits for a disk now."""
        before_s, looked_s = self._could_run_s, self._looked_s
        self._could_run_s, self._looked_s = self._now()
        part = (self._could_run_s - before_s) / (self._looked_s - looked_s)
        return part > AT_WORK_PART or self._text("stat").rpartition(b")")[2].split()[:1] == [b"D"]

    def _now(self) -> tuple[float, float]:
        """(seconds for which it has run, or waited for a core; the time)."""
        on_core_ns, waited_ns, *_ = map(int, self._text("schedstat").split() or (0, 0))
        return (on_core_ns + waited_ns) / 1e9, time.monotonic()

    def _text(self, name: str) -> bytes:
        try:
            return (self._of_kernel / name).read_bytes()
        except OSError:  # the thread or its figures are not there, or this process has no descriptor left at the moment
            return b""
