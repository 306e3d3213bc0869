"""A started process of the job, as the supervisor handles it: its output, its ending, and the means to end it."""

import ctypes
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nalb.errors import InputError
from nalb.failures import Failure
from nalb.launch.machine_env import is_for_ps_lite, machine_environment
from nalb.launch.roles import ProcessSpec
from nalb.launch.signals import held_back
from nalb.process import guardian
from nalb.process.exhaustion import explained
from nalb.process.last_words import failure_in
from nalb.process.proc import stopped_at
from nalb.transport.keys import VARIABLE

PR_SET_PDEATHSIG = 1  # linux/prctl.h
TAIL_LINES = 50
# people and the kernel send these signals; the process's output does not explain them
SENT_BY_PEOPLE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Ending:
    """The way in which a process ended."""

    exit_code: int  # 128 + n after signal n, as shells report it
    what: str  # 'exited with 3', 'was killed by SIGKILL'
    is_explained: bool = True  # whether the process's last output may explain its ending

    @property
    def is_good(self) -> bool:
        """Whether the process ended with exit code 0."""
        return self.exit_code == 0


def ending_of(returncode: int) -> Ending:
    """The ending that Popen's return code describes; the code is negative after a signal."""
    if returncode >= 0:
        return Ending(returncode, f"exited with {returncode}")
    number = -returncode
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = " (by someone, or by the kernel where memory ran out: see dmesg)" if number == signal.SIGKILL else ""
    return Ending(128 + number, f"was killed by {name}{hint}", number not in SENT_BY_PEOPLE)


class LocalProcess:
    """A process on this machine, in a session of its own, so that Ctrl-C reaches the launcher alone."""

    is_here = True  # whether popen is the process itself

    def __init__(self, spec: ProcessSpec, popen: "subprocess.Popen[bytes]", is_paced: bool = False):
        """is_paced: netem's duty cycle stops and wakes the process, so that it means nothing that a signal has stopped it."""
        self.spec, self.popen, self._is_paced = spec, popen, is_paced
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.failure: Failure | None = None  # the failure that the process itself has reported
        self.is_read = False  # the output has ended and was read to its end
        self.state_shown_s = 0.0  # the time when an unfinished line of it was last shown

    def poll(self) -> Ending | None:
        """The process's ending, or None while it runs."""
        code = self.popen.poll()
        return None if code is None else ending_of(code)

    def stopped_at(self) -> int | None:
        """What nalb.process.proc.stopped_at says of this process; None where it is paced."""
        return None if self._is_paced else stopped_at(self.popen.pid)

    def take_line(self, line: str) -> str | None:
        """Take a line of the process's output; return the part to log and show, or None if there is nothing to show."""
        text, failure = failure_in(line)
        self.failure = failure or self.failure
        if failure and not text:
            return None
        self.tail.append(text)
        return text

    def last_line(self) -> str:
        """The last line of the process's output that is not empty; empty if there is none."""
        return next((line.strip() for line in reversed(self.tail) if line.strip()), "")

    def ask_to_end(self) -> None:
        """Ask the process group to end, by SIGTERM."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a stopped process takes SIGTERM only once it continues

    def kill(self) -> None:
        """Kill the process and its process group at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.popen.poll() is None:  # not reaped yet, so the id still belongs to this process
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)


def start_here(
    spec: ProcessSpec, argv: list[str], inherited: Mapping[str, str], job: str, is_paced: bool = False
) -> LocalProcess:
    """Start a process on this machine; it dies with this process. `argv` is the spec's argv, perhaps wrapped.

    Raises InputError where the command cannot be started.
    """
    base = {name: value for name, value in inherited.items() if not is_for_ps_lite(name)}
    environment = {**base, **spec.environment, **machine_environment(spec.environment, inherited)}
    if VARIABLE not in spec.environment:
        environment.pop(VARIABLE, None)  # the launcher's environment may have it, but this job is not encrypted
    try:
        with explained(spec.name), held_back():
            popen = subprocess.Popen(
                argv,
                env=environment | guardian.mark(job, spec.slug),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
    except OSError as error:
        raise InputError(
            f"{spec.name}: cannot start {argv[0]!r}: {error.strerror}: check the command after --"
        ) from None
    return LocalProcess(spec, popen, is_paced)


def die_with_parent(parent: int) -> Callable[[], None]:
    """A preexec_fn that has the kernel kill the child when the thread that started it ends, however that ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before prctl
            os._exit(1)

    return prepare
