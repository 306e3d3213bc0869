"""Tells why a process of a job ends: one line for people, and the same as data for the launcher.

The launcher reads the output of its processes, over ssh too. A message for the launcher alone begins with FAILURE, which no other
text contains. The launcher takes the message out of the output, puts the line for people into the process's log, and says the
job's failure once. A process that no launcher started writes the line for people itself.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

from nalb.errors import PeerError
from nalb.failures import Failure, carried, render
from nalb.process.guardian import VARIABLE

FOR_THE_LAUNCHER = "\x1e"  # the ASCII record separator, which no other text contains, begins a message
FAILURE = f"{FOR_THE_LAUNCHER}nalb-failure "


_hearers: list[Callable[[Failure], bool]] = []


def hand_to(hearer: Callable[[Failure], bool]) -> None:
    """Let `hearer` have the failure that ends this process. It returns whether it tells people in this process's place.

    It is called on any thread.
    """
    _hearers.append(hearer)


def say(failure: Failure) -> None:
    """Tell the launcher of the failure, or people where there is no launcher."""
    has_told = False
    for hearer in _hearers:
        has_told |= hearer(failure)
    with suppress(Exception):  # the script may have closed stdout, or put something else there
        sys.stdout.flush()
    if VARIABLE in os.environ:
        tell_launcher(failure)
        return
    if has_told:
        return
    with suppress(Exception):
        print(line_of(failure), file=sys.stderr, flush=True)


def line_of(failure: Failure) -> str:
    """The line for people that says why a process ends."""
    return f"nalb: {render(carried(failure))}"


def tell_launcher(failure: Failure) -> None:
    """Tell the launcher alone of the failure, if there is a launcher."""
    if VARIABLE in os.environ:
        with suppress(OSError):  # the launcher is gone
            os.write(2, FAILURE.encode() + msgspec.json.encode(carried(failure)) + b"\n")


def die(failure: Failure, exit_code: int = PeerError.exit_code) -> NoReturn:
    """End this process now, whatever ps-lite is doing, with one line that says why."""
    say(failure)
    os._exit(exit_code)


def failure_in(line: str) -> tuple[str, Failure | None]:
    """Split a line of output into its text and the failure that it tells the launcher, if any."""
    text, _, told = line.partition(FAILURE)
    if told:
        with suppress(msgspec.MsgspecError):  # another thread wrote into the message: the line stays as it is
            return text, msgspec.json.decode(told, type=Failure)
    return line, None
