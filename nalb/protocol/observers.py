"""Who watches a job: what they are told, and what they ask for: configured rates, blocks of iterations, the end. No sockets.

A job that is not held has one block without end.
"""

from collections import deque
from typing import NamedTuple

from nalb.events import AnyEvent, BlockEvent, StateEvent
from nalb.measurement.samples import Samples
from nalb.protocol import messages as m

Outgoing = tuple[bytes, m.Message]


class Measured(NamedTuple):
    """A SamplesEvent in the making: the shell makes rows of its samples where no worker waits for them."""

    at_s: float
    iteration: int
    samples: Samples


class Observers:
    """Observers by identity. What they are told goes to `outbox`, and every event to `events`, for the run's file."""

    def __init__(self, outbox: deque[Outgoing], scheme: str, hold: bool, label: str | None = None):
        """label: what events call the iterations of a job that is not held; None: the scheme."""
        self._outbox = outbox
        self._identities: dict[bytes, None] = {}  # in the order of their coming
        self._blocks = deque([] if hold else [m.RunBlock(scheme, m.FOREVER, label=label)])
        self.left = 0  # iterations of the first block, if it has begun, that are not complete
        self.events: list[AnyEvent | Measured] = []
        self.configured: m.Configured | None = None
        self.is_ending = False

    def receive(self, identity: bytes, message: m.FromObserver, present: StateEvent) -> None:
        """Take one message in; who says something for the first time is told the present state."""
        if identity not in self._identities:
            self._identities[identity] = None
            self._outbox.append((identity, m.Told(present)))
        if isinstance(message, m.Configured):
            self.configured = message
        elif isinstance(message, m.RunBlock):
            if not self.is_ending:  # else workers may have been told to finish
                self._blocks.append(message)
        elif isinstance(message, m.EndJob):
            self.is_ending = True

    def forget(self, identity: bytes) -> None:
        """The observer has left: it is told nothing more. What it asked for stays asked for."""
        self._identities.pop(identity, None)

    def tell(self, event: AnyEvent) -> None:
        """An event, to all."""
        self.events.append(event)
        told = m.Told(event)  # one object: encoded once
        self._outbox.extend((identity, told) for identity in self._identities)

    @property
    def block(self) -> m.RunBlock | None:
        """The block under way, else the next one."""
        return self._blocks[0] if self._blocks else None

    @property
    def label(self) -> str:
        """What events call the iterations under way."""
        return self._blocks[0].label or self._blocks[0].scheme

    def begin(self) -> bool:
        """Begin the next block; False where one is under way."""
        if self.left:
            return False
        self.left = self._blocks[0].iterations
        return True

    def count(self, now_s: float) -> None:
        """An iteration of the block under way is complete; its last ends the block."""
        self.left -= 1
        if self.left == 0:
            self.tell(BlockEvent(at_s=now_s, scheme=self.label, iterations=self._blocks[0].iterations))
            self._blocks.popleft()
