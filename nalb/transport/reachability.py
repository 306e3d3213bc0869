"""Whether the hosts that this process needs answer at all.

A process joins the coordinator only once ps-lite has brought all together, which may take as long as a user's script loads its
data: a link that is lost meanwhile would be found only by NALB_STARTUP_S. Later, a way between two nodes may be lost that both
still reach the coordinator, and where MXNet runs alone nobody reports to anyone. So a thread knocks: at the coordinator's port
while the job gathers, then at the port of each peer that acknowledges nothing. A host that is there answers, even if the port is
not open, and however busy it is: its kernel does.
"""

import errno
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nalb.failures import Cause, Failure, Phase
from nalb.process.last_words import die
from nalb.protocol.members import LOST_DEADLINES
from nalb.protocol.messages import FAR_S
from nalb.settings import Settings
from nalb.transport.tcp_info import Address, Connection, Ways, connections

KNOCKS = 5  # within the silence that is allowed
LOOKS = 10  # at connections, likewise
FAR_LOOKS_S = 0.5  # between looks, at most, where peers are far: a starved connection holds up an exchange for as long


@contextmanager
def reach_kept(settings: Settings) -> Iterator[None]:
    """End this process with one line when the coordinator's host no longer answers, in the with block.

    Without `nalb launch` one that has not answered yet may still have to start: that is NALB_STARTUP_S's to tell.
    """
    is_over = threading.Event()
    host, _, port = settings.endpoint.removeprefix("tcp://").rpartition(":")
    limit_s = settings.silence_s / KNOCKS

    def watch() -> None:
        heard_s = math.inf
        if settings.starts_together:  # a link may have been lost while this process still loaded what it needs
            heard_s = time.monotonic() - min(process_age_s(), settings.silence_s / 2)
        while not is_over.is_set():
            knocked_s = time.monotonic()
            if answers((host, int(port)), limit_s):
                heard_s = time.monotonic()
            elif (silent_s := time.monotonic() - heard_s) > settings.silence_s and not is_over.is_set():
                detail = (
                    f"has no answer from {settings.endpoint}, the coordinator's place, for {silent_s:.1f} s: the link is down, or "
                    "the host is off"
                )
                role, node = settings.process, settings.node
                die(Failure(cause=Cause.UNREACHABLE, detail=detail, role=role, node=node, phase=Phase.START))
            is_over.wait(max(0.0, knocked_s + limit_s - time.monotonic()))

    threading.Thread(target=watch, name="nalb-reach", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def process_age_s() -> float:
    """Since this process began, by the kernel."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Reachability:
    """Watches this process's connections to the job's nodes, on a thread.

    That thread calls `fail`, once, where a peer is out of reach, and `note` with what each look shows.

    What the user's script connects to elsewhere, a store or a tracking server, is the script's to wait for.
    """

    def __init__(
        self, settings: Settings, fail: Callable[[Failure], None], note: Callable[[Ways], None] = lambda _: None
    ):
        self._settings, self._fail, self._note = settings, fail, note
        self._coordinator_port = int(settings.endpoint.rpartition(":")[2])
        self._is_over = threading.Event()
        self._silent_since_s: dict[Address, float] = {}  # those in doubt
        self._has_far = False  # by the last look
        threading.Thread(target=self._run, name="nalb-reach", daemon=True).start()

    def close(self) -> None:
        """Peers may leave from now on."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(min(self._settings.silence_s / LOOKS, FAR_LOOKS_S if self._has_far else math.inf)):
            try:
                cause, why = Cause.UNREACHABLE, self._look()
            except (OSError, RuntimeError):  # no file or thread to be had just now: the next look may have them
                continue
            except Exception as error:
                cause, why = Cause.PROCESS, f"cannot watch its connections: {type(error).__name__}: {error}"
            if why is not None and not self._is_over.is_set():
                self._fail(Failure(cause=cause, detail=why, role=self._settings.process, node=self._settings.node))
                return

    def _look(self) -> str | None:
        now = [connection for connection in connections(self._is_far) if self._is_watched(connection.peer)]
        far = [connection for connection in now if self._is_far(connection)]
        farthest_s = max((connection.round_trip_s for connection in now), default=0.0)
        is_bbr = bool(far) and all(connection.is_bbr for connection in far)
        self._note(Ways(sum(connection.queued_bytes for connection in now), farthest_s, is_bbr))
        self._has_far = bool(far)
        doubtful = {connection.peer for connection in now if connection.is_doubtful}
        return self.lost(now, answering(doubtful, self._settings.silence_s / LOOKS), time.monotonic())

    def _is_watched(self, peer: Address) -> bool:
        nodes = self._settings.addresses
        return peer[1] != self._coordinator_port and (nodes is None or peer[0] in nodes)

    def _is_far(self, connection: Connection) -> bool:
        """Of a link with delay the queue is too short for what a worker may have under way; MXNet alone is left as it is."""
        return not self._settings.is_stock and connection.round_trip_s >= FAR_S and self._is_watched(connection.peer)

    def lost(self, now: list[Connection], heard: set[Address], now_s: float) -> str | None:
        """Why there is no reaching a peer, if so. heard: those that have just answered another connection."""
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
    """Those whose hosts answer within `limit_s`."""
    heard: set[Address] = set()

    def ask(peer: Address) -> None:
        if answers(peer, limit_s):
            heard.add(peer)

    # no executor: none works once the interpreter ends, when the last exchange may still be under way
    asking = [threading.Thread(target=ask, args=(peer,), name="nalb-reach", daemon=True) for peer in peers]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return heard


def answers(peer: Address, limit_s: float) -> bool:
    """Whether the host takes or refuses a TCP connection within `limit_s`; True too where this process can ask none."""
    try:
        socket.create_connection(peer, limit_s).close()
    except ConnectionRefusedError:
        return True
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)  # no file is left here: that says nothing of the host
    return True
