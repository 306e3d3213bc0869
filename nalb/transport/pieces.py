"""The messages between workers: a header that describes the message, and raw elements of one array. No code travels.

An array goes in portions, so that a loss is soon repaired when a connection breaks (stream.py), and no frame is large. There
are also marks, which follow portions on the same connection, and words, which have a connection of their own.
"""

import math
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from nalb.errors import PeerError
from nalb.protocol.wire import Bytes, Count, Index, Job, Last
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part

PORTION_MOST_BYTES = 8 << 20  # 5 s at 12 Mbit/s
ARRAY_MOST_BYTES = 1 << 50
HEADER_MOST_BYTES = 4096


class TokenPiece(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="token"):
    """A part of a computed token, for the token that needs it."""

    token: TokenId
    part: Part
    wanted_by: TokenId


class SumPhase(Enum):
    """The phase of a sum over some workers."""

    SCATTER = "scatter"  # one worker sends its gradients of the share that the receiver adds up
    GATHER = "gather"  # the worker that added a share up sends its sum


class SumPiece(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="sum"):
    """A share of a sub-model's gradients. dtype: the type of the arrays in the share, which travel as one array."""

    iteration: Count
    sub_model: Index
    phase: SumPhase
    dtype: Annotated[str, Meta(max_length=16)]


class Occasion(Enum):
    """The occasion on which a worker gets a sub-model."""

    JOINS = "joins"  # the worker computes the sub-model from this iteration on
    GATHER = "gather"  # the script wants whole models after this iteration


class StatePiece(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="state"):
    """One array of a sub-model: its parameters, its optimizer's state, the counts of its updates."""

    iteration: Count
    sub_model: Index
    occasion: Occasion
    number: Index


Piece = TokenPiece | SumPiece | StatePiece


def described(piece: Piece) -> str:
    """A description of the piece for people."""
    if isinstance(piece, TokenPiece):
        iteration, level, number = piece.token
        return f"the {piece.part.value} of token {number} of level {level + 1} in iteration {iteration}"
    what = f"the {piece.phase.value} share" if isinstance(piece, SumPiece) else f"array {piece.number}"
    return f"{what} of sub-model {piece.sub_model + 1} in iteration {piece.iteration}"


def iteration_of(piece: Piece) -> int:
    """The iteration to which the piece belongs."""
    return piece.wanted_by.iteration if isinstance(piece, TokenPiece) else piece.iteration


class Sender(NamedTuple):
    """The worker that sends. job: as in Welcome (nalb/protocol/wire.py)."""

    rank: Index
    job: Job


class Portion(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="portion"):
    """The header of some elements of an array, in C order. number, round: see stream.py."""

    sender: Sender
    number: Count
    round: Count
    piece: Piece
    dtype: Annotated[str, Meta(pattern=r"^(float(16|32|64)|u?int(8|16|32|64))\Z")]
    shape: Annotated[list[Index], Meta(max_length=32)]  # the shape of the whole array
    start_bytes: Bytes  # the position of these elements in the array's bytes

    @property
    def total_bytes(self) -> int:
        """The size of the whole array in bytes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Mark(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="mark"):
    """The number of the last portion that was sent before this mark on the same connection, and its round."""

    sender: Sender
    number: Count
    round: Count


class Word(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="word"):
    """A sign of life that confirms the portions received from its receiver. received, limit_bytes, again: see stream.py."""

    sender: Sender
    received: Count
    limit_bytes: Count
    again: Last
    left: Count  # the arrays and portions for the receiver that the receiver has not confirmed
    asks: bool  # whether the sender asks for a word in return


Header = Portion | Mark | Word


class Elements(NamedTuple):
    """A portion that has no number yet."""

    piece: Piece
    dtype: str
    shape: list[int]
    start_bytes: int
    data: memoryview


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)


def portions(piece: Piece, array: npt.NDArray[Any]) -> Iterator[Elements]:
    """Cut an array into portions; an empty array gives one empty portion."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    for start_bytes in range(0, max(len(data), 1), PORTION_MOST_BYTES):
        end_bytes = start_bytes + PORTION_MOST_BYTES
        yield Elements(piece, array.dtype.name, list(array.shape), start_bytes, data[start_bytes:end_bytes])


def pack(sender: Sender, number: int, round_: int, part: Elements) -> tuple[bytes, memoryview]:
    """The frames of a portion: header and elements."""
    header = Portion(sender, number, round_, part.piece, part.dtype, part.shape, part.start_bytes)
    return _encoder.encode(header), part.data


def pack_header(header: Mark | Word) -> tuple[bytes]:
    """The only frame of a mark or word."""
    return (_encoder.encode(header),)


def unpack(frames: list[memoryview]) -> tuple[Header, memoryview]:
    """The header and, for a portion, its elements. Raises PeerError for frames that are no such message."""
    if not frames or len(frames[0]) > HEADER_MOST_BYTES:
        raise PeerError("no header of at most 4096 bytes")
    try:
        header = _decoder.decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"not a header: {error}") from None
    is_portion = isinstance(header, Portion)
    if len(frames) != 1 + is_portion:
        raise PeerError(f"{len(frames)} frames where a header and, of a portion, elements belong")
    if not isinstance(header, Portion):
        return header, memoryview(b"")
    # numpy leaves a shape's zeros out of its product, and refuses products that do not fit into 64 bits
    if math.prod(max(one, 1) for one in header.shape) * np.dtype(header.dtype).itemsize > ARRAY_MOST_BYTES:
        raise PeerError(f"an array of shape {header.shape}, which no memory holds")
    left_bytes = header.total_bytes - header.start_bytes
    if not min(left_bytes, 1) <= len(frames[1]) <= min(left_bytes, PORTION_MOST_BYTES):
        raise PeerError(f"{len(frames[1])} bytes of {header.dtype} where {left_bytes} of {header.shape} are left")
    return header, frames[1]


class Assembly:
    """Assembles an array from its portions, which come in order. It takes memory only for portions that have come."""

    def __init__(self) -> None:
        self._first: Portion | None = None
        self._data = bytearray()

    def add(self, portion: Portion, elements: memoryview) -> npt.NDArray[Any] | None:
        """Add a portion; return the array if it is complete. Raises PeerError for a portion that does not follow the one before."""
        first = self._first or portion
        whats = [(one.piece, one.dtype, one.shape) for one in (first, portion)]
        if whats[0] != whats[1] or portion.start_bytes != len(self._data):
            raise PeerError("a portion that does not follow the one before it")
        is_last = portion.start_bytes + len(elements) == portion.total_bytes
        data: memoryview | bytearray = elements
        if self._first is not None or not is_last:  # an array in a single portion is not copied
            self._first = first
            self._data += elements
            data = self._data
        if not is_last:
            return None
        self._first, self._data = None, bytearray()
        return np.frombuffer(data, np.dtype(portion.dtype)).reshape(portion.shape)
