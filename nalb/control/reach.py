"""Whether the coordinator's host answers at all while a job gathers.

A process joins the coordinator only once ps-lite has brought all together, which may take as long as a user's script loads its
data. A link that is lost meanwhile would be found only by NALB_STARTUP_S. So a thread knocks at the coordinator's port: a host
that is there answers, even if the port is not open yet, and however busy it is: its kernel does.
"""

import math
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nalb.control.client import die
from nalb.control.settings import Settings

KNOCKS = 5  # within a deadline


@contextmanager
def reach_kept(settings: Settings) -> Iterator[None]:
    """End this process with one line when the coordinator's host no longer answers for the deadline, in the with block.

    Without `nalb launch` one that has not answered yet may still have to start: that is NALB_STARTUP_S's to tell.
    """
    is_over = threading.Event()
    host, _, port = settings.endpoint.removeprefix("tcp://").rpartition(":")
    limit_s = settings.deadline_s / KNOCKS

    def watch() -> None:
        heard_s = time.monotonic() if settings.starts_together else math.inf
        while not is_over.is_set():
            if answers(host, int(port), limit_s):
                heard_s = time.monotonic()
            elif (silent_s := time.monotonic() - heard_s) > settings.deadline_s and not is_over.is_set():
                die(
                    f"{settings.role} {settings.node} in phase start: nothing at {settings.endpoint}, the coordinator's place, "
                    f"has answered for {silent_s:.1f} s: the link is down, or the host is off"
                )
            is_over.wait(limit_s)

    threading.Thread(target=watch, name="nalb-reach", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


def answers(host: str, port: int, limit_s: float) -> bool:
    """Whether the host takes or refuses a TCP connection within `limit_s`."""
    try:
        socket.create_connection((host, port), limit_s).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
