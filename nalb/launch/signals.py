"""Ends a command on Ctrl-C, SIGTERM and SIGHUP, once what must not be cut short is done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nalb.errors import JobError
from nalb.failures import JobFailed

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """End the with block on the first of Ctrl-C, SIGTERM and SIGHUP; then raise JobError, which names the signal.

    If a job had failed just before, the error says why. Later signals do not disturb the clean-up. A signal that was ignored at
    the start, as under nohup, stays ignored.
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

    old = {number: signal.signal(number, end) for number in WATCHED if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not received:
            raise
        what = f"ended by {signal.Signals(received[0]).name}, with every process of the job"
        if (failed := failed_before(interrupt)) is not None:
            what += f", which had failed: {failed}"
        raise JobError(what, 128 + received[0]) from None
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def exit_on_signals() -> None:
    """Have SIGTERM and SIGHUP raise SystemExit(128 + signal), so that with blocks end well. An ignored one stays ignored."""

    def leave(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)


@contextmanager
def held_back() -> Iterator[None]:
    """Hold Ctrl-C, SIGTERM and SIGHUP back until the end of the with block. Outside the main thread this does nothing.

    A fork by Python needs this where handlers raise: Python ignores exceptions in what it calls around a fork.

    Choice not taken: pthread_sigmask. Another thread would take the signal, and Python handles it on the main thread at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    old = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in WATCHED
        if signal.getsignal(number) not in (signal.SIG_IGN, None)  # None: a handler in C, which cannot be set again
    }
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def failed_before(interrupt: KeyboardInterrupt) -> JobFailed | None:
    """The failure of the job that a signal interrupted while it was already failing; None where it was not."""
    before = interrupt.__context__
    while before is not None and not isinstance(before, JobFailed):
        before = before.__context__
    return before
