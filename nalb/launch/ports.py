"""Free ports for the scheduler and, next to it, the coordinator."""

import socket

from nalb.errors import MachineError

FIRST, LAST = 20_000, 32_000  # below Linux's default ephemeral range


def free_pair(host: str, start: int = FIRST) -> int:
    """A port p with p and p + 1 free on host."""
    for port in range(start, LAST, 2):
        if _free(host, port) and _free(host, port + 1):
            return port
    raise MachineError(f"no two free neighbouring TCP ports between {start} and {LAST} on {host}: end other jobs")


def _free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
