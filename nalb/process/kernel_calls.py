"""Calls of the kernel's that some builds of Python lack: conda's and older ones of uv are built with a C library from before them.

They are made by `os` and `signal` where these have them, and by the C library that runs otherwise.
"""

import ctypes
import errno
import os
import signal

from nalb.errors import MachineError

PIDFD_SEND_SIGNAL, PIDFD_OPEN = 424, 434  # numbers of system calls, alike on x86-64, ARM and most others
REFUSED = (errno.ENOSYS, errno.EPERM)  # by a kernel without the call, and by a container's filter of system calls


def open_process(pid: int) -> int:
    """A descriptor of a process, readable once that has ended: pidfd_open(2).

    Raises ProcessLookupError if there is none of this id, and MachineError where the machine does not have the call.
    """
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _system_call(PIDFD_OPEN, pid, 0)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        raise MachineError(
            f"this machine does not let processes be watched (pidfd_open: {error.strerror}): use Linux 5.3 or newer, and a"
            " container whose seccomp profile has this call"
        ) from None


def send_signal(process: int, number: int) -> None:
    """Send a signal to the process of a descriptor: pidfd_send_signal(2). Raises ProcessLookupError if it has ended."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(process, number)
    else:
        _system_call(PIDFD_SEND_SIGNAL, process, int(number), None, 0)


def memory_file(name: str) -> int:
    """A descriptor of a file that is in memory alone and is not inherited: memfd_create(2). Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    return _checked(_libc().memfd_create(name.encode(), 1))  # MFD_CLOEXEC


def _system_call(*arguments: int | None) -> int:
    return _checked(_libc().syscall(*arguments))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
