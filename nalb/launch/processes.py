"""A started process of the job, as the supervisor handles it: how it ended, its output, how to end it."""

import ctypes
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nalb.errors import InputError
from nalb.failures import Failure, Moment
from nalb.launch.machine_env import is_for_ps_lite, machine_environment
from nalb.launch.roles import ProcessSpec
from nalb.process import guardian
from nalb.process.exhaustion import explained
from nalb.process.last_words import failure_in, moment_in
from nalb.transport.keys import VARIABLE

PR_SET_PDEATHSIG = 1  # linux/prctl.h
TAIL_LINES = 50
SENT_BY_PEOPLE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the output says nothing about these


@dataclass(frozen=True)
class Ending:
    """How a process ended."""

    exit_code: int  # 128 + n after signal n, as shells have it
    what: str  # 'exited with 3', 'was killed by SIGKILL'
    is_explained: bool = True  # whether its last words may say why

    @property
    def is_good(self) -> bool:
        """Whether it ended as it should."""
        return self.exit_code == 0


def ending_of(returncode: int) -> Ending:
    """From what Popen has: negative after a signal."""
    if returncode >= 0:
        return Ending(returncode, f"exited with {returncode}")
    number = -returncode
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = " (by someone, or by the kernel where memory ran out: see dmesg)" if number == signal.SIGKILL else ""
    return Ending(128 + number, f"was killed by {name}{hint}", number not in SENT_BY_PEOPLE)


def stopped_at(pid: int) -> int | None:
    """The CPU time, in clock ticks, that a process has used which a signal has stopped; None where it runs or is no more.

    A process that is stopped again and again, as by netem's duty cycle, is known by the ticks in between.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return None
    return int(fields[11]) + int(fields[12]) if fields[0] == "T" else None


class LocalProcess:
    """A process on this machine, in a session of its own: Ctrl-C reaches the launcher alone."""

    def __init__(self, spec: ProcessSpec, popen: "subprocess.Popen[bytes]"):
        self.spec, self.popen = spec, popen
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.failure: Failure | None = None  # why it ends, as it has said itself
        self.moment: Moment | None = None  # what the job was about, as its coordinator has said last
        self.is_read = False  # its output has ended, and all of it was taken
        self.state_shown_s = 0.0  # when a line of it was shown that had not ended

    def poll(self) -> Ending | None:
        """How it ended, or None while it runs."""
        code = self.popen.poll()
        return None if code is None else ending_of(code)

    def stopped_at(self) -> int | None:
        """As the function, of this process."""
        return stopped_at(self.popen.pid)

    def take_line(self, line: str) -> str | None:
        """A line of its output came; returns what of it is to be logged and shown, None for nothing."""
        text, failure = failure_in(line)
        text, moment = moment_in(text)
        self.failure, self.moment = failure or self.failure, moment or self.moment
        if (failure or moment) and not text:
            return None
        self.tail.append(text)
        return text

    def last_line(self) -> str:
        """Of its output, but for empty ones."""
        return next((line.strip() for line in reversed(self.tail) if line.strip()), "")

    def ask_to_end(self) -> None:
        """Politely."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # one that is stopped takes the first only when it goes on

    def kill(self) -> None:
        """At once, with its process group."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.popen.poll() is None:  # not yet reaped by us: the id is still its own
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)


def start_here(spec: ProcessSpec, argv: list[str], inherited: Mapping[str, str], job: str) -> LocalProcess:
    """Start a process on this machine; it dies with this one. `argv` is the spec's, perhaps wrapped."""
    base = {name: value for name, value in inherited.items() if not is_for_ps_lite(name)}
    environment = {**base, **spec.environment, **machine_environment(spec.environment, inherited)}
    if VARIABLE not in spec.environment:
        environment.pop(VARIABLE, None)  # the launcher's own; this job was not asked to encrypt
    try:
        with explained(spec.name):
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
    return LocalProcess(spec, popen)


def die_with_parent(parent: int) -> Callable[[], None]:
    """For preexec_fn: the kernel kills the child when the thread that started it ends, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(1)

    return prepare
