"""Reads and writes about.json of a run directory: when, where and by which command the run began. A lock on it says: it runs."""

import fcntl
import os
import platform
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from nalb.errors import as_text
from nalb.reporting.run_file import read_json, write_json

ABOUT = "about.json"


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of about.json."""

    begun: str  # local time with its zone, ISO 8601
    version: str  # of nalb
    machine: str  # that ran the command: its name, cores, system and Python, for people
    command: list[str]  # the words after `nalb`
    iterations: int | None = None  # how many the run will have in all; None: the script decides
    max_restarts: int | None = None  # after failures; None: not known

    @property
    def is_of_here(self) -> bool:
        """Whether the run began on this machine."""
        return self.machine.startswith(f"{socket.gethostname()}, ")


def write_about(
    run_dir: Path, version: str, command: Sequence[str], iterations: int | None = None, max_restarts: int | None = None
) -> None:
    """Write about.json of a run that begins. Raises MachineError."""
    cores = len(os.sched_getaffinity(0))
    machine = (
        f"{socket.gethostname()}, {cores} core{'' if cores == 1 else 's'}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )
    begun = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    about = About(begun, version, machine, [as_text(word) for word in command], iterations, max_restarts)
    write_json(run_dir / ABOUT, about)


def read_about(run_dir: Path) -> About | None:
    """Read about.json; None where there is none. Raises InputError for a damaged file."""
    path = run_dir / ABOUT
    if not path.exists():
        return None
    return read_json(path, About, "make it a readable file", "restore the file, or remove it")


def is_of_command(run_dir: Path) -> bool:
    """Whether a command of nalb began the run. about.json of one of several jobs, or of an attempt, is in the folder above."""
    return any((folder / ABOUT).exists() for folder in (run_dir, run_dir.absolute().parent))


@contextmanager
def running(run_dir: Path) -> Iterator[None]:
    """Hold a lock on about.json meanwhile: `is_held` tells by it that the run goes on, also between two of its jobs."""
    with open(run_dir / ABOUT, "rb+") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_held(run_dir: Path) -> bool | None:
    """Whether a command of this machine runs in the directory; None: that cannot be seen."""
    try:
        with open(run_dir / ABOUT, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
