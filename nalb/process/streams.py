"""What becomes of this process's standard output."""

import os
import sys


def discard_output() -> None:
    """Discard what is printed after this call, and what Python's buffer still holds. For a stdout that has lost its reader."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
