"""Follows the events of a run from its files alone: the job does no work for whoever looks, and knows of nobody.

The coordinator appends each event to samples.jsonl as soon as the disk takes it, so a follower also sees what came before it.
Messages of single iterations, which make up most of the file, are passed over. A run that was restarted goes on in restart-1,
restart-2 and so on.
The coordinator's socket for observers stands in the directory as long as a job runs, and the command that runs one or several jobs
holds a lock; the absence of both tells that the run is over, unless no command of nalb began it.
Choice not taken: to connect to that socket, which tells the same events, and those before it not at all.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nalb.errors import InputError
from nalb.events import AnyEvent
from nalb.reporting.about_file import is_held, is_of_command
from nalb.reporting.attempts import RESTART
from nalb.reporting.run_file import SAMPLES, event_of, require_possible

PASSED_OVER = b'{"event":"samples"'
READ_MOST = 1 << 24  # bytes that are read at once


def newest_restart(run_dir: Path) -> int:
    """The number of the run's newest attempt; 0 for the first one. Raises InputError where the directory cannot be read."""
    try:
        names = [path.name for path in run_dir.iterdir()]
    except OSError as error:
        raise InputError(f"{run_dir}: {error.strerror}: is the run directory gone?") from None
    return max((int(match[1]) for name in names if (match := RESTART.fullmatch(name))), default=0)


@dataclass
class RunTail:
    """Reads the events that were appended to a run since the last look."""

    run_dir: Path
    restarts: int = field(default=0, init=False)
    _read_bytes: int = field(default=0, init=False)  # of the newest attempt's file

    def __post_init__(self) -> None:
        """Raises InputError where there is no such directory."""
        if not self.run_dir.is_dir():
            raise InputError(
                f"{self.run_dir}: no such directory: give the run directory that the job printed, or its --out"
            )

    @property
    def attempt_dir(self) -> Path:
        """The directory of the attempt that is read."""
        return self.run_dir / f"restart-{self.restarts}" if self.restarts else self.run_dir

    @property
    def is_running(self) -> bool:
        """Whether a command holds the directory, or a coordinator's socket stands in that of the newest attempt.

        A guardian removes the socket of a killed job.
        """
        if is_held(self.run_dir):
            return True
        folder = self.run_dir / f"restart-{newest}" if (newest := newest_restart(self.run_dir)) else self.run_dir
        return any(path.is_socket() for path in folder.glob("observers*"))

    @property
    def sees_end(self) -> bool:
        """Whether it can be seen that the run is over: a command of nalb began it, or a coordinator's socket stands."""
        return is_of_command(self.run_dir) or self.is_running

    def fresh(self) -> Iterator[AnyEvent]:
        """Yield the new events, from whole lines only. Raises InputError for a line that is no event."""
        newest = newest_restart(
            self.run_dir
        )  # asked before reading, so that the end of the attempt before is not missed
        yield from self._appended()
        while self.restarts < newest:
            self.restarts, self._read_bytes = self.restarts + 1, 0
            yield from self._appended()

    def _appended(self) -> Iterator[AnyEvent]:
        path = self.attempt_dir / SAMPLES
        try:
            with open(path, "rb") as file:
                file.seek(self._read_bytes)
                rest = b""
                while part := file.read(READ_MOST):
                    *lines, rest = (rest + part).split(b"\n")
                    for line in lines:
                        where = f"{path}, byte {self._read_bytes}"
                        event = None if line.startswith(PASSED_OVER) else event_of(line, where)
                        if event is not None:
                            require_possible(event, where)
                        self._read_bytes += len(line) + 1  # a wrong line stays the next one to read
                        if event is not None:
                            yield event
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; make it a readable file") from None
