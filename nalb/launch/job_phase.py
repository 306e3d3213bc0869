"""Finds the phase in which a job failed, from its coordinator's file of events, which has each event as soon as it happens."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from nalb.events import AnyEvent, IterationEvent, PlanEvent, ReadyEvent, TokensEvent, TokenShapeEvent, decode_line
from nalb.failures import Moment, Phase

FIRST_BYTES = 1_000_000  # the file's beginning that holds the event 'ready', which has each node's name twice
LAST_BYTES = 4_000_000  # the file's end that holds some whole iterations, however many samples each has


def have_met(samples: Path) -> bool:
    """Whether the file `samples` says that all processes have met; False where there is no file."""
    with suppress(FileNotFoundError), open(samples, "rb") as file:
        head = file.read(FIRST_BYTES).splitlines()  # after days the whole file may exceed the memory
        return any(isinstance(event, ReadyEvent) for event in _whole(head))
    return False


def moment_of(samples: Path) -> Moment:
    """The phase and the iteration that a job had reached by its file `samples`; (None, None) where the file cannot be read.

    The phase is START before all processes have met, INIT before the first plan, and PLAN between an iteration and the plan
    of the next. While a planned iteration runs, the phase is None and the iteration's number is given. Where workers compute
    tokens, the number is that of the first iteration of tokens that is not complete: exchanges are counted apart from those.
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
    """The events of the lines that are whole. A killed coordinator or a full disk may leave a part of a line."""
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if (event := decode_line(line)) is not None:
                yield event
