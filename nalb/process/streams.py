"""What becomes of this process's standard output and error."""

import io
import os
import sys
from typing import TextIO


def open_output() -> None:
    """Discard what is printed to a stdout or stderr that is closed, as by `>&-`: Python has none then.

    Characters that the terminal's encoding has not are replaced.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def discard_output(stream: TextIO | None = None) -> None:
    """Discard what is printed after this call, and what Python's buffer still holds. For a stream, or stdout, without a reader."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, (stream or sys.stdout).fileno())
    os.close(nowhere)
