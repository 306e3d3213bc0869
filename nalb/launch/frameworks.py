"""Which framework a job's workers train with: the one that the user names, or the only one that their Python has.

The workers' Python is the command's program where that is a Python, and this one where it is a wrapper.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from nalb.errors import InputError, MachineError
from nalb.extras import INSTALL, remedy
from nalb.launch.hosts import Host
from nalb.launch.ssh import environment_for_ssh, remote_command, ssh_argv
from nalb.process.own_program import WITHOUT_FOLDER

MXNET, TORCH = FRAMEWORKS = tuple(INSTALL)
ASK = WITHOUT_FOLDER + f"import importlib.util as u; print(*(name for name in {FRAMEWORKS} if u.find_spec(name)))"
ANSWER_LIMIT_S = 60.0  # Python starts within a second, from a cold disk within some
_PYTHON = re.compile(r"python[0-9.]*")


def frameworks_of(python: str) -> list[str]:
    """The frameworks that this Python finds. Raises MachineError where it does not run."""
    try:
        return _answer([python, "-c", ASK])
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError(f"{python} does not say which framework it has ({error}): add --framework") from None


def chosen(given: str | None, command: Sequence[str]) -> str:
    """The framework: `given`, or the only one of the command's Python. Raises InputError if it has both, MachineError if none."""
    program = shutil.which(command[0]) or command[0]
    if given is not None and not _is_python(program):
        return given  # a wrapper may bring any Python
    python = program if _is_python(program) else sys.executable
    found = frameworks_of(python)
    if given is not None and given not in found:
        raise MachineError(f"{python} has no {given}: {remedy(given)}")
    return given or _only(found, python)


def chosen_here() -> str:
    """The only framework of this Python. Raises errors as `chosen`."""
    return _only(frameworks_of(sys.executable), sys.executable)


def chosen_on(host: Host, command: Sequence[str], otherwise: str = MXNET) -> str:
    """The only framework of the command's Python on this host. Raises errors as `chosen`.

    otherwise: that of a host that cannot be asked, since the start of its processes says what is wrong.
    """
    python = command[0] if _is_python(command[0]) and "/" in command[0] else host.python  # without: the agent's own
    try:
        found = _answer([*ssh_argv(host)[:-1], remote_command(host, [python, "-c", ASK])], environment_for_ssh())
    except (OSError, subprocess.SubprocessError):
        return otherwise
    return _only(found, f"{python} of host {host.name}")


def _is_python(program: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(program)) is not None


def _answer(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    asked = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        timeout=ANSWER_LIMIT_S,
        check=True,
    )
    lines = asked.stdout.splitlines()
    answer = lines[-1].split() if lines else []  # a login may print more before
    return [name for name in FRAMEWORKS if name in answer]


def _only(found: Sequence[str], python: str) -> str:
    if len(found) > 1:
        raise InputError(f"{python} has {' and '.join(found)}: say which one trains, by --framework")
    if not found:
        ways = " or ".join(INSTALL.values())
        raise MachineError(f"{python} has neither {' nor '.join(FRAMEWORKS)}: {ways}, or name another Python")
    return found[0]
