"""Turns errors of a machine that has no process, thread, memory or descriptor left into advice."""

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from nalb.errors import MachineError

REMEDIES = {
    errno.EAGAIN: "raise ulimit -u, or the container's limit of processes, or use fewer nodes",
    errno.ENOMEM: "free memory, or use fewer nodes",
    errno.EMFILE: "raise ulimit -n, or use fewer nodes",
    errno.ENFILE: "raise sysctl fs.file-max, or use fewer nodes",
}
FOR_THREADS = "raise ulimit -u or -v, or the container's limits of processes and memory, or use fewer nodes"


FILES_ENOUGH = 1 << 20  # 100,000 nodes have two connections each with the coordinator; some systems allow billions


def raise_file_limit() -> None:
    """Let this process and those that it starts open as many files and sockets as the system allows, up to FILES_ENOUGH."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_ENOUGH if hard == resource.RLIM_INFINITY else min(hard, FILES_ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def explained(what: str) -> Iterator[None]:
    """A context for starting a process or thread, `what`. Raises MachineError where nothing is left for it. Other OSErrors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        raise MachineError(f"{what} cannot be started ({error.strerror}): {REMEDIES[error.errno]}") from None
    except RuntimeError as error:  # from a thread's start; it has no errno, and pthread_create(3) has one for both
        raise MachineError(
            f"{what} cannot be started ({error}, for lack of processes or memory): {FOR_THREADS}"
        ) from None
