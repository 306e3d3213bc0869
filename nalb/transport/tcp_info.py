"""Reads the kernel's state of this process's TCP connections: unacknowledged data, round trips and queued bytes.

ps-lite sends over connections that it made itself and never checks them again, so it hangs when one is lost. The kernel counts how
often it has repeated unacknowledged data. The module supports Linux (linux/tcp.h, sockios.h), IPv4 and IPv6.

BBR finds a connection's rate by itself. A connection that was starved on a full link keeps the low rate that it had there, and
tries a quarter more every eight round trips, which take seconds where peers are far. Its packets neither wait nor get lost, so it
differs from other connections only in its queued bytes. This module makes such a connection start anew: setting the congestion
control makes the kernel forget the rate, and the search begins again with twice as much each round trip.
"""

import array
import fcntl
import itertools
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import closing, suppress
from typing import NamedTuple

from nalb.process.own_sockets import own_sockets

LISTEN = 10  # the state of tcp_info that means a listening socket
# state, ca_state, retransmits, probes, backoff, options and flags; rto_us; unacked; rtt_us; total_retrans; pacing_rate; min_rtt_us
INFO = struct.Struct("=BBBBBxxxI12xI40xI28xIQ36xI")
NO_ROUND_TRIP = (0, (1 << 32) - 1)  # values of min_rtt before anything has been acknowledged
SO_MAX_PACING_RATE = 47  # asm-generic/socket.h
NAME_MOST = 16  # the longest name of a congestion control, in bytes (TCP_CA_NAME_MAX)
NO_LIMIT = struct.pack("=I", (1 << 32) - 2)  # 34 Gbit/s in bytes/s, the highest pacing rate that all kernels accept
RTO_MOST_S = 120.0  # the kernel's longest time between two repetitions or probes (TCP_RTO_MAX)
DOUBTFUL = 2  # repetitions without an answer from which a peer is in doubt; a single lost packet needs one
BBR, ANOTHER = b"bbr", b"reno"  # the names of congestion controls; every kernel has the second
QUEUED_ROUND_TRIPS = 2  # round trips that queued bytes may take: one for those under way, one for those that wait
NO_QUEUE = 1 / 16  # the part of a round trip, beside JITTER_S, that packets may wait on a link that is not full
JITTER_S = 0.005
FEW = 4  # BBR's least number of packets under way; their late acknowledgement, up to 0.2 s, looks like a queue

Address = tuple[str, int]


class TcpConnection(NamedTuple):
    """The state of a connection of this process."""

    peer: Address
    repeated: int  # times in a row that the kernel has repeated data, or tried to send some, without an answer
    waiting_s: float  # the least time since that data was first sent
    queued_bytes: int  # bytes that are not sent yet, or not acknowledged
    round_trip_s: float = 0.0  # the shortest round trip of the last minutes, without queues; 0: not known
    is_bbr: bool = False
    resent: int = 0  # packets that were sent again, since it was made
    is_accepted: bool = False  # whether another process has made it

    @property
    def is_doubtful(self) -> bool:
        """Whether the peer may be out of reach."""
        return self.repeated >= DOUBTFUL


class Ways(NamedTuple):
    """The state of all connections of a process to other nodes together."""

    queued_bytes: int = 0
    round_trip_s: float = 0.0  # the round trip to the farthest node; 0: not known
    is_bbr: bool = False  # whether there are far nodes and all connections to them use BBR
    resent: int = 0  # packets that were sent again, since the connections were made


def connections(is_far: Callable[[TcpConnection], bool] = lambda _: False) -> list[TcpConnection]:
    """The present state of all connections. Over those that others made ps-lite only acknowledges, and agents send answers.

    The kernel is told to pace connections to far peers (SO_MAX_PACING_RATE, tc-fq(8)): it then spreads its packets over the round
    trip and does not send all that the congestion window allows at once. The setting lasts as long as the connection. Starved
    connections to far peers start anew.
    """
    ours, made = set(), []
    for one in own_sockets():
        with closing(one), suppress(OSError):  # no TCP, closed meanwhile, never connected, or may not start anew
            told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size)
            told = told.ljust(INFO.size, b"\0")
            state, _, retransmits, probes, backoff, rto_us, packets, now_us, resent, pace, round_trip_us = INFO.unpack(
                told
            )
            here = one.getsockname()[1]
            if state == LISTEN:
                ours.add(here)
                continue
            waiting_s = _waiting_s(rto_us * 1e-6, backoff, is_probing=probes > retransmits)
            round_trip_s = 0.0 if round_trip_us in NO_ROUND_TRIP else round_trip_us * 1e-6
            queued_bytes = _queued(one)
            is_bbr = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, NAME_MOST).rstrip(b"\0") == BBR
            connection = TcpConnection(
                one.getpeername()[:2], max(retransmits, probes), waiting_s, queued_bytes, round_trip_s, is_bbr, resent
            )
            made.append((here, connection))
            if is_far(connection):
                one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, NO_LIMIT)
                if is_bbr and starves(queued_bytes, pace, round_trip_s, now_us * 1e-6, packets):
                    start_anew(one)
    return [connection._replace(is_accepted=here in ours) for here, connection in made]


def starves(queued_bytes: int, pace: float, round_trip_s: float, now_s: float, packets: int) -> bool:
    """Whether BBR keeps a connection slower than its link allows.

    pace: the pacing rate in bytes/s. round_trip_s: the shortest round trip. now_s: the present round trip, queues included.
    packets: the packets sent and not acknowledged.
    """
    is_late = queued_bytes > QUEUED_ROUND_TRIPS * round_trip_s * pace
    return round_trip_s > 0 and is_late and (packets <= FEW or now_s < (1 + NO_QUEUE) * round_trip_s + JITTER_S)


def start_anew(one: socket.socket) -> None:
    """Make BBR forget its rate, by setting another congestion control and BBR again: the kernel ignores setting the same one.

    Raises OSError and leaves the connection as it is where this process may not set BBR, which may come from a route.
    """
    with socket.socket(one.family, socket.SOCK_STREAM) as trial:
        for each, name in itertools.product((trial, one), (ANOTHER, BBR)):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)


def _waiting_s(rto_s: float, backoff: int, is_probing: bool) -> float:
    """The least time for which the kernel has had no answer. A retransmission doubles rto_s, a probe does not.

    The kernel probes where nothing is under way. The peer may have closed its window, or this machine itself may refuse
    the packets, as by its routes. A peer that lives answers each probe.
    """
    if is_probing:
        return sum(min(rto_s * 2.0**number, RTO_MOST_S) for number in range(backoff))
    return rto_s * (1 - 0.5**backoff)


def _queued(one: socket.socket) -> int:
    value = array.array("i", [0])
    fcntl.ioctl(one, termios.TIOCOUTQ, value)
    return value[0]
