"""How the training script ends, which Python does not tell functions of atexit: well, or by an exception or an exit status.

`exit` and `quit` become `sys.exit`, which is watched. `raise SystemExit` passes by no hook and counts as ending well. `os._exit(0)`
passes by atexit: it is told as the failure that it is.
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

from nalb.errors import CheckpointError, PeerError, one_line
from nalb.failures import NOT_LEFT, Cause, Failure, Phase
from nalb.process.last_words import tell_launcher

_status: object = None  # what sys.exit was last called with


def at_exit(node: str, close: Callable[[], None], fail: Callable[[Failure], None]) -> None:
    """A script that ends well leaves in order by close(); else fail(failure) tells everyone, and nothing is waited for.

    close() raises what nobody has waited for: MXNet computes while the script goes on.
    """
    exit_now, end_now, owner = sys.exit, os._exit, os.getpid()
    has_begun_to_leave = False

    def note_exit(status: str | int | None = None) -> NoReturn:
        global _status
        if threading.current_thread() is threading.main_thread():
            _status = status
        exit_now(status)

    def end_at_once(status: int) -> NoReturn:
        if status == 0 and os.getpid() == owner and not has_begun_to_leave:
            failure = Failure(cause=Cause.ENDED, detail=NOT_LEFT, role="worker", node=node)
            fail(failure)
            tell_launcher(failure)
            status = PeerError.exit_code  # the launcher then tells the failure alone
        end_now(status)

    def leave() -> None:
        nonlocal has_begun_to_leave
        has_begun_to_leave = True
        if os.getpid() != owner:  # a fork of the script's own is no part of the job
            return
        # the interpreter notes it before it calls sys.excepthook, whatever hook the script has set
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
        failure = Failure(cause=Cause.SCRIPT, detail=f"failed: {why}", role="worker", node=node)
        if isinstance(error, CheckpointError) and error.writing is not None:
            failure = replace(failure, cause=Cause.CHECKPOINT, phase=Phase.CHECKPOINT, iteration=error.writing)
        fail(failure)
        if error is not None:  # the exit status says it already, and the script's own last line may say why
            tell_launcher(replace(failure, detail=why))
        flush_all()
        os._exit(code & 0xFF or 1)

    sys.exit, os._exit = note_exit, end_at_once
    for name in ("exit", "quit"):
        setattr(builtins, name, note_exit)
    atexit.register(leave)


def flush_all() -> None:
    """What the script wrote and has not closed, as a file of its losses, would else be lost by os._exit."""
    files = [one for one in gc.get_objects() if issubclass(type(one), io.IOBase)]
    for one in (sys.stdout, sys.stderr, *files):
        with suppress(Exception):  # None, closed, only read, or its reader is gone
            one.flush()


def goes_on() -> None:
    """The script is still at work: a sys.exit before was caught."""
    global _status
    _status = None
