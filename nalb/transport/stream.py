"""What one courier has sent to another: numbered, held until it is confirmed, sent again where something is missing.

TCP loses nothing while a connection lasts. A connection that breaks takes along what was on it, and nobody says what that was. So
each item has a number, the receiver takes items in the order of their numbers, and confirms the last one that it has. The sender
holds what is not confirmed. Every beat it also says what its last number was (a mark), since the last items may be lost too.

A receiver that misses a number asks to have everything from there on again (go-back-N). What was on its way meanwhile shows the
same gap, and should not be answered again. So the sender counts its rounds: items and marks carry the round, a question names the
round that showed the gap, and only a question about the present round begins another one.

The receiver also says up to how many bytes it lets come. What is on its way is thereby bounded, and one that has no room holds the
sender back without losing anything.

Items may be lost, repeated or overtaken. Whatever happens, they are taken once each and in order; all of them, once no more is lost
(tests/transport/test_stream.py tries every course of small ones). No sockets, no clock.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from nalb.errors import PeerError

WINDOW_BYTES = 64 << 20  # on its way to one peer: 100 ms of round trip at 5 Gbit/s

T = TypeVar("T")


@dataclass(frozen=True)
class _Held(Generic[T]):
    item: T
    start_bytes: int  # of all items before it
    end_bytes: int


class Outflow(Generic[T]):
    """Items on their way to one peer. round: see the module. vain: rounds since something was confirmed."""

    def __init__(self) -> None:
        self._held: deque[_Held[T]] = deque()  # not confirmed; the first has the number after `confirmed`
        self.confirmed, self.sent = 0, 0  # numbers of the last ones; sent: in this round
        self.round, self.vain = 0, 0
        self._put_bytes, self._limit_bytes = 0, WINDOW_BYTES

    def __len__(self) -> int:
        """How many items are not confirmed."""
        return len(self._held)

    @property
    def oldest(self) -> T | None:
        """The first item that is not confirmed, if any is left."""
        return self._held[0].item if self._held else None

    @property
    def wants_more(self) -> bool:
        """Whether all that was put is sent, and the peer lets more come."""
        return self.sent == self.confirmed + len(self._held) and self._put_bytes < self._limit_bytes

    def put(self, item: T, size_bytes: int) -> None:
        """An item that follows those before it."""
        self._held.append(_Held(item, self._put_bytes, self._put_bytes + size_bytes))
        self._put_bytes += size_bytes

    def next(self) -> tuple[int, T] | None:
        """The item that may leave now, with its number; `leave` says that it has left."""
        place = self.sent - self.confirmed
        if place == len(self._held) or self._held[place].start_bytes >= self._limit_bytes:
            return None
        return self.sent + 1, self._held[place].item

    def leave(self) -> None:
        """What `next` gave is sent."""
        self.sent += 1

    def confirm(self, received: int, limit_bytes: int, again: int) -> None:
        """The peer has all up to `received`, lets come up to `limit_bytes`, and misses something of round `again` (-1: nothing).

        PeerError: it cannot have that.
        """
        if received > self.confirmed + len(self._held):
            raise PeerError("a confirmation of what was not sent")
        while self.confirmed < received:
            self._held.popleft()
            self.confirmed, self.vain = self.confirmed + 1, 0
        self.sent = max(self.sent, self.confirmed)
        self._limit_bytes = max(self._limit_bytes, limit_bytes)
        if again == self.round:
            self.sent, self.round, self.vain = self.confirmed, self.round + 1, self.vain + 1


class Inflow:
    """Items from one peer. received: the number of the last one that was taken. again: the round that showed a gap; -1: none."""

    def __init__(self) -> None:
        self.received, self.again = 0, -1
        self._taken_bytes, self.limit_bytes = 0, WINDOW_BYTES

    def is_next(self, number: int, round_: int) -> bool:
        """Whether this item is the one to take; if so `take` must follow."""
        if number > self.received + 1:
            self.again = round_
        return number == self.received + 1

    def take(self, size_bytes: int) -> None:
        """The next item is taken."""
        self.received += 1
        self._taken_bytes += size_bytes
        self.again = -1

    def mark(self, sent: int, round_: int) -> None:
        """The peer had sent all up to `sent` before this."""
        if sent > self.received:
            self.again = round_

    def open(self) -> bool:
        """Let another window come, where the peer has used half of its last one. Returns whether it must be told."""
        limit_bytes = self._taken_bytes + WINDOW_BYTES
        if limit_bytes - self.limit_bytes < WINDOW_BYTES // 2:
            return False
        self.limit_bytes = limit_bytes
        return True
