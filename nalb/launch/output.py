"""Cuts a process's output into lines and into states of progress bars, which a carriage return ends or begins.

Each byte is given once, as part of a line or of a state. Output that has no end yet is also given in between, to be shown.
An unfinished state of a bar is given at once. Other unfinished output, such as a question to the user, is given when nothing
has followed it for STATE_S.
"""

import os
import re
import select
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

PIECE_BYTES = 65_536  # longer lines are cut to pieces of this size
STATE_S = 1.0  # the least time between two shown states of one process: nobody can read more
_END = re.compile(rb"\r?\n|\r(?!\n|\Z)")  # a carriage return is judged by what follows it


class Kind(Enum):
    """The kind of a piece of output."""

    LINE = auto()  # the piece ends with a newline, at PIECE_BYTES, or with the output
    STATE = auto()  # the piece ends with a carriage return; the next piece replaces it on a terminal
    OPEN = auto()  # the piece has no end yet, and is given again once it has


class Piece(NamedTuple):
    """A part of the output, with the newline or carriage return that ends it."""

    kind: Kind
    raw: bytes

    @property
    def text(self) -> str:
        """The piece as text without its end, for people; bytes that are no UTF-8 are replaced."""
        return self.raw.rstrip(b"\r\n").decode("utf-8", "replace")


def pieces_of(descriptor: int) -> Iterator[Piece]:
    """Yield the pieces of the output that a pipe carries, until the pipe's end. `descriptor` is the pipe's reading end."""
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
    """Cut `data` into the pieces that have ended, and the rest."""
    pieces, begin = list[Piece](), 0
    for found in _END.finditer(data):
        kind = Kind.LINE if found[0].endswith(b"\n") else Kind.STATE
        pieces.append(Piece(kind, data[begin : found.end()]))
        begin = found.end()
    while len(data) - begin > PIECE_BYTES:
        pieces.append(Piece(Kind.LINE, data[begin : begin + PIECE_BYTES]))
        begin += PIECE_BYTES
    return pieces, data[begin:]
