"""`python -m netem.delay_line`: delay, jitter, loss and reordering of an emulated network's packets.

Each network has one such process, in the hub's namespace, so removing the network kills it. A link that delays or loses packets is
two veth pairs, whose inner ends are both in the hub's namespace. The process carries packets between these ends, by C code
(delay_line.h says how) in a thread of its own. The rest of the process listens on an abstract socket that only that namespace
sees. It reads a `Request` and answers a `Report`, both as JSON lines.

Packets go through packet sockets, not through a TAP device: on many machines only root may open /dev/net/tun, and networks are
built without root too.
"""

import ctypes
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nalb.errors import MachineError
from nalb.process import daemon
from nalb.process.built_library import built_library
from nalb.process.own_program import own_argv

SOCKET = "\0nalb-delay-line"
ABI = 1  # NALB_DELAY_LINE_ABI of delay_line.h
ANSWER_DEADLINE_S = 10.0
LATE_MS = 0.5  # LATE_NS of delay_line.c
LATE_PART = 0.01  # of all bunches: if more than this part are late, the line did not keep up
NS_PER_MS = 1_000_000


class Joint(msgspec.Struct, frozen=True):
    """A link that the line carries. Its way 0 leads from `first` to `second`, its way 1 back."""

    number: int  # from 0 on
    first: str  # an interface of the hub's namespace
    second: str
    seeds: tuple[int, int]  # one for each way, below 2^64


class Rule(msgspec.Struct, frozen=True):
    """The impairment of a way's packets to one destination, or to all destinations without a rule of their own."""

    joint: int
    way: int
    destination: str | None  # an IPv4 address
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss_percent: float = 0.0
    reorder_percent: float = 0.0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to the line: to start, to change rules, or (if empty) only to report."""

    joints: tuple[Joint, ...] = ()  # all links; the request that names them starts the line
    rules: tuple[Rule, ...] = ()


class Counters(msgspec.Struct, frozen=True):
    """struct nalb_line_counters: what the line has done so far."""

    packets: int = 0  # that came in, counted as on a wire
    bunches: int = 0  # that came in, counted as the kernel hands them over
    lost: int = 0  # packets that were lost on purpose
    late: int = 0  # bunches that left more than LATE_MS after they were due
    worst_late_ns: int = 0
    overrun: int = 0  # bunches that the kernel dropped because they were not fetched in time
    refused: int = 0  # bunches that the kernel did not take or give, or for which there was no memory
    waiting_bytes: int = 0  # what the line holds now
    is_realtime: int = 0  # whether the line has a real-time priority


class LineReport(msgspec.Struct, frozen=True):
    """The line's answer to a request."""

    counters: Counters
    error: str | None = None  # why the request failed


class _Impairment(ctypes.Structure):
    _fields_ = (
        ("delay_ns", ctypes.c_uint64),
        ("jitter_ns", ctypes.c_uint64),
        ("loss_part", ctypes.c_double),
        ("reorder_part", ctypes.c_double),
    )


class _Counters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in Counters.__struct_fields__)


@dataclass(frozen=True)
class Library:
    """The C library, whose version was checked."""

    functions: ctypes.CDLL

    @classmethod
    def load(cls) -> "Library":
        """Load the library. Raises MachineError if it was not built, or has another version."""
        path = built_library(Path(__file__).parent, "_delay_line", "the delay line")
        functions = ctypes.CDLL(str(path))
        if (found := functions.nalb_line_abi()) != ABI:
            raise MachineError(f"{path} has ABI {found}, this nalb needs {ABI}: run `pip install .` again")
        functions.nalb_line_new.restype = ctypes.c_void_p
        functions.nalb_line_uniform.restype = ctypes.c_double
        return cls(functions)

    def uniform(self, seed: int, index: int) -> float:
        """Number `index` of a seed's random stream, uniform from 0 to below 1."""
        return float(self.functions.nalb_line_uniform(ctypes.c_uint64(seed), ctypes.c_uint64(index)))


def require() -> None:
    """Check that a line could run on this machine. Raises MachineError."""
    Library.load()
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    except OSError as error:
        raise MachineError(
            f"the delay line needs packet sockets ({error.strerror}): take a kernel with CONFIG_PACKET"
        ) from error


