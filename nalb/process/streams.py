"""This process's standard output."""

import os
import sys


def discard_output() -> None:
    """Nobody reads stdout any more: what is printed from now on, and what Python still holds, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
