"""A file to which whole lines are appended, by several processes, on a disk that may fill up."""

import os
from pathlib import Path
from types import TracebackType


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
