"""Free ports for the scheduler and, next to it, the coordinator."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from nalb.errors import MachineError

EVERYWHERE = "0.0.0.0"  # where torch's store listens
FIRST, LAST = 20_000, 32_000  # below Linux's default ephemeral range


@contextmanager
def free_pair(host: str) -> Iterator[int]:
    """Yield a port p such that p and p + 1 are free on `host`; no other job on this machine gets them inside the with block.

    The scheduler listens only seconds later, so an abstract Unix socket claims the pair until the block ends. The kernel
    removes that socket with its process, and the socket belongs to one network namespace, as ports do.
    Raises MachineError where no pair is free.
    """
    begin = random.randrange(FIRST, LAST, 2)  # a restart finds other ports than those that just failed
    for port in (*range(begin, LAST, 2), *range(FIRST, begin, 2)):
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0nalb-ports-{port}")
            except OSError:  # another job has claimed the pair
                continue
            if all(_free(one, number) for one in (host, EVERYWHERE) for number in (port, port + 1)):
                yield port
                return
    raise MachineError(f"no two free neighbouring TCP ports between {FIRST} and {LAST} on {host}: end other jobs")


def _free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
