"""How nalb starts programs of its own: Python's modules and nalb's come before anything in the folder where the command runs.

`python -m` and `python -c` alone look into that folder first: a module `ctypes` that someone left there would run, perhaps as root,
and a user's module `queue` would take the place of Python's.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # where nalb, netem and kvstore_patch lie
# These are on every Python's path. PYTHONPATH comes before the standard library, which their packages could hide.
INSTALLED = ("site-packages", "dist-packages")


HAS_SAFE_PATH = sys.version_info >= (3, 11)  # the option -P, which leaves the working folder out
WITHOUT_FOLDER = "import sys; del sys.path[0]; "
RUN_MODULE = "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"


def own_argv(module: str, *words: str, python: str | None = None) -> list[str]:
    """The command that runs one of nalb's modules. python: another one than this, of a job with MXNet, so that it has -P."""
    if python is None and not HAS_SAFE_PATH:
        return own_code_argv(RUN_MODULE, module, *words)
    return [python or sys.executable, "-P", "-m", module, *words]


def own_code_argv(code: str, *words: str) -> list[str]:
    """The command that runs lines of nalb's own."""
    if HAS_SAFE_PATH:
        return [sys.executable, "-P", "-c", code, *words]
    return [sys.executable, "-c", WITHOUT_FOLDER + code, *words]


def python_path(inherited: str, *first: str) -> str:
    """A PYTHONPATH of `first`, of nalb's own place and of the user's entries, but for empty ones: they mean the working folder."""
    own = [*first, *([] if ROOT.name in INSTALLED else [str(ROOT)])]
    return os.pathsep.join([*own, *(entry for entry in inherited.split(os.pathsep) if entry and entry not in own)])
