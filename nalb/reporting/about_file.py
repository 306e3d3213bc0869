"""Reads and writes about.json of a run directory: when, where and by which command and version the run began."""

import os
import platform
import socket
from collections.abc import Sequence
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
