"""This process's own sockets and other descriptors, whoever in it has made them."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress


def own_descriptors(kind: str) -> Iterator[int]:
    """Yield this process's own descriptors of what /proc names so, such as "socket:"."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{name}").startswith(kind):
                yield int(name)


def own_sockets() -> Iterator[socket.socket]:
    """Yield copies of this process's own sockets."""
    for descriptor in own_descriptors("socket:"):
        with suppress(OSError):  # closed meanwhile
            if (one := copy_of(descriptor)) is not None:
                yield one


def copy_of(descriptor: int) -> socket.socket | None:
    """A copy of one of this process's own sockets; None: it is no socket with addresses. Raises OSError for a closed descriptor.

    All copies of a descriptor share O_NONBLOCK. Python would set it where the script has called socket.setdefaulttimeout;
    SOCK_NONBLOCK keeps Python from setting anything.
    """
    copy = os.dup(descriptor)
    try:
        return socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=copy)
    except OSError:
        os.close(copy)
        return None
