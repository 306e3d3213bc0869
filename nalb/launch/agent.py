"""`python -m nalb.launch.agent`: the program that ssh starts on a host. It runs one process of the job and ends with it.

Stdin carries one line, the AgentOrder, and then an empty line every few seconds as the launcher's sign of life. Stdout carries the
process's own output and the agent's reports: the launcher removes every report, which begins with REPORT, from the output.
Where the process is the coordinator, reports also carry what it tells its observers, and lines of stdin what they tell it.
The agent kills the process, with all that it started, when stdin ends (launcher dead, connection closed) or stays silent
(the launcher's host or cable is gone).
Paths in the process's environment are this machine's own: machine_env.py finds them. The node's keys come with the order,
which ssh protects. They lie in a private temporary directory until the process has ended; so does the observers' socket.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nalb.errors import MachineError, NalbError
from nalb.launch.machine_env import is_for_ps_lite, machine_environment, own_path, program_of
from nalb.launch.processes import die_with_parent
from nalb.process.guardian import Descent, living_on, mark
from nalb.process.kernel_calls import open_process
from nalb.process.last_words import FOR_THE_LAUNCHER
from nalb.process.private_file import open_private
from nalb.process.proc import stopped_at
from nalb.transport.keys import VARIABLE

VERSION = 4
REPORT = f"{FOR_THE_LAUNCHER}nalb-agent "
SIGN_OF_LIFE_S = 1.0  # the launcher sends a sign of life this often
SILENCE_S = 9.0  # after this time without a sign of life the agent takes the launcher for dead: as ssh a host
LOOK_S = 0.5  # between looks at the process
TERM_GRACE_S = 1.5  # that a process gets to end when asked to, on any machine
KILL_GRACE_S = 1.0  # that a process on a host gets to end when killed
NOT_STARTED = 127  # the exit code that shells give for a command that cannot be started
ORDER_BYTES = 1 << 20


class AgentOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The launcher's order to run one process on this host."""

    version: int
    job: str  # the job's id, for the mark in the process's environment
    slug: str
    argv: Annotated[list[str], Meta(min_length=1)]
    environment: dict[str, str]
    keys: str | None = None  # the key file's content; None: the job is not encrypted
    observers: str | None = (
        None  # the variable for the address of observers, whose frames the agent carries; None: no observers
    )


class AgentReport(Struct, frozen=True, forbid_unknown_fields=True):
    """A report of the agent to the launcher; each report sets one field."""

    ready: int | None = None  # the agent's pid; the agent has read its order
    returncode: int | None = None  # the process has ended, with this return code of Popen
    stopped: bool | None = None  # True: a signal has stopped the process; False: the process runs again
    part: bytes | None = None  # a part of a frame for observers, but for the last part
    frame: bytes | None = None  # the last part of such a frame


def report(word: AgentReport) -> None:
    """Write a report into the output as the rest of a line; the process may have left the line's beginning there."""
    sys.stdout.flush()
    with suppress(OSError):  # the launcher is gone
        os.write(1, REPORT.encode() + msgspec.json.encode(word) + b"\n")


@contextmanager
def files_kept(order: AgentOrder) -> Iterator[dict[str, str]]:
    """Make a place for the keys and the observers' socket; yield the variables that name them. Both are removed afterwards."""
    if order.keys is None and order.observers is None:
        yield {}
        return
    with TemporaryDirectory(prefix="nalb-") as folder, ExitStack() as stack:  # Python gives it mode 0700
        named = {}
        if order.keys is not None:
            named[VARIABLE] = path = os.path.join(folder, "node.keys")
            with open(path, "x", opener=open_private, encoding="ascii") as file:
                file.write(order.keys)
        if order.observers is not None:
            from nalb.launch.run_dir import observer_address  # the agents of other processes do not need it

            named[order.observers] = observer_address(stack, Path(folder))
        yield named


@contextmanager
def carried(order: AgentOrder, files: Mapping[str, str]) -> Iterator[Callable[[bytes], None]]:
    """Carry frames of the coordinator's observers during the block, if the order asks for it; yield what takes the launcher's."""
    if order.observers is None:
        yield lambda _: None
        return
    from nalb.transport.observer_relay import Carrier  # the agents of other processes do not need it

    with Carrier(
        files[order.observers],
        lambda part, is_last: report(AgentReport(frame=part) if is_last else AgentReport(part=part)),
    ) as carrier:
        yield carrier.feed


