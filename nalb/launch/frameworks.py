"""Which framework a job's workers train with: the one that the user names, or the only one that their Python has.

The workers' Python is the command's program where that is a Python, and this one where it is a wrapper.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

from nalb.errors import InputError, MachineError
from nalb.process.own_program import WITHOUT_FOLDER

MXNET, TORCH = FRAMEWORKS = ("mxnet", "torch")
INSTALL = {MXNET: "pip install 'nalb[mxnet]'", TORCH: "pip install torch"}
ASK = f"import importlib.util as u; print(*(name for name in {FRAMEWORKS} if u.find_spec(name)))"
ANSWER_LIMIT_S = 60.0  # Python starts within a second, from a cold disk within some
_PYTHON = re.compile(r"python[0-9.]*")


def frameworks_of(python: str) -> list[str]:
    """The frameworks that this Python finds. Raises MachineError where it does not run."""
    try:
        asked = subprocess.run(
            [python, "-c", WITHOUT_FOLDER + ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError(f"{python} does not say which framework it has ({error}): add --framework") from None
    return asked.stdout.split()


def chosen(given: str | None, command: Sequence[str]) -> str:
    """The framework: `given`, or the only one of the command's Python. Raises InputError if it has both, MachineError if none."""
    program = shutil.which(command[0]) or command[0]
    is_python = _PYTHON.fullmatch(os.path.basename(program)) is not None
    if given is not None and not is_python:
        return given  # a wrapper may bring any Python
    python = program if is_python else sys.executable
    found = frameworks_of(python)
    if given is not None and given not in found:
        raise MachineError(f"{python} has no {given}: {INSTALL[given]} there, or name another Python")
    if given is None and len(found) > 1:
        raise InputError(f"{python} has {' and '.join(found)}: say which one trains, by --framework")
    if given is None and not found:
        ways = " or ".join(INSTALL.values())
        raise MachineError(f"{python} has neither {' nor '.join(FRAMEWORKS)}: {ways}, or name another Python")
    return given or found[0]
