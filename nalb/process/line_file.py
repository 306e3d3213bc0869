"""A file to which whole lines are appended, by several processes, on a disk that may fill up."""

import os
import threading
from pathlib import Path
from types import TracebackType

from nalb.errors import MachineError
from nalb.process.exhaustion import explained

# What may wait for a disk. An iteration of 12 nodes whose messages are listed takes 250 kB (docs/run-files.md), and the first 200
# are listed: all of them have room.
WAITING_MOST_BYTES = 64 << 20


class LineFile:
    """A file that grows by whole lines, and a context that closes it. If a line did not fit, the next still begins on a line of its
    own."""

    def __init__(self, path: str | Path):
        """Open the file, or create it. Raises OSError."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def __enter__(self) -> "LineFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, lines: bytes) -> None:
        """Write `lines`, the last of which ends with a newline. Raises OSError where they do not fit; a part of them may stay."""
        left = memoryview(lines if self._ends_with_a_line() else b"\n" + lines)
        while left:
            left = left[os.write(self._descriptor, left) :]  # a full disk takes a part, and refuses the rest

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _ends_with_a_line(self) -> bool:
        size_bytes = os.fstat(self._descriptor).st_size  # 0 if it is no file on a disk
        return not size_bytes or os.pread(self._descriptor, 1, size_bytes - 1) == b"\n"


class LineWriter:
    """Appends lines to a file in a thread of its own, in order, so that a slow disk keeps nobody waiting.

    One thread alone may use a LineWriter. Each of its methods raises MachineError once lines cannot be written.
    """

    def __init__(self, path: str | Path):
        """Open the file, or create it. Raises OSError, or MachineError where no thread can be started."""
        self._path, self._file = path, LineFile(path)
        self._waiting = bytearray()
        self._is_over = False
        self._news = threading.Condition()  # about the two above
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="line-writer", daemon=True)
        with explained(f"the thread that writes {path}"):
            self._thread.start()

    def append(self, lines: bytes) -> None:
        """Have `lines` written, the last of which ends with a newline. WAITING_MOST_BYTES and one call's lines may wait."""
        self._check()
        with self._news:
            if len(self._waiting) > WAITING_MOST_BYTES:
                raise self._stands_still()
            self._waiting += lines
            self._news.notify()

    def finish(self, limit_s: float) -> None:
        """Wait until all lines are written, and close the file. After limit_s that counts as impossible."""
        with self._news:
            self._is_over = True
            self._news.notify()
        self._thread.join(limit_s)
        self._check()
        if self._thread.is_alive():
            raise self._stands_still()

    def _write(self) -> None:
        try:
            with self._file:
                while lines := self._next():
                    self._file.append(lines)
        except Exception as error:  # told at the next call
            self._error = error

    def _next(self) -> bytes:
        """The lines that wait, as soon as there are any; empty at the end."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._is_over)
            lines, self._waiting = bytes(self._waiting), bytearray()
        return lines

    def _check(self) -> None:
        if self._error is not None:
            why = self._error.strerror if isinstance(self._error, OSError) else type(self._error).__name__
            raise MachineError(f"cannot write {self._path} ({why}): make room")

    def _stands_still(self) -> MachineError:
        return MachineError(f"cannot write {self._path} (its disk stands still or is too slow): choose another disk")
