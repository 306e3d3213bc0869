"""What the kernel knows of this process's TCP connections: who acknowledges nothing, how far peers are, what is under way.

ps-lite sends over connections that it made itself, and never looks at them again: one that is lost hangs it. The kernel counts how
often it has repeated what it sent. Linux (linux/tcp.h, sockios.h), IPv4 and IPv6.
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
# state, ca_state, retransmits, probes, backoff, options and flags; rto_us; min_rtt_us
INFO = struct.Struct("=BBBBBxxxI136xI")
NO_ROUND_TRIP = (0, (1 << 32) - 1)  # of min_rtt: nothing has been acknowledged yet
SO_MAX_PACING_RATE = 47  # asm-generic/socket.h
NO_LIMIT = struct.pack("=I", (1 << 32) - 2)  # bytes/s, 34 Gbit/s: the highest rate that all kernels take for one
DOUBTFUL = 2  # repetitions without an answer: a packet that was lost needs one

Address = tuple[str, int]


class Connection(NamedTuple):
    """A connection that this process has made."""

    peer: Address
    repeated: int  # times in a row that the kernel has repeated what it sent, without an answer
    waiting_s: float  # since the first of it was sent, at least
    queued_bytes: int  # sent and not acknowledged, or not yet sent
    round_trip_s: float = 0.0  # the shortest of the last minutes, so without queues; 0: not known

    @property
    def is_doubtful(self) -> bool:
        """Whether its peer may be out of reach."""
        return self.repeated >= DOUBTFUL


class Ways(NamedTuple):
    """All of a process's to other nodes."""

    queued_bytes: int = 0
    round_trip_s: float = 0.0  # to the farthest; 0: not known


def connections(is_paced: Callable[[Connection], bool] = lambda _: False) -> list[Connection]:
    """Those of this process, now; connections that others made to it carry nothing of ps-lite's but acknowledgements.

    The kernel is told to pace those that are to be: it spreads what it sends over the round trip, in place of sending all that the
    congestion window allows at once (SO_MAX_PACING_RATE, tc-fq(8)). It stays so while they last.
    """
    ours, made = set(), []
    for one in _sockets():
        with closing(one), suppress(OSError):  # it speaks no TCP, was closed meanwhile, or never connected
            told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size)
            state, _, repeated, _, backoff, rto_us, round_trip_us = INFO.unpack(told.ljust(INFO.size, b"\0"))
            here = one.getsockname()[1]
            if state == LISTEN:
                ours.add(here)
                continue
            waiting_s = rto_us * 1e-6 * (1 - 0.5**backoff) if repeated else 0.0
            round_trip_s = 0.0 if round_trip_us in NO_ROUND_TRIP else round_trip_us * 1e-6
            connection = Connection(one.getpeername()[:2], repeated, waiting_s, _queued(one), round_trip_s)
            made.append((here, connection))
            if is_paced(connection):
                one.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, NO_LIMIT)
    return [connection for here, connection in made if here not in ours]


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
