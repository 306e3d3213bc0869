"""Starts nalb's own programs so that Python's modules and nalb's come before those in the folder where the command runs.

Plain `python -m` and `python -c` look into that folder first: a module `ctypes` that someone left there would run, perhaps as root,
and a user's module `queue` would take the place of Python's.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # where nalb, netem and kvstore_patch lie
# Folders on every Python's path. PYTHONPATH does not name them, since it comes before the standard library, which their packages
# could hide.
INSTALLED = ("site-packages", "dist-packages")


HAS_SAFE_PATH = sys.version_info >= (3, 11)  # Python's option -P, which leaves the working folder out
# Takes that folder out on any Python; with PYTHONSAFEPATH it is not there. `sys` is built in: no folder can hide it.
WITHOUT_FOLDER = "import sys; sys.path[:] = filter(None, sys.path); "
RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def own_argv(module: str, *words: str, python: str | None = None) -> list[str]:
    """The command that runs one of nalb's modules, with `words` as its arguments.

    python: another Python than this one, such as a host's, of any version.
    """
    if python is None and HAS_SAFE_PATH:
        return [sys.executable, "-P", "-m", module, *words]
    return [python or sys.executable, "-c", WITHOUT_FOLDER + RUN_MODULE, module, *words]


def own_code_argv(code: str, *words: str) -> list[str]:
    """The command that runs `code`, lines of Python that are nalb's own."""
    if HAS_SAFE_PATH:
        return [sys.executable, "-P", "-c", code, *words]
    return [sys.executable, "-c", WITHOUT_FOLDER + code, *words]


def python_path(inherited: str, *first: str) -> str:
    """A PYTHONPATH of `first`, nalb's own folder and the user's entries, but without empty ones, which mean the working folder."""
    own = [*first, *([] if ROOT.name in INSTALLED else [str(ROOT)])]
    return os.pathsep.join([*own, *(entry for entry in inherited.split(os.pathsep) if entry and entry not in own)])
