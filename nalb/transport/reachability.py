"""Watches whether the hosts that this process needs can be reached.

A process joins the coordinator only after ps-lite has brought all processes together, which may take as long as a user's script
loads its data. A link that is lost meanwhile would be noticed only after NALB_STARTUP_S. Later the link between two nodes may be
lost while both still reach the coordinator, and in a job of MXNet alone no process reports to a coordinator. So a thread tries to
connect: to the coordinator's port while the job gathers, then to the port of each peer that acknowledges nothing. A host that is
up answers through its kernel, even if the port is closed and however busy the host is.
"""

import errno
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path

from nalb.failures import Cause, Failure, Phase
from nalb.process.last_words import die
from nalb.protocol.members import LOST_DEADLINES
from nalb.protocol.wire import FAR_S
from nalb.settings import Settings
from nalb.transport.tcp_info import Address, TcpConnection, Ways, connections

KNOCKS = 5  # attempts to connect within the allowed silence
LOOKS = 10  # looks at the connections within the allowed silence
FAR_LOOKS_S = 0.5  # the longest time between looks where peers are far: a look ends the delay by a starved connection


@contextmanager
def reach_kept(settings: Settings) -> Iterator[None]:
    """During the with block, end this process with one line when the coordinator's place does not answer any more.

    Without `nalb launch`, a host that has never answered may still be starting, and so may a coordinator whose port is closed. The
    limit for both is NALB_STARTUP_S. Once the coordinator has accepted a connection, a closed port means that it has ended.
    """
    is_over = threading.Event()
    host, _, port = settings.endpoint.removeprefix("tcp://").rpartition(":")
    limit_s = settings.silence_s / KNOCKS

    def end(cause: Cause, detail: str) -> None:
        if not is_over.is_set():
            die(Failure(cause=cause, detail=detail, role=settings.process, node=settings.node, phase=Phase.START))

    def watch() -> None:
        begun_s, has_met = time.monotonic(), False
        heard_s = math.inf
        if settings.starts_together:  # the link may have been lost while this process was loading its libraries
            heard_s = time.monotonic() - min(process_age_s(), settings.silence_s / 2)
        while not is_over.is_set():
            knocked_s = time.monotonic()
            answer = knock((host, int(port)), limit_s)
            now_s = time.monotonic()
            overslept_s = max(0.0, now_s - knocked_s - 2 * limit_s)  # this process did not run itself
            begun_s, heard_s = begun_s + overslept_s, heard_s + overslept_s
            has_met |= answer is Answer.ACCEPTED
            if answer in (Answer.ACCEPTED, Answer.UNKNOWN) or (answer is Answer.REFUSED and not has_met):
                heard_s = now_s
            if (silent_s := now_s - heard_s) > settings.silence_s:
                where, since = f"{settings.endpoint}, the coordinator's place", f"for {silent_s:.1f} s"
                if answer is Answer.REFUSED:
                    end(Cause.NO_COORDINATOR, f"has found {where}, closed {since}: it has ended, see its node's output")
                end(Cause.UNREACHABLE, f"has no answer from {where}, {since}: the link is down, or the host is off")
            if not has_met and now_s - begun_s > settings.startup_s:
                detail = (
                    f"has found no coordinator at {settings.endpoint} for {settings.startup_s:g} s: does node 0 run?"
                )
                end(Cause.NO_COORDINATOR, detail)
            due_s = max(time.monotonic(), knocked_s + limit_s)
            is_over.wait(due_s - time.monotonic())
            overslept_s = max(0.0, time.monotonic() - due_s)
            begun_s, heard_s = begun_s + overslept_s, heard_s + overslept_s

    threading.Thread(target=watch, name="nalb-reach", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def process_age_s() -> float:
    """The seconds since this process began, by the kernel's clock."""
    ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Reachability:
    """Watches this process's connections to the job's nodes on a thread.

    The thread calls `fail` once, when a peer is out of reach, and `note` with the state of the connections at each look.

    Connections of the user's script to other machines, such as a store or a tracking server, are not watched.
    """

    def __init__(
        self, settings: Settings, fail: Callable[[Failure], None], note: Callable[[Ways], None] = lambda _: None
    ):
        self._settings, self._fail, self._note = settings, fail, note
        self._coordinator_port = int(settings.endpoint.rpartition(":")[2])
        self._is_over = threading.Event()
        self._silent_since_s: dict[Address, float] = {}  # the peers that are in doubt
        self._has_far = False  # whether the last look found a far peer
        threading.Thread(target=self._run, name="nalb-reach", daemon=True).start()

    def close(self) -> None:
        """Stop watching: from now on peers may leave."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(min(self._settings.silence_s / LOOKS, FAR_LOOKS_S if self._has_far else math.inf)):
            try:
                cause, why = Cause.UNREACHABLE, self.look()
            except (OSError, RuntimeError):  # no file or thread is free at the moment; the next look may get one
                continue
            except Exception as error:
                cause, why = Cause.PROCESS, f"cannot watch its connections: {type(error).__name__}: {error}"
            if why is not None and not self._is_over.is_set():
                self._fail(Failure(cause=cause, detail=why, role=self._settings.process, node=self._settings.node))
                return

    def look(self) -> str | None:
        """Look at the connections once, and note their state; returns why a peer cannot be reached, or None."""
        every = [connection for connection in connections(self._is_far) if self._is_watched(connection.peer)]
        now = [connection for connection in every if not connection.is_accepted]
        # An accepted connection in doubt moves nothing, and nobody asks whether its maker's own port answers.
        moving = [connection for connection in every if not (connection.is_accepted and connection.is_doubtful)]
        far = [connection for connection in now if self._is_far(connection)]
        farthest_s = max((connection.round_trip_s for connection in now), default=0.0)
        is_bbr = bool(far) and all(connection.is_bbr for connection in far)
        queued_bytes, resent = sum(one.queued_bytes for one in moving), sum(one.resent for one in now)
        self._note(Ways(queued_bytes, farthest_s, is_bbr, resent))
        self._has_far = bool(far)
        doubtful = {connection.peer for connection in now if connection.is_doubtful}
        return self.lost(now, answering(doubtful, self._settings.silence_s / LOOKS), time.monotonic())

    def _is_watched(self, peer: Address) -> bool:
        nodes = self._settings.addresses
        return peer[1] != self._coordinator_port and (nodes is None or peer[0] in nodes)

    def _is_far(self, connection: TcpConnection) -> bool:
        """Whether a watched peer is far, so that the link's queue is too short for the bytes that a worker may have under way.

        Jobs of MXNet alone are left as they are: no peer counts as far.
        """
        return not self._settings.is_stock and connection.round_trip_s >= FAR_S and self._is_watched(connection.peer)

    def lost(self, now: list[TcpConnection], heard: set[Address], now_s: float) -> str | None:
        """The reason why a peer cannot be reached, or None. heard: the peers that have just answered another connection."""
        known = self._silent_since_s
        doubtful = [connection for connection in now if connection.is_doubtful]
        self._silent_since_s = {
            connection.peer: now_s
            if connection.peer in heard
            else known.get(connection.peer, now_s - connection.waiting_s)
            for connection in doubtful
        }
        for (host, port), since_s in self._silent_since_s.items():
            if (silent_s := now_s - since_s) > self._settings.silence_s:
                return (
                    f"cannot reach {host}, which has acknowledged nothing for {silent_s:.1f} s, and nothing answers at its port "
                    f"{port}: the link between them is down, or that host is off"
                )
        for connection in doubtful:
            if connection.waiting_s > LOST_DEADLINES * self._settings.deadline_s:
                host, port = connection.peer
                return (
                    f"has a connection to {host} on which nothing was acknowledged for {connection.waiting_s:.1f} s, although "
                    f"{host} answers at its port {port}: something between them, as a firewall, has dropped that connection"
                )
        return None


def answering(peers: set[Address], limit_s: float) -> set[Address]:
    """The peers whose hosts answer within `limit_s`."""
    heard: set[Address] = set()

    def ask(peer: Address) -> None:
        if answers(peer, limit_s):
            heard.add(peer)

    # threads and no executor: executors do not work while the interpreter ends, and the last exchange may still be under way then
    asking = [threading.Thread(target=ask, args=(peer,), name="nalb-reach", daemon=True) for peer in peers]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return heard


class Answer(Enum):
    """What a host says to an attempt to connect."""

    ACCEPTED = auto()
    REFUSED = auto()  # the port is closed, and the host is up
    NONE = auto()
    UNKNOWN = auto()  # this process has no file left for a socket, which says nothing about the host


def knock(peer: Address, limit_s: float) -> Answer:
    """Try to connect by TCP within `limit_s`."""
    try:
        socket.create_connection(peer, limit_s).close()
    except ConnectionRefusedError:
        return Answer.REFUSED
    except OSError as error:
        return Answer.UNKNOWN if error.errno in (errno.EMFILE, errno.ENFILE) else Answer.NONE
    return Answer.ACCEPTED


def answers(peer: Address, limit_s: float) -> bool:
    """Whether the host accepts or refuses a TCP connection within `limit_s`; also True where this process cannot open a socket."""
    return knock(peer, limit_s) is not Answer.NONE
