"""A folder of checkpoints. Writers always leave a whole one in it; readers take the newest whole one.

A file is written under a temporary name in the same folder, flushed to the disk and renamed; then the folder is flushed. So a
file under a checkpoint's name is whole, unless the disk has lost data, which the digest shows. Older checkpoints are removed only
after that. The temporary name carries the writer's node and the iteration, so a file that is left over tells who was interrupted,
and when.
"""

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nalb.checkpoints.file import Checkpoint, DamagedError, Progress, decode, encode, progress_in
from nalb.errors import CheckpointError, is_full
from nalb.process.private_file import open_private

VARIABLE = "NALB_CHECKPOINTS"  # the environment variable that names the folder
NAME = re.compile(r"checkpoint-(\d{9,})\.nalb")
WRITING = re.compile(r"\.checkpoint-(\d{9,})\.nalb\.(.+)\.writing")
BEGINNING_BYTES = 1 << 20  # a header has about 100 bytes for each array
T = TypeVar("T")


@dataclass(frozen=True)
class Found:
    """A whole checkpoint that was found."""

    path: Path
    data: bytes  # the file's content
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Skipped:
    """A file that has a checkpoint's name but could not be used."""

    path: Path
    why: str
    is_damaged: bool  # False: it could not be read just now


def file_name(iteration: int) -> str:
    """The name of the checkpoint that is taken after `iteration` steps."""
    return f"checkpoint-{iteration:09d}.nalb"


def write(folder: Path, checkpoint: Checkpoint, node: str) -> Path:
    """Write the checkpoint, all or nothing, and return its path. Older checkpoints stay as they are.

    Raises CheckpointError, which names iteration and node.
    """
    path = folder / file_name(checkpoint.progress.iteration)
    temporary = folder / f".{path.name}.{node}.writing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=open_private) as file:  # weights may tell what they were trained on
            for piece in encode(checkpoint):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _flush(folder)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        remedy = "make room there" if is_full(error) else "choose another"
        raise CheckpointError(
            f"node {node} cannot write the checkpoint of iteration {checkpoint.progress.iteration}: {error.strerror} in "
            f"{folder}: {remedy}; older checkpoints are as they were",
            checkpoint.progress.iteration,
        ) from None
    except CheckpointError:
        temporary.unlink()
        raise
    return path


def newest(folder: Path) -> tuple[Found | None, list[Skipped]]:
    """Find the newest whole checkpoint, and the newer files that are not whole.

    Raises CheckpointError for a whole checkpoint of another format: if it were passed over, training would begin anew.
    """
    return _first(folder, _whole)


def newest_progress(folder: Path) -> tuple[Progress | None, list[Skipped]]:
    """Find the progress of the newest checkpoint, as `newest` does, but read only the beginnings of files.

    Damage within a file's arrays does not show. A file is read whole where its beginning does not tell the progress.
    """
    return _first(folder, _progress)


def _whole(path: Path) -> Found:
    """The checkpoint in this file. Raises CheckpointError, OSError."""
    data = path.read_bytes()
    checkpoint = decode(data)
    _check_name(path, checkpoint.progress)
    return Found(path, data, checkpoint)


def _progress(path: Path) -> Progress:
    """The progress of the checkpoint in this file. Raises CheckpointError, OSError."""
    with path.open("rb") as file:
        progress = progress_in(file.read(BEGINNING_BYTES), os.fstat(file.fileno()).st_size)
    if progress is None:
        return _whole(path).checkpoint.progress
    _check_name(path, progress)
    return progress


def _check_name(path: Path, progress: Progress) -> None:
    if file_name(progress.iteration) != path.name:
        raise DamagedError(f"it is of iteration {progress.iteration}: it was renamed")


def _first(folder: Path, read: Callable[[Path], T]) -> tuple[T | None, list[Skipped]]:
    """What `read` gives for the newest file that it can read, and the newer files. Raises CheckpointError."""
    skipped = list[Skipped]()
    for path in reversed(paths(folder)):
        try:
            return read(path), skipped
        except OSError as error:
            skipped.append(Skipped(path, error.strerror or str(error), False))
        except DamagedError as error:
            skipped.append(Skipped(path, str(error), True))
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {path}: {error}") from None
    return None, skipped


def prune(written: Path, keep: int) -> None:
    """Remove the checkpoints that are older than the one just written, but for the newest `keep - 1` of them.

    Checkpoints newer than that stay: they could not be read when training began, so it went on from an older one.
    """
    older = [path for path in reversed(paths(written.parent)) if _iteration(path) < _iteration(written)]
    for path in older[keep - 1 :]:
        with suppress(OSError):
            path.unlink()


def paths(folder: Path) -> list[Path]:
    """The files with a checkpoint's name, older ones first. Raises CheckpointError if the folder cannot be read."""
    return sorted((path for path in _entries(folder) if NAME.fullmatch(path.name)), key=_iteration)


def cut_short(folder: Path) -> dict[str, int]:
    """The nodes that were interrupted while they wrote a checkpoint, and its iteration."""
    return {match[2]: int(match[1]) for path in _entries(folder) if (match := WRITING.fullmatch(path.name))}


def sweep(folder: Path, node: str | None = None) -> None:
    """Remove the temporary files of interrupted writers, of one node or (None) of all. None of them may be writing meanwhile."""
    for path in _entries(folder):
        if (match := WRITING.fullmatch(path.name)) and node in (None, match[2]):
            with suppress(OSError):
                path.unlink()


def _iteration(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"checkpoint folder {folder}: {error.strerror}: choose another") from None


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems flush no folders
            raise
    finally:
        os.close(handle)
