"""One job at a time uses a folder of checkpoints: another's start would remove what the first is writing.

All processes of a job share a lock of the kernel's on one file of the folder, which holds the job's name. The lock goes with the
processes that hold it, however they end; the file stays, since whoever removed it could lock out nobody that has it open.
Choice not taken: a file that is there or not. What a killed job left would keep everyone out.
"""

import fcntl
import logging
from pathlib import Path
from typing import IO

from nalb.errors import CheckpointError

FILE = ".lock"
VARIABLE = "NALB_CHECKPOINTS_JOB"  # the environment's word for the job's name
log = logging.getLogger(__name__)


def claim(folder: Path, job: str) -> IO[str]:
    """The folder is the job's while the file that is returned is open. CheckpointError names the other job that has it.

    job: its name, for people, which no other has. A folder that cannot be locked is used with a warning.
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
    """Lock the file, and say whose it is."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # by another process of this job, or by another job
    else:
        file.truncate(0)
        file.write(job)
        file.flush()
    fcntl.flock(file, fcntl.LOCK_SH)  # others have it alone for as long as it takes to write their name
    file.seek(0)
    return file.read()
