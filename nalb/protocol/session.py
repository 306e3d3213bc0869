"""One end of a conversation between two processes whose connection may break and be made anew. No sockets, no clock.

A message of one end arrives at the other once and in order, whatever the connections between them lose, repeat or hold up:

    kept messages    carry numbers 1, 2, ...; the sender keeps each until the receiver confirms it
    signs of life    are not kept, since another follows; a sign that came after a lost message is no news
    every envelope   says the last number sent and the last one received in order

One end sends signs again and again, the other answers those that show a loss, so both learn what is missing: a receiver whose peer
has sent more than has come says `misses` in its next sign, and the sender sends again all that is not confirmed (go-back-N: a
connection that breaks loses its last messages, all of them). Nothing is sent again for having taken long: a slow connection
that lives delivers it.
"""

from collections import deque
from typing import Annotated, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from nalb.errors import PeerError

T = TypeVar("T")
Number = Annotated[int, Meta(ge=0, le=1 << 62)]


class Envelope(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """The header of each message."""

    sent: Number  # of the last kept message, this one included
    received: Number  # of the peer's kept messages, the last that came in order
    is_kept: bool  # whether the message is number `sent`; else it is a sign of life
    misses: bool  # whether the sender knows of later messages than `received`; asks for them where this is a sign


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def pack(envelope: Envelope) -> bytes:
    """The frame of an envelope."""
    return _encoder.encode(envelope)


def unpack(frame: bytes) -> Envelope:
    """Read the envelope in a frame. Raises PeerError where it is none."""
    try:
        return _decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"not an envelope: {error}") from None


class Session(Generic[T]):
    """One end of a conversation. T: the type that stands for a message on its way, such as its frame."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, T]] = deque()  # not confirmed, by number
        self._sent = self._received = 0
        self._last_of_peer = 0  # the highest number that the peer has said to have sent

    @property
    def unconfirmed(self) -> int:
        """The number of kept messages that the peer has not confirmed."""
        return len(self._kept)

    @property
    def misses(self) -> bool:
        """Whether the peer has sent messages that have not come."""
        return self._last_of_peer > self._received

    def keep(self, message: T) -> Envelope:
        """The envelope of a message that must arrive."""
        self._sent += 1
        self._kept.append((self._sent, message))
        return self._envelope(self._sent, True)

    def sign(self) -> Envelope:
        """The envelope of a sign of life."""
        return self._envelope(self._sent, False)

    def is_of_another(self, envelope: Envelope) -> bool:
        """Whether an arrived sign of life is of a process that took the peer's place: it lacks what the peer has confirmed.

        That holds on connections that keep the order of messages, as TCP does.
        """
        return not envelope.is_kept and envelope.received < self._sent - len(self._kept)

    def accept(self, envelope: Envelope) -> bool:
        """Take in an arrived envelope; returns whether its message is the next one, neither repeated nor too early.

        Raises PeerError where it confirms what was never sent.
        """
        if envelope.received > self._sent:
            raise PeerError(f"confirms message {envelope.received} of {self._sent}")
        while self._kept and self._kept[0][0] <= envelope.received:
            self._kept.popleft()
        self._last_of_peer = max(self._last_of_peer, envelope.sent)
        is_next = envelope.sent == self._received + envelope.is_kept
        self._received += envelope.is_kept and is_next
        return is_next

    def again(self, envelope: Envelope) -> list[tuple[Envelope, T]]:
        """The messages that an arrived envelope asks for again, in order. Take the envelope in first."""
        if envelope.is_kept or not envelope.misses:
            return []
        return [(self._envelope(number, True), message) for number, message in self._kept]

    def _envelope(self, sent: int, is_kept: bool) -> Envelope:
        return Envelope(sent, self._received, is_kept, self.misses)
