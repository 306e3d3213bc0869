"""Finds and ends processes by the mark that their job left in their environment, also when the launcher was killed.

Every process of a job has NALB_JOB=JOB:SLUG in its environment and hands it to whatever it starts, so a worker's own
children are found however they were detached. A guardian is a process of its own that holds the read end of a pipe: at
the pipe's end without `done` the launcher is dead, and it kills what carries the job's mark.
Choice not taken: killing by process group. A group's id may be another's by then, and daemons leave their group.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from netem import daemon, processes

VARIABLE = "NALB_JOB"
KILL_DEADLINE_S = 5.0  # a killed process is gone in milliseconds, unless it is stuck in the kernel
DISMISS_DEADLINE_S = 5.0


def mark(job: str, slug: str) -> dict[str, str]:
    """What a process of the job has in its environment."""
    return {VARIABLE: f"{job}:{slug}"}


def marked(job: str, slug: str = "") -> list[int]:
    """Pids of the job's living processes, or of one process and what it started. Ended ones have no environment."""
    wanted = f"{VARIABLE}={job}:{slug}".encode()
    pids = []
    for pid in processes.others():
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if any(one == wanted or (not slug and one.startswith(wanted)) for one in entries):
                pids.append(pid)
    return pids


def kill_marked(job: str, slug: str = "") -> list[int]:
    """Kill them until two looks in a row find none (amid exec a process shows no mark); returns those that stay."""
    end_s = time.monotonic() + KILL_DEADLINE_S
    empty = 0
    while (pids := marked(job, slug)) or (empty := empty + 1) < 2:
        if time.monotonic() > end_s:
            break
        for pid in pids:
            empty = 0
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return pids


class Guardian:
    """The launcher's side: a context manager around the life of a job."""

    def __init__(self, job: str):
        self._job = job

    def __enter__(self) -> "Guardian":
        self._process = daemon.start_guardian(["nalb.launch.guardian", self._job], "the job's guardian")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed; the launcher's own teardown has run
            self._process.stdin.write(b"done\n")
            self._process.stdin.flush()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DISMISS_DEADLINE_S)


def main(argv: list[str]) -> int:
    """Wait for the launcher's end."""
    if sys.stdin.buffer.read().splitlines() != [b"done"]:
        kill_marked(argv[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
