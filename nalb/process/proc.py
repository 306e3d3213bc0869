"""Lists processes by id, and tells whether one is stopped, and for how long.

Signals take the ids that /proc shows only if /proc is that of our own PID namespace.
"""

import os
from pathlib import Path

import psutil

from nalb.errors import MachineError


def require_own_proc() -> None:
    """Raise MachineError if /proc is of another PID namespace: a signal to an id read there would hit another process."""
    try:
        shown = os.readlink("/proc/self")
    except OSError:
        shown = ""
    if shown != str(os.getpid()):
        raise MachineError(
            "/proc shows the processes of another PID namespace, so none can be ended safely: mount it anew, as"
            " `unshare --mount-proc` does"
        )


def others() -> list[int]:
    """The ids of all processes but this one. Raises MachineError as `require_own_proc` does."""
    require_own_proc()
    return [pid for pid in psutil.pids() if pid != os.getpid()]


def stopped_at(pid: int) -> int | None:
    """The CPU time, in clock ticks, that a process stopped by a signal has used; None where the process runs or has ended.

    The ticks of a process that is stopped again and again grow between the stops, unless it is idle then.
    """
    try:
        # Bytes, since the kernel may cut the process's name within a character.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # the process has ended
        return None
    return int(fields[11]) + int(fields[12]) if fields[0] == b"T" else None


class Stop:
    """For how long a signal has stopped a process, as far as somebody has looked."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._ticks: int | None = None  # at the last look; None: it ran

    def seen(self, ticks: int | None, now_s: float) -> float:
        """Take in what `stopped_at` says now; returns the seconds. A process that ran in between is stopped anew."""
        if ticks is None or ticks != self._ticks:
            self._since_s, self._ticks = now_s, ticks
        return now_s - self._since_s
