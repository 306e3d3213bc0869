"""Ports for tests that must know them before anyone listens."""

import random
import socket
from contextlib import ExitStack, suppress

# Below Linux's default ephemeral range, from which others' connections take ports at any time, and below those of nalb launch.
# Tests run side by side, and draw: the same one is rarely drawn twice.
FIRST, LAST = 10_000, 20_000


def free_ports(count: int) -> list[int]:
    """Ports that nobody has; the sockets are closed together, so they differ."""
    ports: list[int] = []
    with ExitStack() as sockets:
        while len(ports) < count:
            port = random.randrange(FIRST, LAST)
            with suppress(OSError):  # somebody has it
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
                ports.append(port)
    return ports
