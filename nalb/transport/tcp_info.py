"""What the kernel knows of this process's TCP connections: who acknowledges nothing, how far peers are, what is under way.

ps-lite sends over connections that it made itself, and never looks at them again: one that is lost hangs it. The kernel counts how
often it has repeated what it sent. Linux (linux/tcp.h, sockios.h), IPv4 and IPv6.

BBR finds a connection's rate by itself, and trusts it. One that was starved on a full link keeps the low rate that it had there,
and asks for a quarter more every eight round trips, which are seconds where peers are far. Its packets neither wait nor get lost,
so it differs from others only in what is queued. Such a connection is made to start anew: setting the congestion control makes the
kernel forget the rate, and the search begins again with twice as much each round trip.
"""

import array
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import NamedTuple

LISTEN = 10  # of tcp_info's states
# state, ca_state, retransmits, probes, backoff, options and flags; rto_us; unacked; rtt_us; pacing_rate; min_rtt_us
INFO = struct.Struct("=BBBBBxxxI12xI40xI32xQ36xI")
NO_ROUND_TRIP = (0, (1 << 32) - 1)  # of min_rtt: nothing has been acknowledged yet
SO_MAX_PACING_RATE = 47  # asm-generic/socket.h
NAME_MOST = 16  # bytes of a congestion control's name (TCP_CA_NAME_MAX)
NO_LIMIT = struct.pack("=I", (1 << 32) - 2)  # bytes/s, 34 Gbit/s: the highest rate that all kernels take for one
DOUBTFUL = 2  # repetitions without an answer: a packet that was lost needs one
BBR, ANOTHER = b"bbr", b"reno"  # the names of congestion controls; every kernel has the second
QUEUED_ROUND_TRIPS = 2  # that queued bytes may take: those of one are under way, those of the other wait for their turn
NO_QUEUE = 1 / 16  # of a round trip: whose packets wait no longer than that, and JITTER_S, shares no full link
JITTER_S = 0.005
FEW = 4  # packets under way, BBR's least: they are acknowledged late, up to 0.2 s, which looks like a queue

Address = tuple[str, int]


class Connection(NamedTuple):
    """A connection that this process has made."""

    peer: Address
    repeated: int  # times in a row that the kernel has repeated what it sent, without an answer
    waiting_s: float  # since the first of it was sent, at least
    queued_bytes: int  # sent and not acknowledged, or not yet sent
    round_trip_s: float = 0.0  # the shortest of the last minutes, so without queues; 0: not known
    is_bbr: bool = False

    @property
    def is_doubtful(self) -> bool:
        """Whether its peer may be out of reach."""
        return self.repeated >= DOUBTFUL


class Ways(NamedTuple):
    """All of a process's to other nodes."""

    queued_bytes: int = 0
    round_trip_s: float = 0.0  # to the farthest; 0: not known
    is_bbr: bool = False  # of all that are far


def connections(is_far: Callable[[Connection], bool] = lambda _: False) -> list[Connection]:
    """Those of this process, now; connections that others made to it carry nothing of ps-lite's but acknowledgements.

    The kernel is told to pace those that are far: it spreads what it sends over the round trip, in place of sending all that the
    congestion window allows at once (SO_MAX_PACING_RATE, tc-fq(8)). It stays so while they last. Starved ones start anew.
    """
    ours, made = set(), []
    for one in _sockets():
        with closing(one), suppress(OSError):  # it speaks no TCP, was closed meanwhile, or never connected
            told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size)
            told = told.ljust(INFO.size, b"\0")
            state, _, repeated, _, backoff, rto_us, packets, now_us, pace, round_trip_us = INFO.unpack(told)
            here = one.getsockname()[1]
            if state == LISTEN:
                ours.add(here)
                continue
            waiting_s = rto_us * 1e-6 * (1 - 0.5**backoff) if repeated else 0.0
            round_trip_s = 0.0 if round_trip_us in NO_ROUND_TRIP else round_trip_us * 1e-6
            queued_bytes = _queued(one)
            is_bbr = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_MOST).rstrip(b"\0") == BBR
            connection = Connection(one.getpeername()[:2], repeated, waiting_s, queued_bytes, round_trip_s, is_bbr)
            made.append((here, connection))
            if is_far(connection):
                one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, NO_LIMIT)
                if is_bbr and starves(queued_bytes, pace, round_trip_s, now_us * 1e-6, packets):
                    start_anew(one)
    return [connection for here, connection in made if here not in ours]


def starves(queued_bytes: int, pace: float, round_trip_s: float, now_s: float, packets: int) -> bool:
    """Whether a connection is slower than its link lets it be.

    pace: bytes/s. now_s: a round trip as it is now, queues included. packets: sent and not acknowledged.
    """
    is_late = queued_bytes > QUEUED_ROUND_TRIPS * round_trip_s * pace
    return round_trip_s > 0 and is_late and (packets <= FEW or now_s < (1 + NO_QUEUE) * round_trip_s + JITTER_S)


def start_anew(one: socket.socket) -> None:
    """Make BBR forget the rate that it believes in. The kernel ignores a congestion control that is set already."""
    for name in (ANOTHER, BBR):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


def _sockets() -> Iterator[socket.socket]:
    """Copies of this process's own.

    O_NONBLOCK belongs to all copies of a descriptor. Python would set it where the script has called socket.setdefaulttimeout;
    SOCK_NONBLOCK tells Python that there is nothing to set.
    """
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                copy = os.dup(int(name))
                try:
                    one = socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=copy)
                except OSError:  # of a family whose sockets have no address
                    os.close(copy)
                else:
                    yield one


def _queued(one: socket.socket) -> int:
    value = array.array("i", [0])
    fcntl.ioctl(one, termios.TIOCOUTQ, value)
    return value[0]
