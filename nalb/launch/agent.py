"""`python -m nalb.launch.agent`: what ssh starts on a host; it runs one process of the job there and ends with it.

In, on stdin: one line, the Order; then a byte every few seconds as the launcher's sign of life. Out, on stdout: the
process's own output, and lines that begin with REPORT, which the launcher takes out. The process is killed, with all it
started, when stdin ends (launcher dead, connection closed) or stays silent (host or cable of the launcher gone).
Paths in the process's environment are this machine's own: machine_env.py finds them. The node's keys come with the order, since
ssh protects it, and lie in a private temporary directory until the process has ended.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nalb.errors import NalbError
from nalb.launch.machine_env import is_for_ps_lite, machine_environment, own_path
from nalb.launch.processes import die_with_parent, stopped_at
from nalb.process.guardian import Descent, living_on, mark, reap_adopted
from nalb.process.last_words import FOR_THE_LAUNCHER
from nalb.transport.keys import VARIABLE

VERSION = 3
REPORT = f"{FOR_THE_LAUNCHER}nalb-agent "
SIGN_OF_LIFE_S = 2.0  # how often the launcher sends one
SILENCE_S = 8.0  # without one the launcher is taken for dead
TERM_GRACE_S = 1.5
NOT_STARTED = 127  # as shells have it
ORDER_BYTES = 1 << 20


class Order(Struct, frozen=True, forbid_unknown_fields=True):
    """What the launcher wants run here."""

    version: int
    job: str  # of the mark in the environment
    slug: str
    argv: Annotated[list[str], Meta(min_length=1)]
    environment: dict[str, str]
    keys: str | None = None  # the key file's content; None: the job is not encrypted


class AgentReport(Struct, frozen=True, forbid_unknown_fields=True):
    """A word of the agent's to the launcher."""

    ready: int | None = None  # the agent's pid: it has its order
    returncode: int | None = None  # the process has ended, as Popen has it
    stopped: bool | None = None  # a signal has stopped it, or woken it


def report(word: AgentReport) -> None:
    """Write a line of our own into the output; behind what the process may have left without a line's end."""
    sys.stdout.flush()
    with suppress(OSError):  # the launcher is gone
        os.write(1, REPORT.encode() + msgspec.json.encode(word) + b"\n")


@contextmanager
def keys_kept(order: Order) -> Iterator[dict[str, str]]:
    """The variable that names the order's keys, in a file that is gone afterwards."""
    if order.keys is None:
        yield {}
        return
    with TemporaryDirectory(prefix="nalb-keys-") as folder:  # of mode 0700
        path = os.path.join(folder, "node.keys")
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600), encoding="ascii") as file:
            file.write(order.keys)
        yield {VARIABLE: path}


def start(order: Order, keys: dict[str, str]) -> "subprocess.Popen[bytes]":
    """Start the process; `python` as its program means the agent's own, a leading ~/ the home here. Raises OSError, NalbError."""
    base = {name: value for name, value in os.environ.items() if not is_for_ps_lite(name)}
    base["PATH"] = own_path(os.environ)
    base.pop(VARIABLE, None)  # of whoever logs in here
    asked = order.environment | keys
    environment = {**base, **asked}
    environment |= machine_environment(asked, environment) | mark(order.job, order.slug)
    return subprocess.Popen(
        [os.path.expanduser(order.argv[0]), *order.argv[1:]],
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent(os.getpid()),
    )


def watch(process: "subprocess.Popen[bytes]", is_told_to_end: Callable[[], bool]) -> None:
    """Return when the process has ended, or when the launcher is gone."""
    exit_fd = os.pidfd_open(process.pid)
    poller = select.poll()
    for fd in (0, exit_fd):
        poller.register(fd, select.POLLIN)
    heard_s, was_stopped = time.monotonic(), False
    while process.poll() is None and not is_told_to_end() and time.monotonic() - heard_s < SILENCE_S:
        for fd, _ in poller.poll(500):
            if fd == 0:
                if not os.read(0, 4096):
                    return
                heard_s = time.monotonic()
        if (stopped_at(process.pid) is not None) != was_stopped:
            was_stopped = not was_stopped
            report(AgentReport(stopped=was_stopped))
        reap_adopted(process.pid)


def end(process: "subprocess.Popen[bytes]", descent: Descent) -> None:
    """End the process, if need be, and whatever it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            os.killpg(process.pid, signal.SIGCONT)  # one that is stopped takes the first only when it goes on
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERM_GRACE_S)
    if stay := descent.end([process.pid]):
        print(f"nalb: {living_on(stay)}", flush=True)
    process.wait()


def main() -> int:
    """Take the order and see it through."""
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: told.append(number))
    try:
        order = msgspec.json.decode(sys.stdin.buffer.readline(ORDER_BYTES), type=Order)
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
    with keys_kept(order) as keys, Descent() as descent:
        returncode = _run(order, keys, descent, lambda: bool(told))
    report(AgentReport(returncode=returncode))
    return 0


def _run(order: Order, keys: dict[str, str], descent: Descent, is_told_to_end: Callable[[], bool]) -> int:
    """The process from start to end; what Popen has of it."""
    try:
        process = start(order, keys)
    except NalbError as error:
        print(f"nalb: {error}", flush=True)
        return error.exit_code
    except OSError as error:
        print(f"nalb: cannot start {order.argv[0]!r} on this host: {error.strerror}", flush=True)
        return NOT_STARTED
    watch(process, is_told_to_end)
    end(process, descent)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
