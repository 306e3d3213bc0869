"""How the training script ends, which Python does not tell functions of atexit: well, or by an exception or an exit status.

`exit` and `quit` become `sys.exit`, which is watched. `raise SystemExit` passes by no hook and counts as ending well.
"""

import atexit
import builtins
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

_error = ""  # the exception that nobody caught
_status: object = None  # what sys.exit was last called with


def at_exit(node: str, close: Callable[[], None], fail: Callable[[str], None]) -> None:
    """A script that ends well leaves in order by close(); else fail(why) tells everyone, and nothing is waited for."""
    previous, exit_now = sys.excepthook, sys.exit

    def note(kind: type[BaseException], error: BaseException, trace: object) -> None:
        global _error
        _error = f"{kind.__name__}: {error}".splitlines()[0]
        previous(kind, error, trace)  # type: ignore[arg-type]

    def note_exit(status: object = None) -> NoReturn:
        global _status
        if threading.current_thread() is threading.main_thread():
            _status = status
        exit_now(status)  # type: ignore[arg-type]

    def leave() -> None:
        code = _status if isinstance(_status, int) else int(_status is not None)
        if _error or code:
            fail(f"worker {node} failed: {_error or f'it exited with {code}'}"[:4096])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code & 0xFF or 1)
        close()

    sys.excepthook = note
    sys.exit = builtins.exit = builtins.quit = note_exit
    atexit.register(leave)


def goes_on() -> None:
    """The script is still at work: a sys.exit before was caught."""
    global _status
    _status = None
