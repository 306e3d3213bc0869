"""A run's directory, its file of events, and the socket on which the coordinator listens for observers."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

from nalb.errors import InputError, MachineError
from nalb.events import AnyEvent, encode_line
from nalb.process.line_file import LineFile

SIGNS_OF_A_RUN = ("samples.jsonl", "run.json", "batching.json", "logs", "checkpoints")  # it leaves one at least
SOCKET_PATH_BYTES = 107  # sun_path of a unix socket, less its end


def make_run_dir(out: str | None) -> Path:
    """The run directory, new or without a run; InputError where it holds one already."""
    path = (Path(out) if out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")).absolute()
    try:
        if not out:
            return _new_folder(path)
        if any((path / name).exists() for name in SIGNS_OF_A_RUN):
            raise InputError(f"{path} already holds a run: choose another --out")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}: choose another") from None
    return path


def _new_folder(path: Path) -> Path:
    """Of this name, or with a number behind it where another run began in the same second."""
    new, number = path, 1
    while True:
        try:
            new.mkdir(parents=True)
            return new
        except FileExistsError:
            number += 1
            new = path.with_name(f"{path.name}-{number}")


def append_event(samples: Path, event: AnyEvent) -> None:
    """Note an event that no coordinator writes. Raises MachineError."""
    try:
        with LineFile(samples) as file:
            file.append(encode_line(event))
    except OSError as error:
        raise MachineError(f"{samples}: {error.strerror}: make room or choose another --out") from None


def observer_address(stack: ExitStack, run_dir: Path, name: str = "observers") -> str:
    """An ipc address in the run directory, so that nothing lies elsewhere however the run ends.

    An abstract address would leave no file, but is seen in one network namespace only. A path too long for a socket is
    named through this process's handle of the directory, which is short.
    """
    path = run_dir / name
    stack.callback(path.unlink, missing_ok=True)
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return f"ipc://{path}"
    handle = os.open(run_dir, os.O_PATH | os.O_DIRECTORY)
    stack.callback(os.close, handle)
    return f"ipc:///proc/{os.getpid()}/fd/{handle}/{name}"
