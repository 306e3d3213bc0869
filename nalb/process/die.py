"""How a process of a job ends at once: its other threads may be stuck inside ps-lite, where nothing can be raised."""

import os
import sys
from contextlib import suppress
from typing import NoReturn

from nalb.errors import PeerError


def die(reason: str, exit_code: int = PeerError.exit_code) -> NoReturn:
    """End this process now, whatever ps-lite is doing, with one line that says why."""
    with suppress(Exception):  # the script may have closed it, or put something else there
        sys.stdout.flush()
    with suppress(Exception):
        print(f"nalb: {reason}", file=sys.stderr, flush=True)
    os._exit(exit_code)
