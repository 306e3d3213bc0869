"""In which phase a job was when it failed, by what its coordinator has noted: it writes each event as it happens."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from nalb.events import AnyEvent, IterationEvent, PlanEvent, ReadyEvent, TokensEvent, TokenShapeEvent, decode_line
from nalb.failures import Moment, Phase

FIRST_BYTES = 1_000_000  # of the file: 'ready' stands there, with each node's name twice
LAST_BYTES = 4_000_000  # some iterations, whatever their samples


def have_met(samples: Path) -> bool:
    """Whether the coordinator has noted that all processes are there."""
    with suppress(FileNotFoundError), open(samples, "rb") as file:
        head = file.read(FIRST_BYTES).splitlines()  # after days the whole may be more than memory holds
        return any(isinstance(event, ReadyEvent) for event in _whole(head))
    return False


def moment_of(samples: Path) -> Moment:
    """START (not all processes have met), INIT (no plan yet), an iteration (its plan is out), or PLAN of the next one; nothing
    where no coordinator writes such a file. Where workers compute tokens, the first of the tokens' iterations that is not complete:
    exchanges have a count of their own.
    """
    try:
        with open(samples, "rb") as file:
            file.seek(max(0, samples.stat().st_size - LAST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None, None
    have_met = False
    exchange: Moment | None = None
    for event in _whole(reversed(lines)):
        if isinstance(event, TokenShapeEvent | TokensEvent):
            return None, event.iteration + isinstance(event, TokensEvent)
        if exchange is None and isinstance(event, PlanEvent):
            exchange = None, event.iteration
        elif exchange is None and isinstance(event, IterationEvent):
            exchange = Phase.PLAN, event.iteration + 1
        have_met |= isinstance(event, ReadyEvent)
    return exchange or (Phase.INIT if have_met else Phase.START, None)


def _whole(lines: Iterable[bytes]) -> Iterator[AnyEvent]:
    """The events of those that are whole: the coordinator may have been killed amid one, or its disk be full."""
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if (event := decode_line(line)) is not None:
                yield event
