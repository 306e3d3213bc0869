"""Ends a command on the first of Ctrl-C, SIGTERM and SIGHUP."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nalb.errors import JobError


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """End the with block on the first of Ctrl-C, SIGTERM and SIGHUP; then raise JobError, which names the signal.

    Later signals do not disturb the clean-up. A signal that was ignored at the start, as under nohup, stays ignored.
    Outside the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, frame: object) -> None:
        del frame
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt

    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {number: signal.signal(number, end) for number in watched if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    except KeyboardInterrupt:
        if not received:
            raise
        raise JobError(
            f"ended by {signal.Signals(received[0]).name}, with every process of the job", 128 + received[0]
        ) from None
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
