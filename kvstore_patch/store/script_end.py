"""Finds out how the training script ends: well, or by an exception or an exit status. Python's atexit does not tell.

`exit`, `quit` and `sys.exit` are replaced by a function that notes the status. `raise SystemExit` passes no hook and counts as
ending well. `os._exit(0)` skips atexit, and is reported as a failure.
"""

import atexit
import builtins
import gc
import io
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from msgspec.structs import replace

from nalb.errors import PeerError, one_line
from nalb.failures import NOT_LEFT, Cause, Failure, cause_of, of_script
from nalb.process.last_words import tell_launcher

_status: object = None  # the argument of the last call of sys.exit


def at_exit(node: str, close: Callable[[], None], fail: Callable[[Failure], None]) -> None:
    """Let a script that ends well call `close`, and one that fails call `fail`, which tells the others and waits for nothing.

    node: this machine's name, for the failure. `close` may raise errors of operations that MXNet computed while the script went on;
    they count as a failure.
    """
    exit_now, end_now, owner = sys.exit, os._exit, os.getpid()
    has_begun_to_leave = False

    def note_exit(status: str | int | None = None) -> NoReturn:
        note(status)
        exit_now(status)

    def end_at_once(status: int) -> NoReturn:
        if status == 0 and os.getpid() == owner and not has_begun_to_leave:
            failure = Failure(cause=Cause.ENDED, detail=NOT_LEFT, role="worker", node=node)
            fail(failure)
            tell_launcher(failure)
            status = PeerError.exit_code  # with it the launcher prints only the failure
        end_now(status)

    def leave() -> None:
        nonlocal has_begun_to_leave
        has_begun_to_leave = True
        if os.getpid() != owner:  # a process that the script forked is no part of the job
            return
        # the interpreter sets last_value before it calls sys.excepthook, whatever hook the script has set
        error = getattr(sys, "last_value", None)
        code = _status if isinstance(_status, int) else int(_status is not None)
        if error is None and not code:
            try:
                close()
                return
            except Exception as late:
                traceback.print_exception(late)
                error = late
        why = f"it exited with {code}" if error is None else one_line(error)
        failure = replace(of_script(error, f"failed: {why}"), node=node)
        fail(failure)
        if error is not None:  # a mere exit status is seen anyway, and the script's own last line may say why
            tell_launcher(replace(failure, detail=why))
        flush_all()
        os._exit(code & 0xFF or 1)

    sys.exit, os._exit = note_exit, end_at_once
    for name in ("exit", "quit"):
        setattr(builtins, name, note_exit)
    atexit.register(leave)


def note(status: str | int | None) -> None:
    """Note that the script calls sys.exit. `after_mxnet.py` has put a function in its place that tells of each call."""
    global _status
    if threading.current_thread() is threading.main_thread():
        _status = status


def tell_wrong_input_at_exit(node: str) -> None:
    """Let a script that wrong input ends before it has a store tell the launcher: another attempt would end alike.

    Once there is a store, `at_exit` tells that and more; its function runs first and ends the process. node: this machine's name.
    """
    owner = os.getpid()

    def tell() -> None:
        error = getattr(sys, "last_value", None)
        if os.getpid() == owner and error is not None and cause_of(error, Cause.SCRIPT) is Cause.INPUT:
            tell_launcher(Failure(cause=Cause.INPUT, detail=one_line(error), role="worker", node=node))

    atexit.register(tell)


def flush_all() -> None:
    """Flush all open files, such as the script's file of losses: os._exit does not."""
    files = [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]
    for one in (sys.stdout, sys.stderr, *files):
        with suppress(Exception):  # it may be None, closed, or read-only, or its reader is gone
            one.flush()


def goes_on() -> None:
    """Note that the script is still at work: an earlier sys.exit was caught and does not count."""
    global _status
    if threading.current_thread() is threading.main_thread():  # Fela's sums go on while the script ends
        _status = None
