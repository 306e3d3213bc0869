"""Tells of which attempt of a job a run directory is, where the job was started again, and why its attempts failed.

The first attempt's record lies in the run directory, that of the k-th restart in the folder restart-k there.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from nalb.errors import InputError, printable
from nalb.events import AbortEvent, FailureEvent
from nalb.reporting.run_file import SAMPLES, event_of

RESTART = re.compile(r"restart-([1-9][0-9]*)")  # the folder of a restart, in the run directory
END = re.compile(rb'\{"event": ?"(abort|failure)"')  # how the line of an event that ends a job begins
SHOWN = 3  # failures that are named, the newest ones
TAIL_BYTES = 1 << 20  # of an attempt's record that are read: what ended it stands at the end


def attempts_line(run_dir: Path) -> str:
    """One line on the attempts of a job: that of run_dir, those that failed, and the newest one; empty where there is one alone."""
    is_own = RESTART.fullmatch(run_dir.absolute().name)
    base, own = run_dir, 0
    if is_own and (run_dir.absolute().parent / SAMPLES).exists():
        base, own = run_dir.absolute().parent, int(is_own[1])
    found = {int(match[1]): path for path in base.glob("restart-*") if (match := RESTART.fullmatch(path.name))}
    if not found:
        return ""
    failed = [(number, why) for number, path in sorted({0: base, **found}.items()) if (why := _why_failed(path))]
    parts = [f"restarted: what is told here is of {_name(own)} alone"]
    if len(failed) > SHOWN:
        parts.append(f"{len(failed) - SHOWN} before the newest {SHOWN} failed too")
    parts += [f"{_name(number)} failed: {why}" for number, why in failed[-SHOWN:]]
    newest = max(found)
    return "; ".join([*parts, *([f"{found[newest]} is the newest attempt"] if newest != own else [])])


def _name(number: int) -> str:
    return f"restart-{number}" if number else "the first attempt"


def _why_failed(folder: Path) -> str:
    """The words of the last event that ended the attempt's job; empty where none did."""
    path = folder / SAMPLES
    with suppress(OSError, InputError), path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        for line in reversed(file.read(TAIL_BYTES).split(b"\n")):
            event = event_of(line, f"{path}, its end", is_whole=False) if END.match(line) else None
            if isinstance(event, AbortEvent | FailureEvent):
                return printable(event.words)
    return ""
