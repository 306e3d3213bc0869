"""What workers send each other: a header that says what it is, and the raw elements of one array. No code travels."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from nalb.errors import PeerError
from nalb.protocol.messages import Count, Index
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part

FRAME_MOST_BYTES = 1 << 30
HEADER_MOST_BYTES = 4096


class TokenPiece(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="token"):
    """A part of a computed token, for the one that needs it."""

    token: TokenId
    part: Part
    wanted_by: TokenId


class Phase(StrEnum):
    """Of a sum over some workers."""

    SCATTER = "scatter"  # one worker's gradients, of the share that the receiver adds up
    GATHER = "gather"  # the sum of that share


class SumPiece(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="sum"):
    """A share of a sub-model's gradients. dtype: of the arrays in it, which travel as one."""

    iteration: Count
    sub_model: Index
    phase: Phase
    dtype: Annotated[str, Meta(max_length=16)]


class Occasion(StrEnum):
    """Why a worker gets a sub-model."""

    JOINS = "joins"  # it computes the sub-model from this iteration on
    GATHER = "gather"  # the script wants whole models after this iteration


class StatePiece(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, tag="state"):
    """One array of a sub-model: its parameters, its optimizer's state, the counts of its updates."""

    iteration: Count
    sub_model: Index
    occasion: Occasion
    number: Index


Piece = TokenPiece | SumPiece | StatePiece


class Header(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """In front of the elements, which are in C order."""

    source: Index  # rank of the sender
    piece: Piece
    dtype: Annotated[str, Meta(pattern=r"^(float(16|32|64)|u?int(8|16|32|64))\Z")]
    shape: Annotated[list[Index], Meta(max_length=32)]


@dataclass(frozen=True)
class Received:
    """A message that is ours."""

    source: int
    piece: Piece
    array: npt.NDArray[Any]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def pack(source: int, piece: Piece, array: npt.NDArray[Any]) -> tuple[bytes, memoryview]:
    """The frames."""
    header = Header(source, piece, array.dtype.name, list(array.shape))
    return _encoder.encode(header), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def unpack(frames: list[memoryview]) -> Received:
    """PeerError for what is not ours."""
    if len(frames) != 2 or len(frames[0]) > HEADER_MOST_BYTES:
        raise PeerError(f"{len(frames)} frames where a header and an array belong")
    try:
        header = _decoder.decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"not a header: {error}") from None
    dtype = np.dtype(header.dtype)
    if math.prod(header.shape) * dtype.itemsize != len(frames[1]):
        raise PeerError(f"{len(frames[1])} bytes where {header.dtype} of shape {header.shape} belongs")
    return Received(header.source, header.piece, np.frombuffer(frames[1], dtype).reshape(header.shape))
