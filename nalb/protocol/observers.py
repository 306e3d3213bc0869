"""The observers of a job: what they are told, and what they ask for. They give configured rates, blocks of iterations, the end.

A job that is not held has one block without end. No sockets.
"""

from collections import deque
from typing import NamedTuple

from nalb.events import AnyEvent, BlockEvent, StateEvent
from nalb.measurement.samples import Samples
from nalb.protocol import wire

RECORDED = 200  # iterations of a training of which every message is told
Outgoing = tuple[bytes, wire.Message]  # the identity of the receiver, and what it gets


class Measured(NamedTuple):
    """The samples of an iteration. The shell makes a SamplesEvent of them for the run's file once no worker waits."""

    at_s: float
    iteration: int
    samples: Samples


class Observers:
    """Observers by identity. Messages to them go to `outbox`, and every event to `events`, for the run's file."""

    def __init__(self, outbox: deque[Outgoing], scheme: str, hold: bool, label: str | None = None):
        """label: what events call the iterations of a job that is not held; None: the scheme."""
        self._outbox = outbox
        self.identities: dict[bytes, None] = {}  # in the order of their coming
        self._is_held = hold
        self._blocks = deque([] if hold else [wire.RunBlock(scheme, wire.FOREVER, label=label)])
        self.left = 0  # iterations of the first block that are not complete; 0: it has not begun
        self.events: list[AnyEvent | Measured] = []
        self.configured: wire.Configured | None = None
        self.is_ending = False

    def receive(self, identity: bytes, message: wire.FromObserver, present: StateEvent) -> None:
        """Take one message in. An observer that sends its first message is told the present state."""
        if identity not in self.identities:
            self.identities[identity] = None
            self._outbox.append((identity, wire.Told(present)))
        if isinstance(message, wire.Configured):
            self.configured = message
        elif isinstance(message, wire.RunBlock):
            if not self.is_ending:  # else workers may have been told to finish
                self._blocks.append(message)
        elif isinstance(message, wire.EndJob):
            self.is_ending = True

    def forget(self, identity: bytes) -> None:
        """Tell an observer that has left nothing more. Its orders still hold."""
        self.identities.pop(identity, None)

    def tell(self, event: AnyEvent | Measured) -> None:
        """Tell all observers of an event. Measured samples go into the run's file alone."""
        self.events.append(event)
        if isinstance(event, Measured):
            return
        told = wire.Told(event)  # one object: encoded once
        self._outbox.extend((identity, told) for identity in self.identities)

    @property
    def block(self) -> wire.RunBlock | None:
        """The block under way, else the next one."""
        return self._blocks[0] if self._blocks else None

    @property
    def label(self) -> str:
        """The name that events give to the iterations under way."""
        return self._blocks[0].label or self._blocks[0].scheme

    def begin(self) -> bool:
        """Begin the next block; return False if one is under way."""
        if self.left:
            return False
        self.left = self._blocks[0].iterations
        return True

    def count(self, now_s: float) -> list[BlockEvent]:
        """Count a complete iteration of the block under way; the last one ends the block, of which the returned event tells."""
        self.left -= 1
        if self.left:
            return []
        ended = BlockEvent(at_s=now_s, scheme=self.label, iterations=self._blocks[0].iterations)
        self._blocks.popleft()
        return [ended]

    def is_recorded(self, iteration: int) -> bool:
        """Whether events tell every message of an iteration. A training may last weeks, so ever fewer of its are recorded."""
        step = 10 ** max(0, len(str(iteration)) - 2)
        return self._is_held or iteration < RECORDED or iteration % step == 0
