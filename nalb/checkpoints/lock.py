"""Lets only one job at a time use a folder of checkpoints: another job's start would remove what the first is writing.

All processes of a job share a lock of the kernel's on one file of the folder, which contains the job's name. The lock ends with the
processes that hold it, however they end. The file stays: after its removal, a lock on a new file could not lock out a process that
has the old one open.

Choice not taken: a file whose existence is the lock. The file of a killed job would keep everyone out.
"""

import fcntl
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from nalb.errors import CheckpointError

FILE = ".lock"
VARIABLE = "NALB_CHECKPOINTS_JOB"  # the environment variable that gives the job's name
WRITTEN_S = 10.0  # the longest wait for the process that has the file alone to write its job's name
LOOK_S = 0.02
log = logging.getLogger(__name__)


def claim(folder: Path, job: str) -> IO[bytes]:
    """Claim the folder for a job, for as long as the returned file is open.

    `job` is its name for people, which no other job has. Raises CheckpointError if another job has the folder, and names it; also
    if the disk is full. A folder that cannot be locked is used with a warning.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / FILE).open("a+b", buffering=0)
    except OSError as error:
        raise CheckpointError(f"checkpoint folder {folder}: {error.strerror}: choose another") from None
    try:
        _claim(folder, file, job)
    except OSError as error:
        log.warning("checkpoint folder %s cannot be locked (%s): give it to no other job", folder, error.strerror)
    except CheckpointError:
        file.close()
        raise
    return file


def _claim(folder: Path, file: IO[bytes], job: str) -> None:
    """Lock the file. Raises CheckpointError, or OSError where there are no locks."""
    end_s = time.monotonic() + WRITTEN_S
    while not (owner := _owner(folder, file, job)):
        if time.monotonic() > end_s:
            raise CheckpointError(
                f"checkpoint folder {folder}: a process locked {FILE} {WRITTEN_S:g} s ago and has not written its job's name: end "
                "it (lslocks shows it), or choose another"
            )
        time.sleep(LOOK_S)
    if owner != job:
        raise CheckpointError(f"checkpoint folder {folder} is used by {owner}: wait for its end, or choose another")


def _owner(folder: Path, file: IO[bytes], job: str) -> str:
    """Lock the file, and return the name of the job that owns it. The name is empty while no job owns it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # locked by another process of this job, or by another job
    else:
        _write(folder, file, job)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ""  # another process has the file alone, to write its job's name
    file.seek(0)
    if not (owner := os.fsdecode(file.read())):
        fcntl.flock(file, fcntl.LOCK_UN)  # that process could not write it
    return owner


def _write(folder: Path, file: IO[bytes], job: str) -> None:
    """Write the job's name, all or nothing. Raises CheckpointError."""
    try:
        file.truncate(0)
        left = memoryview(os.fsencode(job))
        while left:
            left = left[file.write(left) :]  # a full disk takes a part, and refuses the rest
    except OSError as error:
        with suppress(OSError):
            file.truncate(0)
        raise CheckpointError(
            f"checkpoint folder {folder}: {error.strerror}: make room there, or choose another"
        ) from None