def start(order: AgentOrder, files: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start the ordered process. Raises OSError, NalbError.

    The program `python` means the agent's own interpreter; a leading ~/ means the home directory on this host.
    """
    base = {name: value for name, value in os.environ.items() if not is_for_ps_lite(name)}
    base["PATH"] = own_path(os.environ)
    base.pop(VARIABLE, None)  # the login's environment may have it, for other keys
    asked = order.environment | files
    environment = {**base, **asked}
    environment |= machine_environment(asked, environment) | mark(order.job, order.slug)
    return subprocess.Popen(
        [program_of(order.argv[0]), *order.argv[1:]],
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent(os.getpid()),
    )


def watch(
    process: "subprocess.Popen[bytes]",
    descent: Descent,
    is_told_to_end: Callable[[], bool],
    take: Callable[[bytes], None],
) -> None:
    """Watch the process until it has ended, the launcher is gone, or the agent is told to end; report stops and wakings.

    `take` gets what the launcher writes. Raises MachineError where this machine cannot watch a process.
    """
    exit_fd = open_process(process.pid)
    poller = select.poll()
    for fd in (0, exit_fd):
        poller.register(fd, select.POLLIN)
    heard_s, was_stopped = time.monotonic(), False
    while process.poll() is None and not is_told_to_end() and time.monotonic() - heard_s < SILENCE_S:
        due_s = time.monotonic() + LOOK_S
        ready = poller.poll(1000 * LOOK_S)
        heard_s += max(0.0, time.monotonic() - due_s)  # this process did not run itself, as the launcher perhaps
        for fd, _ in ready:
            if fd == 0:
                if not (data := os.read(0, 4096)):
                    return
                take(data)
                heard_s = time.monotonic()
        if (stopped_at(process.pid) is not None) != was_stopped:
            was_stopped = not was_stopped
            report(AgentReport(stopped=was_stopped))
        descent.reap([process.pid])


def end(process: "subprocess.Popen[bytes]", descent: Descent) -> None:
    """End the process if it still runs, and all that it started. One that stays is named in the process's output."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):  # behind sudo the process is another user's
            os.killpg(process.pid, signal.SIGTERM)
            os.killpg(process.pid, signal.SIGCONT)  # a stopped process takes SIGTERM only once it continues
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERM_GRACE_S)
    if stay := descent.end([process.pid]):
        print(f"nalb: {living_on(stay)}", flush=True)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_GRACE_S)


def main() -> int:
    """Read the order, run its process until it ends, and return the agent's own exit code."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    try:
        with open(0, "rb", buffering=0, closefd=False) as stdin:  # a buffer would swallow the lines behind the order
            order = msgspec.json.decode(stdin.readline(ORDER_BYTES), type=AgentOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        print(f"nalb: the agent cannot read its order ({error}): install the same nalb everywhere", flush=True)
        return 2
    if order.version != VERSION:
        print(
            f"nalb: the launcher speaks agent version {order.version}, this host {VERSION}: install one nalb on all",
            flush=True,
        )
        return 2
    report(AgentReport(ready=os.getpid()))
    with ExitStack() as stack:
        try:
            files = stack.enter_context(files_kept(order))
        except OSError as error:
            print(
                f"nalb: no place for keys and sockets on this host ({error.strerror}): make room in TMPDIR", flush=True
            )
            returncode = MachineError.exit_code
        else:
            returncode = _run(order, files, stack.enter_context(Descent()), lambda: bool(told))
    report(AgentReport(returncode=returncode))
    return 0


def _run(order: AgentOrder, files: dict[str, str], descent: Descent, is_told_to_end: Callable[[], bool]) -> int:
    """Run the process from start to end; return its return code as Popen gives it."""
    try:
        process = start(order, files)
        with carried(order, files) as take:
            try:
                watch(process, descent, is_told_to_end, take)
            finally:
                end(process, descent)
    except NalbError as error:
        print(f"nalb: {error}", flush=True)
        return error.exit_code
    except OSError as error:
        print(f"nalb: cannot start {order.argv[0]!r} on this host: {error.strerror}", flush=True)
        return NOT_STARTED
    return -signal.SIGKILL if process.returncode is None else process.returncode  # None: it could not be ended


if __name__ == "__main__":
    sys.exit(main())
