"""Makes a run's directory, appends to its file of events, and names the socket of the coordinator's observers."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nalb.errors import InputError, MachineError
from nalb.events import AnyEvent, FailureEvent, encode_line
from nalb.failures import Failure, JobFailed
from nalb.process.line_file import LineFile
from nalb.transport.observer_door import SOCKET_PATH_BYTES

SAMPLES = "samples.jsonl"
# each run leaves one at least, or its trainings leave their samples in folders of their own
SIGNS_OF_A_RUN = (SAMPLES, "run.json", "batching.json", "parallel.json", "logs", "checkpoints")


def make_run_dir(out: str | None) -> Path:
    """Make the run directory `out`, or a new one under runs/ where `out` is None or empty.

    Raises InputError where the directory holds a run already or cannot be made.
    """
    path = Path(out) if out else Path("runs") / time.strftime("%Y%m%d-%H%M%S")
    try:
        path = path.absolute()
        if not out:
            return _new_folder(path)
        if any((path / name).exists() for name in SIGNS_OF_A_RUN) or _has_trainings(path):
            raise InputError(f"{path} already holds a run: choose another --out")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not out:
            what = (
                f"{path.parent}: {error.strerror}: make it a folder that you may write to, or choose another by --out"
            )
            raise InputError(what) from None
        raise InputError(f"--out {path}: {error.strerror}: choose another") from None
    return path


def _has_trainings(path: Path) -> bool:
    """Whether a comparison has left folders of its trainings there. Nodes of one job may have theirs there too, with about.json."""
    return any(not (samples.parent / "about.json").exists() for samples in path.glob(f"*/{SAMPLES}"))


def _new_folder(path: Path) -> Path:
    """Make a folder of this name, with a number appended where another run began in the same second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new, number = path, 1
    while True:
        try:
            new.mkdir()
            return new
        except FileExistsError:
            number += 1
            new = path.with_name(f"{path.name}-{number}")


def append_event(samples: Path, event: AnyEvent) -> None:
    """Append an event to the file `samples`; for events that no coordinator writes. Raises MachineError."""
    try:
        with LineFile(samples) as file:
            file.append(encode_line(event))
    except OSError as error:
        raise MachineError(f"{samples}: {error.strerror}: make room or choose another --out") from None


def note_failure(failure: Failure, run_dir: Path) -> None:
    """Append a job's failure to the run's file of events."""
    with suppress(MachineError):  # the failure is printed in any case, also where the disk is full
        append_event(run_dir / SAMPLES, FailureEvent(at_s=time.monotonic(), failure=failure))


@contextmanager
def failure_noted(run_dir: Path) -> Iterator[None]:
    """Append the failure with which a job ends meanwhile, and let it pass."""
    try:
        yield
    except JobFailed as error:
        note_failure(error.failure, run_dir)
        raise


def observer_address(stack: ExitStack, run_dir: Path, name: str = "observers") -> str:
    """An ipc address in the run directory, so that a run leaves no socket elsewhere, however it ends.

    An abstract address would leave no file, but other network namespaces cannot reach it. A path that is too long for a socket, or
    is not UTF-8, is replaced by a short path through this process's open handle of the directory.
    """
    path = run_dir / name
    stack.callback(path.unlink, missing_ok=True)
    is_text = str(path).isprintable()  # bytes that are not UTF-8 stand as surrogates in it, which are not
    if is_text and len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return f"ipc://{path}"
    handle = os.open(run_dir, os.O_PATH | os.O_DIRECTORY)
    stack.callback(os.close, handle)
    return f"ipc:///proc/{os.getpid()}/fd/{handle}/{name}"
