"""Lets only one job at a time use a folder of checkpoints: another job's start would remove what the first is writing.

All processes of a job share a lock of the kernel's on one file of the folder, which contains the job's name. The lock ends with the
processes that hold it, however they end. The file stays: after its removal, a lock on a new file could not lock out a process that
has the old one open.

Choice not taken: a file whose existence is the lock. The file of a killed job would keep everyone out.
"""

import fcntl
import logging
from pathlib import Path
from typing import IO

from nalb.errors import CheckpointError

FILE = ".lock"
VARIABLE = "NALB_CHECKPOINTS_JOB"  # the environment variable that gives the job's name
log = logging.getLogger(__name__)


def claim(folder: Path, job: str) -> IO[str]:
    """Claim the folder for a job, for as long as the returned file is open.

    `job` is its name for people, which no other job has. Raises CheckpointError if another job has the folder, and names it. A
    folder that cannot be locked is used with a warning.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"checkpoint folder {folder}: {error.strerror}: choose another") from None
    try:
        owner = _owner(file, job)
    except OSError as error:
        log.warning("checkpoint folder %s cannot be locked (%s): give it to no other job", folder, error.strerror)
        return file
    if owner != job:
        file.close()
        raise CheckpointError(f"checkpoint folder {folder} is used by {owner}: wait for its end, or choose another")
    return file


def _owner(file: IO[str], job: str) -> str:
    """Lock the file, and return the name of the job whose it is."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # locked by another process of this job, or by another job
    else:
        file.truncate(0)
        file.write(job)
        file.flush()
    fcntl.flock(file, fcntl.LOCK_SH)  # waits while another process has the file alone, to write its job's name
    file.seek(0)
    return file.read()
