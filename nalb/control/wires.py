"""What the kernel knows of this process's TCP connections: who acknowledges nothing, and whether anything is under way.

ps-lite sends over connections that it made itself, and never looks at them again: one that is lost hangs it. The kernel counts how
often it has repeated what it sent. Linux (linux/tcp.h, sockios.h), IPv4 and IPv6.
"""

import array
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import NamedTuple

LISTEN = 10  # of tcp_info's states
INFO = struct.Struct("=BBBBBxxxI")  # state, ca_state, retransmits, probes, backoff, options and flags; rto_us
DOUBTFUL = 2  # repetitions without an answer: a packet that was lost needs one

Address = tuple[str, int]


class Wire(NamedTuple):
    """A connection that this process has made."""

    peer: Address
    repeated: int  # times in a row that the kernel has repeated what it sent, without an answer
    waiting_s: float  # since the first of it was sent, at least
    queued_bytes: int  # sent and not acknowledged, or not yet sent

    @property
    def is_doubtful(self) -> bool:
        """Whether its peer may be out of reach."""
        return self.repeated >= DOUBTFUL


def wires() -> list[Wire]:
    """Those of this process, now; connections that others made to it carry nothing of ps-lite's but acknowledgements."""
    ours, made = set(), []
    for one in _sockets():
        with closing(one), suppress(OSError):  # closed meanwhile, or never connected
            state, _, repeated, _, backoff, rto_us = INFO.unpack(
                one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size)
            )
            here = one.getsockname()[1]
            if state == LISTEN:
                ours.add(here)
                continue
            waiting_s = rto_us * 1e-6 * (1 - 0.5**backoff) if repeated else 0.0
            made.append((here, Wire(one.getpeername()[:2], repeated, waiting_s, _queued(one))))
    return [wire for here, wire in made if here not in ours]


def _sockets() -> Iterator[socket.socket]:
    """Copies of this process's own that speak TCP."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                one = socket.socket(fileno=os.dup(int(name)))
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    yield one
                else:
                    one.close()


def _queued(one: socket.socket) -> int:
    value = array.array("i", [0])
    fcntl.ioctl(one, termios.TIOCOUTQ, value)
    return value[0]
