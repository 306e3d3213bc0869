"""A stream of items from one courier to another: items are numbered, held until confirmed, and sent again if some are missing.

TCP loses nothing while a connection lasts. A connection that breaks loses the items on their way, and nobody knows which they
were. So each item has a number. The receiver takes items in the order of their numbers and confirms the last one that it has. The
sender holds the items that are not confirmed. Every beat it also sends its last number (a mark), since the last items may be lost.

A receiver that misses a number asks for all items from that number on (go-back-N). Items that are on their way meanwhile show the
same gap, which must not be answered again. So the sender counts rounds: items and marks carry the round, a request names the round
that showed the gap, and only a request about the present round begins another one.

The receiver also states the number of bytes up to which the sender may send. This bounds the bytes on their way, and a receiver
without room holds the sender back without losing anything.

Items may be lost, repeated or overtaken. In every case the receiver takes each item once and in order, and takes all of them once
losses cease (tests/transport/test_stream.py tries every course of short streams). This module uses no sockets and no clock.
"""

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from nalb.errors import PeerError

WINDOW_BYTES = 64 << 20  # the most bytes on their way to one peer: a round trip of 100 ms at 5 Gbit/s

T = TypeVar("T")


@dataclass(frozen=True)
class _Held(Generic[T]):
    item: T
    start_bytes: int  # the bytes of all items before this one
    end_bytes: int


class Outflow(Generic[T]):
    """The sender's end: items on their way to one peer. round: see the module. vain: rounds since an item was last confirmed."""

    def __init__(self) -> None:
        self._held: deque[_Held[T]] = deque()  # the unconfirmed items; the first has the number after `confirmed`
        self.confirmed, self.sent = 0, 0  # the last item's number; `sent` counts this round alone
        self.round, self.vain = 0, 0
        self._put_bytes, self.limit_bytes = 0, WINDOW_BYTES

    def __len__(self) -> int:
        """The number of items that are not confirmed."""
        return len(self._held)

    @property
    def oldest(self) -> T | None:
        """The first item that is not confirmed, if any is left."""
        return self._held[0].item if self._held else None

    @property
    def wants_more(self) -> bool:
        """Whether all items are sent and the peer admits more bytes."""
        return self.sent == self.confirmed + len(self._held) and self._put_bytes < self.limit_bytes

    def put(self, item: T, size_bytes: int) -> None:
        """Append an item of `size_bytes` to the stream."""
        self._held.append(_Held(item, self._put_bytes, self._put_bytes + size_bytes))
        self._put_bytes += size_bytes

    def next(self) -> tuple[int, T] | None:
        """The number and item that may be sent next, or None; `leave` must be called once it is sent."""
        place = self.sent - self.confirmed
        if place == len(self._held) or self._held[place].start_bytes >= self.limit_bytes:
            return None
        return self.sent + 1, self._held[place].item

    def leave(self) -> None:
        """Note that the item from `next` is sent."""
        self.sent += 1

    def confirm(self, received: int, limit_bytes: int, again: int) -> None:
        """Take the peer's confirmation of all items up to `received`.

        The peer admits `limit_bytes` in all, and misses items of round `again` (-1: it misses none). Raises PeerError for a
        confirmation of items that do not exist.
        """
        if received > self.confirmed + len(self._held):
            raise PeerError("a confirmation of what was not sent")
        while self.confirmed < received:
            self._held.popleft()
            self.confirmed, self.vain = self.confirmed + 1, 0
        self.sent = max(self.sent, self.confirmed)
        self.limit_bytes = max(self.limit_bytes, limit_bytes)
        if again == self.round:
            self.sent, self.round, self.vain = self.confirmed, self.round + 1, self.vain + 1


class Inflow:
    """The receiver's end: items from one peer. received: the last item's number. again: the round that showed a gap; -1: none."""

    def __init__(self) -> None:
        self.received, self.again = 0, -1
        self._taken_bytes, self.limit_bytes = 0, WINDOW_BYTES

    def is_next(self, number: int, round_: int) -> bool:
        """Whether this item is the next to take; if so, call `note_taken`. A later item's round is noted as showing a gap."""
        if number > self.received + 1:
            self.again = round_
        return number == self.received + 1

    def note_taken(self, size_bytes: int) -> None:
        """Note that the next item, of `size_bytes`, is taken."""
        self.received += 1
        self._taken_bytes += size_bytes
        self.again = -1

    def mark(self, sent: int, round_: int) -> None:
        """Take a mark: the peer has sent all items up to `sent`. The round is noted as showing a gap if some have not come."""
        if sent > self.received:
            self.again = round_

    def open(self) -> bool:
        """Admit another window of bytes if the peer has used half of its last one; return whether the peer must be told."""
        limit_bytes = self._taken_bytes + WINDOW_BYTES
        if limit_bytes - self.limit_bytes < WINDOW_BYTES // 2:
            return False
        self.limit_bytes = limit_bytes
        return True
