"""A folder of checkpoints: written so that a good one is always there, read from the newest that is whole.

A file is written under a temporary name in the same folder, flushed to the disk, renamed, and the folder flushed: under its
own name a checkpoint is whole, or the disk has lost data, which the digest tells. Older ones go only after that. The
temporary name carries the writer's node, so whoever finds one knows who was cut short, and in which iteration.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nalb.checkpoints.file import Checkpoint, DamagedError, decode, encode
from nalb.errors import CheckpointError

VARIABLE = "NALB_CHECKPOINTS"  # the environment's word for the folder
NAME = re.compile(r"checkpoint-(\d{9,})\.nalb")
WRITING = re.compile(r"\.checkpoint-(\d{9,})\.nalb\.(.+)\.writing")


@dataclass(frozen=True)
class Found:
    """A whole checkpoint."""

    path: Path
    data: bytes  # the file
    checkpoint: Checkpoint


@dataclass(frozen=True)
class Skipped:
    """A file that should be a checkpoint."""

    path: Path
    why: str
    is_damaged: bool  # else it could not be read just now


def file_name(iteration: int) -> str:
    """Of the checkpoint taken after so many steps."""
    return f"checkpoint-{iteration:09d}.nalb"


def write(folder: Path, checkpoint: Checkpoint, node: str) -> Path:
    """Write the checkpoint, all or nothing. CheckpointError names iteration and node; older ones stay as they are."""
    path = folder / file_name(checkpoint.progress.iteration)
    temporary = folder / f".{path.name}.{node}.writing"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=_open_private) as file:
            for piece in encode(checkpoint):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _flush(folder)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise CheckpointError(
            f"node {node} cannot write the checkpoint of iteration {checkpoint.progress.iteration}: {error.strerror} in "
            f"{folder}: make room there; older checkpoints are as they were",
            checkpoint.progress.iteration,
        ) from None
    except CheckpointError:
        temporary.unlink()
        raise
    return path


def newest(folder: Path) -> tuple[Found | None, list[Skipped]]:
    """The newest whole checkpoint, and those newer ones that are not. CheckpointError for a whole one that has another format:
    training would begin anew.
    """
    skipped = []
    for path in reversed(paths(folder)):
        try:
            data = path.read_bytes()
            checkpoint = decode(data)
            if file_name(checkpoint.progress.iteration) != path.name:
                raise DamagedError(f"it is of iteration {checkpoint.progress.iteration}: it was renamed")
        except OSError as error:
            skipped.append(Skipped(path, error.strerror or str(error), False))
            continue
        except DamagedError as error:
            skipped.append(Skipped(path, str(error), True))
            continue
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {path}: {error}") from None
        return Found(path, data, checkpoint), skipped
    return None, skipped


def prune(written: Path, keep: int) -> None:
    """Remove all that are older than the one just written but the newest `keep - 1`.

    Newer ones stay: they could not be read when training began, so it went on from an older one.
    """
    older = [path for path in reversed(paths(written.parent)) if _iteration(path) < _iteration(written)]
    for path in older[keep - 1 :]:
        with suppress(OSError):
            path.unlink()


def paths(folder: Path) -> list[Path]:
    """Files with a checkpoint's name, older ones first."""
    return sorted((path for path in _entries(folder) if NAME.fullmatch(path.name)), key=_iteration)


def cut_short(folder: Path) -> dict[str, int]:
    """Nodes that were interrupted while they wrote a checkpoint, and of which iteration."""
    return {match[2]: int(match[1]) for path in _entries(folder) if (match := WRITING.fullmatch(path.name))}


def sweep(folder: Path, node: str | None = None) -> None:
    """Remove what interrupted writers left, of one node or of all; only while none of these writes."""
    for path in _entries(folder):
        if (match := WRITING.fullmatch(path.name)) and node in (None, match[2]):
            with suppress(OSError):
                path.unlink()


def _open_private(path: str, flags: int) -> int:
    """Weights may tell what they were trained on."""
    return os.open(path, flags, 0o600)


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
    finally:
        os.close(handle)