class Line:
    """Owns the C thread, and carries out requests."""

    def __init__(self, library: Library):
        self._functions = library.functions
        self._line: ctypes.c_void_p | None = None

    def answer(self, request: Request) -> LineReport:
        """Carry out a request; an OSError becomes the report's error."""
        try:
            if request.joints:
                self._start(request)
            else:
                for rule in request.rules:
                    self._set(rule)
            return LineReport(self._counters())
        except OSError as error:
            return LineReport(Counters(), str(error))

    def _start(self, request: Request) -> None:
        self._line = ctypes.c_void_p(self._functions.nalb_line_new(len(request.joints)))
        if not self._line:
            raise MemoryError("no memory for the delay line")
        for joint in request.joints:
            seeds = [ctypes.c_uint64(seed) for seed in joint.seeds]
            failed = self._functions.nalb_line_join(
                self._line, joint.number, joint.first.encode(), joint.second.encode(), *seeds
            )
            _check(failed, f"{joint.first} and {joint.second} cannot be joined")
        for rule in request.rules:
            self._set(rule)
        threading.Thread(target=self._run, name="delay line", daemon=True).start()

    def _set(self, rule: Rule) -> None:
        impairment = _Impairment(
            int(rule.delay_ms * NS_PER_MS),
            int(rule.jitter_ms * NS_PER_MS),
            rule.loss_percent / 100,
            rule.reorder_percent / 100,
        )
        packed = socket.inet_aton(rule.destination) if rule.destination else bytes(4)
        destination = int.from_bytes(packed, sys.byteorder)
        failed = self._functions.nalb_line_set(
            self._line, 2 * rule.joint + rule.way, destination, ctypes.byref(impairment)
        )
        _check(failed, f"{rule} cannot be set")

    def _counters(self) -> Counters:
        counters = _Counters()
        if self._line is not None:
            _check(self._functions.nalb_line_counters(self._line, ctypes.byref(counters)), "counters cannot be read")
        return Counters(*(getattr(counters, name) for name in Counters.__struct_fields__))

    def _run(self) -> None:
        self._functions.nalb_line_run(self._line)
        os._exit(1)  # the thread cannot carry packets: the end of this process tells those who watch it


def _check(failed: int, what: str) -> None:
    if failed:
        raise OSError(-failed, f"{what}: {os.strerror(-failed)}")


def start(hub: str, joints: Sequence[Joint], rules: Sequence[Rule]) -> daemon.Daemon:
    """Start a network's delay line in the hub's namespace, where the joints' interfaces are up. Raises MachineError."""
    from netem import namespaces

    line = daemon.start(namespaces.inside_argv(hub, own_argv("netem.delay_line")), f"the delay line of {hub}")
    _ask(hub, Request(tuple(joints), tuple(rules)))
    return line


def set_rules(hub: str, rules: Sequence[Rule]) -> None:
    """Change the rules for packets that come in from now on. Raises MachineError."""
    _ask(hub, Request(rules=tuple(rules)))


def read_counters(hub: str) -> Counters:
    """Read the counters of the line in the hub's namespace. Raises MachineError, also where the line has ended."""
    return _ask(hub, Request())


def shortfall(counters: Counters) -> str | None:
    """Say in words for people what the line could not do; None where it kept up."""
    dropped = counters.overrun + counters.refused
    is_late = counters.late > LATE_PART * counters.bunches
    if not dropped and not is_late:
        return None
    kind = "with" if counters.is_realtime else "without"
    return (
        f"could not keep up {kind} real-time priority: {counters.late} of {counters.bunches} bunches of packets left more than"
        f" {LATE_MS:g} ms late, up to {counters.worst_late_ns / NS_PER_MS:.1f} ms, and {dropped} were dropped;"
        " lower the rates, or leave the machine more CPU"
    )


def _ask(hub: str, request: Request) -> Counters:
    from netem import namespaces

    try:
        with namespaces.inside(hub, lambda: socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(ANSWER_DEADLINE_S)
            connection.connect(SOCKET)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as answer:
                report = msgspec.json.decode(answer.readline(), type=LineReport)
    except (OSError, msgspec.DecodeError) as error:
        raise MachineError(
            f"the delay line of {hub} does not answer ({error}): run `nalb net down` and start again"
        ) from error
    if report.error is not None:
        raise MachineError(f"the delay line of {hub} fails ({report.error}): run `nalb net down` and start again")
    return report.counters


def main() -> int:
    """Listen on the socket, go to the background, and answer requests for ever."""
    line = Line(Library.load())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(SOCKET)
        server.listen()
        daemon.detach("ready")
        while True:
            with suppress(OSError, msgspec.DecodeError), server.accept()[0] as connection:
                connection.settimeout(ANSWER_DEADLINE_S)
                with connection.makefile("rb") as asked:
                    request = msgspec.json.decode(asked.readline(), type=Request)
                connection.sendall(msgspec.json.encode(line.answer(request)))


if __name__ == "__main__":
    sys.exit(main())
