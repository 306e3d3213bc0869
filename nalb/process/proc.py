"""Lists processes by id. Signals take the ids that /proc shows only if /proc is that of our own PID namespace."""

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
