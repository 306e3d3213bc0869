"""Watches a job by its events: whether all its processes have joined, and what the job is about when it fails."""

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from nalb.events import (
    AnyEvent,
    IterationEvent,
    PlanEvent,
    ReadyEvent,
    StateEvent,
    TokensEvent,
    TokenShapeEvent,
)
from nalb.failures import Moment, Phase
from nalb.protocol import wire

GATHER = "GATHER"  # the coordinator's phase until all processes have joined


class Source(AbstractContextManager["Source"], Protocol):
    """The origin of a job's events: an Observer of its coordinator, a Relay, or a peer's driver that acts like one."""

    def events(self, for_s: float) -> Iterator[AnyEvent]:
        """Yield the events of the next `for_s` seconds; with 0 those that have arrived."""

    def last_events(self) -> Iterator[AnyEvent]:
        """Yield the events left once the job's processes have ended."""

    def send(self, message: wire.FromObserver) -> None:
        """Send the coordinator an observer's message."""


class Watch:
    """Reads the events of one job. It must be used by one thread only.

    The supervisor asks it for the job's state between two reads; it keeps the events that it finds then for the next read.
    """

    def __init__(self, source: Source):
        self._source = source
        self.send = source.send
        self._unread: deque[AnyEvent] = deque()
        self._has_joined = False
        self._exchange: Moment | None = None
        self._tokens: Moment | None = None

    def events(self, for_s: float) -> Iterator[AnyEvent]:
        """Yield the events that nobody has read yet, and those of the next `for_s` seconds."""
        yield from self._kept()
        yield from map(self._noted, self._source.events(for_s))

    def last_events(self) -> Iterator[AnyEvent]:
        """Yield the events left once the job's processes have ended."""
        yield from self._kept()
        yield from map(self._noted, self._source.last_events())

    def has_joined(self) -> bool:
        """Whether all processes have joined, by the events that have arrived."""
        self._look()
        return self._has_joined

    def moment(self) -> Moment:
        """The phase and the iteration that the job has reached, by the events that have arrived.

        The phase is START before all processes have joined, INIT before the first plan, and PLAN between an iteration and the plan
        of the next. While a planned iteration runs, the phase is None and the iteration's number is given. Where workers compute
        tokens, the number is that of the first iteration of tokens that is not complete: exchanges are counted apart from those.
        """
        self._look()
        return self._tokens or self._exchange or (Phase.INIT if self._has_joined else Phase.START, None)

    def _kept(self) -> Iterator[AnyEvent]:
        while self._unread:
            yield self._unread.popleft()

    def _look(self) -> None:
        self._unread.extend(map(self._noted, self._source.events(0.0)))

    def _noted(self, event: AnyEvent) -> AnyEvent:
        if isinstance(event, ReadyEvent) or (isinstance(event, StateEvent) and event.phase != GATHER):
            self._has_joined = True
        elif isinstance(event, PlanEvent):
            self._exchange = None, event.iteration
        elif isinstance(event, IterationEvent):
            self._exchange = Phase.PLAN, event.iteration + 1
        elif isinstance(event, TokenShapeEvent | TokensEvent):
            self._tokens = None, event.iteration + isinstance(event, TokensEvent)
        return event
