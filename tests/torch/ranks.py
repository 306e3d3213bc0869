"""Starts a script's ranks on this machine as torchrun does, without its agent."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports

HERE = Path(__file__).resolve().parent
WITHIN_S = 240.0


@dataclass(frozen=True)
class Rank:
    """How one rank ended."""

    code: int
    output: str  # stdout and stderr


def run(script: str, *words: str, size: int, within_s: float = WITHIN_S, **environment: str) -> list[Rank]:
    """Run the script in `size` processes until all have ended. Whoever is left after `within_s` is killed, with its agent."""
    started = start(script, *words, size=size, **environment)
    return wait(started, within_s)


def start(script: str, *words: str, size: int, **environment: str) -> list[subprocess.Popen[str]]:
    """Start the ranks, each the leader of a session of its own."""
    (port,) = free_ports(1)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, str(HERE / script), *words]
    return [
        subprocess.Popen(
            argv,
            env=os.environ | told | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        for rank in range(size)
    ]


def wait(started: list[subprocess.Popen[str]], within_s: float = WITHIN_S) -> list[Rank]:
    """Wait for all, and read what they said."""
    end_s = time.monotonic() + within_s
    outputs = []
    for one in started:
        try:
            outputs.append(one.communicate(timeout=max(end_s - time.monotonic(), 0.1))[0])
        except subprocess.TimeoutExpired:
            os.killpg(one.pid, signal.SIGKILL)
            outputs.append(one.communicate()[0] + f"\nkilled after {within_s:g} s")
    return [Rank(one.returncode, output) for one, output in zip(started, outputs, strict=True)]


def agents_of(pid: int) -> list[int]:
    """The children of a rank that are nalb's."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((one / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"nalb.plane" in (one / "cmdline").read_bytes():
                found.append(int(one.name))
        except OSError:
            continue
    return found


def runs(pid: int) -> bool:
    """Whether the process is there; one that nobody has waited for yet is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
