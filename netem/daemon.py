"""Processes of a network that outlive the command that starts them, and go when the network's namespaces are emptied."""

import os
import subprocess
from pathlib import Path

from nalb.errors import MachineError
from netem.exhaustion import explained

READY_DEADLINE_S = 60.0


def start(argv: list[str], what: str) -> str:
    """Run argv until it calls `detach`; returns its last words before. Raises MachineError where it never does."""
    root = str(Path(__file__).resolve().parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    try:
        with explained(what):
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=environment,
                timeout=READY_DEADLINE_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise MachineError(f"{what} is not ready after {READY_DEADLINE_S:g} s: look at this machine's load") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise MachineError(f"{what} cannot be started ({lines[-1]}): see `nalb doctor`")
    return done.stdout.strip()


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
