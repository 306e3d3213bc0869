"""Lists processes by id, and tells whether one is stopped, and for how long.

Signals take the ids that /proc shows only if /proc is that of our own PID namespace.
"""

import os

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
    """The context switches so far of a process that a signal has stopped; None where it runs or has ended, or nobody can tell.

    They grow between the stops of a process that is stopped again and again, even of an idle one.
    """
    try:
        one = psutil.Process(pid)
        return sum(one.num_ctx_switches()) if one.status() == psutil.STATUS_STOPPED else None
    except (psutil.Error, OSError, NotImplementedError):  # it has ended, no descriptor is left here, old kernel
        return None


class Stop:
    """For how long a signal has stopped a process, as far as somebody has looked."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._switches: int | None = None  # at the last look; None: it ran

    def seen(self, switches: int | None, now_s: float) -> float:
        """Take in what `stopped_at` says now; returns the seconds. A process that ran in between is stopped anew."""
        if switches is None or switches != self._switches:
            self._since_s, self._switches = now_s, switches
        return now_s - self._since_s
