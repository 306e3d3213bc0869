"""Processes that outlive the command that starts them: those of a network, which end when its namespaces are emptied, and
guardians, which clean up after the command."""

import os
import select
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from nalb.errors import MachineError
from nalb.process.exhaustion import explained
from nalb.process.kernel_calls import open_process, send_signal
from nalb.process.own_program import python_path
from nalb.process.proc import require_own_proc

READY_DEADLINE_S = 60.0
GUARDIANS: set[int] = set()  # pids of this process's guardians
DEATHS_MOST = 3  # of one guardian: then the user is told that something kills it, or keeps it from starting


class Daemon:
    """A process in the background, held by a descriptor, so that it is never taken for a later process of the same id."""

    def __init__(self, pid: int, said: str, what: str):
        """`said` is what the process printed before it went to the background. Raises MachineError if it has ended already."""
        self.pid, self.said, self._what = pid, said, what
        try:
            self._descriptor = open_process(pid)
        except ProcessLookupError:
            raise self._has_ended() from None

    def check(self) -> None:
        """Raise MachineError if the process has ended."""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        if poller.poll(0):
            raise self._has_ended()

    def end(self) -> None:
        """Kill the process, and stop watching it."""
        with suppress(ProcessLookupError):
            send_signal(self._descriptor, signal.SIGKILL)
        os.close(self._descriptor)

    def _has_ended(self) -> MachineError:
        return MachineError(
            f"{self._what} has ended, killed by someone or by the kernel where memory ran out (see dmesg): start again"
        )


def start(argv: list[str], what: str) -> Daemon:
    """Run `argv` until it calls `detach`; `what` names it for people. Raises MachineError where it never does."""
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
    pid, _, said = done.stdout.strip().partition(" ")
    return Daemon(int(pid), said, what)


class Guardian:
    """A process that cleans up after this one, whose end it sees by the end of its stdin. Ctrl-C does not reach it.

    If the guardian has died, `check` starts another and repeats the last line that was said. One thread alone may use a Guardian.
    """

    def __init__(self, argv: Sequence[str], what: str):
        """Start the guardian. Raises MachineError if /proc does not show it the processes that it must end."""
        require_own_proc()
        self._argv, self._what = argv, what
        self._said = b""
        self._deaths = 0
        self._process = self._start()

    def check(self) -> None:
        """Start a new guardian if this one has died. Raises MachineError at its death number DEATHS_MOST."""
        if self._process.poll() is None:
            return
        GUARDIANS.discard(self._process.pid)
        self._deaths += 1
        if self._deaths == DEATHS_MOST:
            ending = f"with {self._process.returncode}" if self._process.returncode >= 0 else "by a signal"
            raise MachineError(
                f"{self._what} has ended {DEATHS_MOST} times, the last time {ending}: nothing would be cleaned up after a kill;"
                " see what it printed, and `nalb doctor`"
            )
        self._close()
        self._process = self._start()
        self.say(self._said)

    def say(self, line: bytes) -> None:
        """Send the guardian a line, which ends with a newline. If the guardian is dead, `check` sends the line to the next one."""
        self._said = line
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def dismiss(self, limit_s: float | None) -> None:
        """Close the guardian's stdin, and wait for its end. It is killed if it has not ended after limit_s; None: no limit."""
        self._close()
        self._process.send_signal(signal.SIGCONT)  # someone may have stopped it
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        GUARDIANS.discard(self._process.pid)

    def _start(self) -> "subprocess.Popen[bytes]":
        with explained(self._what):
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        GUARDIANS.add(process.pid)
        return process

    def _close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a line that the guardian did not take is still in the buffer
            self._process.stdin.close()


def _environment() -> dict[str, str]:
    """This process's environment, with nalb's packages on PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""))}


def detach(ready: str) -> None:
    """Go on in the background, in a session of its own.

    The process that was started prints the pid of the one that goes on, and `ready`, and ends.
    """
    if pid := os.fork():
        print(pid, ready, flush=True)
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
