"""Finds and ends the processes that a job has started, even if the launcher was killed.

The launcher, or an agent, starts processes of the job and is the subreaper of their descendants: a process whose parent ends
becomes the subreaper's own child (Descent). So all are found by descent, whatever environment and session they have.

Descent is lost when the subreaper ends. So every process of a job also has NALB_JOB=JOB:SLUG in its environment, and hands it to
whatever it starts. A guardian, which is a process of its own, holds the read end of a pipe. If the pipe ends without `done`, the
launcher is dead. The guardian then kills all processes that carry the job's mark, and removes what must not outlive the job: keys
made for it, and its socket for observers.

Choice not taken: killing by process group. By then the group's id may be another group's, and daemons leave their group.
"""

import ctypes
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from nalb.process import daemon, proc
from nalb.process.own_program import own_argv

VARIABLE = "NALB_JOB"
KILL_DEADLINE_S = 5.0  # a killed process is gone in milliseconds, unless it is stuck in the kernel
DISMISS_DEADLINE_S = 5.0
REAP_S = 5.0  # between looks for children that have ended: each looks through all processes
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37  # linux/prctl.h


def mark(job: str, slug: str) -> dict[str, str]:
    """The environment variable that marks a process of the job."""
    return {VARIABLE: f"{job}:{slug}"}


def marked(job: str) -> list[int]:
    """Pids of the job's living processes, found by their mark. Ended processes have no environment."""
    wanted = f"{VARIABLE}={job}:".encode()
    pids = []
    for pid in proc.others():
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            if any(one.startswith(wanted) for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                pids.append(pid)
    return pids


def kill_marked(job: str) -> list[int]:
    """Kill the processes with the job's mark; return the pids of those that stay."""
    return kill_found(lambda: marked(job))


def kill_found(find: Callable[[], Iterable[int]]) -> list[int]:
    """Kill the processes that `find` finds, until two looks in a row find none to kill (amid exec a process shows no mark).

    Returns the pids of those that stay, after KILL_DEADLINE_S at most: another user's, as behind sudo, or stuck in the kernel.
    """
    end_s = time.monotonic() + KILL_DEADLINE_S
    quiet_looks, stay = 0, list[int]()
    while quiet_looks < 2 and time.monotonic() < end_s:
        if stay or quiet_looks:
            time.sleep(0.02)
        stay = list(find())
        killed = [pid for pid in stay if _kill(pid)]
        quiet_looks = 0 if killed else quiet_looks + 1
    return stay


def _kill(pid: int) -> bool:
    """Kill a process; return whether that was possible."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


class Descent:
    """A context that knows the processes started in it: those that this process starts, and their descendants.

    Processes that descended from this one before the context belong to others. If contexts are nested, the inner one ends first.
    """

    def __enter__(self) -> "Descent":
        self._was_subreaper = ctypes.c_int()
        _prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(self._was_subreaper))
        self._others = {pid for pid, (parent, _) in processes().items() if parent == os.getpid()}
        self._looked_s, self._ended = time.monotonic(), set[int]()  # of `reap`
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _prctl(PR_SET_CHILD_SUBREAPER, self._was_subreaper.value)

    def end(self, started: Collection[int]) -> list[int]:
        """Kill the context's living processes; return the pids of those that stay, see kill_found.

        `started` are children of this process whose end other code waits for. The context's other ended children are reaped.
        """
        stay = kill_found(self._living)
        for pid in self._find_ended(started):
            os.waitpid(pid, os.WNOHANG)
        return stay

    def reap(self, started: Collection[int]) -> None:
        """Reap adopted children that have ended, each REAP_S. Otherwise each would stay a zombie and keep its process id.

        started: as in `end`. A thread that waits for a child of its own has done so by the second look.
        """
        if time.monotonic() - self._looked_s < REAP_S:
            return
        self._looked_s = time.monotonic()
        found = self._find_ended(started)
        for pid in found & self._ended:
            os.waitpid(pid, os.WNOHANG)
        self._ended = found

    def _find_ended(self, started: Collection[int]) -> set[int]:
        """The context's children that have ended and that nobody has waited for, but not those of `started`."""
        own = {pid for pid, (parent, has_ended) in processes().items() if has_ended and parent == os.getpid()}
        return own - self._others - daemon.GUARDIANS - set(started)

    def _living(self) -> list[int]:
        found = processes()
        children = defaultdict(list)
        for pid, (parent, _) in found.items():
            children[parent].append(pid)
        pids = [pid for pid in children[os.getpid()] if pid not in self._others | daemon.GUARDIANS]
        for pid in pids:  # the list grows meanwhile
            pids += children[pid]
        return [pid for pid in pids if not found[pid][1]]


def living_on(pids: Collection[int]) -> str:
    """A line for people about processes that could not be ended."""
    numbers = ", ".join(map(str, sorted(pids)))
    return f"could not end process {numbers} (another user's, as behind sudo, or stuck in the kernel): end it by hand"


def processes() -> dict[int, tuple[int, bool]]:
    """All processes by id: the parent's id, and whether the process has ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # the process is gone
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
                found[int(entry.name)] = int(parent), state in (b"Z", b"X")
    return found


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")  # since Linux 3.4 nothing makes these calls fail


class JobGuardian:
    """The launcher's side of the guardian: a context manager around the life of a job."""

    def __init__(self, job: str, with_it: Sequence[Path] = ()):
        """with_it: files and folders that the guardian removes where the launcher is killed."""
        self._argv = [job, *map(str, with_it)]

    def __enter__(self) -> "JobGuardian":
        self._guardian = daemon.Guardian(own_argv("nalb.process.guardian", *self._argv), "the job's guardian")
        return self

    def check(self) -> None:
        """Start a new guardian if this one has died; see daemon.Guardian.check. Raises MachineError."""
        self._guardian.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guardian.say(b"done\n")
        self._guardian.dismiss(DISMISS_DEADLINE_S)


def main(argv: list[str]) -> int:
    """Wait for the launcher's end. Unless it said `done`, end the job and remove what goes with it: argv is [job, path, ...]."""
    if sys.stdin.buffer.read().splitlines() != [b"done"]:
        kill_marked(argv[0])
        for path in map(Path, argv[1:]):
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):  # it was a folder, or the job had not made it yet
                path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
