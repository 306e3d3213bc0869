"""A process's output as it comes: lines, and the states of progress bars, which a carriage return ends or begins.

Every byte is given once as part of a line or of a state. What has no end yet is also given in between, to be shown: of a bar at
once, of anything else, as a question to the user, once nothing has followed for STATE_S.
"""

import os
import re
import select
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

PIECE_BYTES = 65_536  # a longer line is cut
STATE_S = 1.0  # between two states of one process that are shown: more nobody can read
_END = re.compile(rb"\r?\n|\r(?!\n|\Z)")  # a carriage return is judged by what follows it


class Kind(Enum):
    """What a piece of output is."""

    LINE = auto()  # ended by a newline, by its length or with the output
    STATE = auto()  # ended by a carriage return: what follows takes its place
    OPEN = auto()  # has no end yet: is given again


class Piece(NamedTuple):
    """A part of the output, with its end."""

    kind: Kind
    raw: bytes

    @property
    def text(self) -> str:
        """For people, without its end; ? in place of bytes that are no UTF-8."""
        return self.raw.rstrip(b"\r\n").decode("utf-8", "replace")


def pieces_of(descriptor: int) -> Iterator[Piece]:
    """The output that a pipe carries, until its end."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    rest, is_bar, is_told = b"", False, True
    while True:
        if not poller.poll(None if is_told else STATE_S * 1000):
            is_told = True
            yield Piece(Kind.OPEN, rest)
        elif data := os.read(descriptor, PIECE_BYTES):
            pieces, rest = cut(rest + data)
            yield from pieces
            is_bar = pieces[-1].kind is Kind.STATE if pieces else is_bar
            is_told = not rest
            if is_bar and rest:
                yield Piece(Kind.OPEN, rest)
        else:
            break
    if rest:
        yield Piece(Kind.LINE, rest)


def cut(data: bytes) -> tuple[list[Piece], bytes]:
    """The pieces that have ended, and the rest."""
    pieces, begin = list[Piece](), 0
    for found in _END.finditer(data):
        kind = Kind.LINE if found[0].endswith(b"\n") else Kind.STATE
        pieces.append(Piece(kind, data[begin : found.end()]))
        begin = found.end()
    while len(data) - begin > PIECE_BYTES:
        pieces.append(Piece(Kind.LINE, data[begin : begin + PIECE_BYTES]))
        begin += PIECE_BYTES
    return pieces, data[begin:]
