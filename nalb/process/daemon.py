"""Processes that outlive the command that starts them: those of a network, which go when its namespaces are emptied, and
guardians, which clean up after it."""

import os
import subprocess
import sys
from pathlib import Path

from nalb.errors import MachineError
from nalb.process.exhaustion import explained
from nalb.process.proc import require_own_proc

READY_DEADLINE_S = 60.0


def start(argv: list[str], what: str) -> str:
    """Run argv until it calls `detach`; returns its last words before. Raises MachineError where it never does."""
    try:
        with explained(what):
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=_environment(),
                timeout=READY_DEADLINE_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise MachineError(f"{what} is not ready after {READY_DEADLINE_S:g} s: look at this machine's load") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise MachineError(f"{what} cannot be started ({lines[-1]}): see `nalb doctor`")
    return done.stdout.strip()


def start_guardian(words: list[str], what: str) -> "subprocess.Popen[bytes]":
    """`python -m WORDS`, which sees by the end of its stdin that this process is gone; Ctrl-C passes it by.

    Raises MachineError where it could not find what it is to end.
    """
    require_own_proc()
    with explained(what):
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    """This process's, in which our packages are found."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


def detach(ready: str) -> None:
    """Go on in the background, in a session of its own; the process that was started says `ready` and ends."""
    if os.fork():
        print(ready, flush=True)
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
