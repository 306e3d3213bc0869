"""Finds the built C code of a package."""

import importlib.machinery
from pathlib import Path

from nalb.errors import MachineError


def built_library(folder: Path, name: str, what: str) -> Path:
    """The path of the shared library `name` in a package's folder. Raises MachineError if `what` (for people) was not built."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / (name + suffix)
        if path.exists():
            return path
    raise MachineError(f"{folder}: {what} is not built: run `pip install .` where there is a C compiler")
