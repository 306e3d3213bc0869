"""What an iteration is, and which call ends it: learned from a training script's calls, not declared. Pure.

A call pushes a group: keys with their sizes, in order. A group that is new is recorded. When a recorded group comes again, the
record from there on is what every iteration consists of. A call that does not fit breaks the iteration off, and a new record
begins. With calls a to d and x:

    call            a  b  c  d     b            c  d      b  c  d      b  x
    number          recorded       0            1  2      0  1  2      0  recorded
    it is           new            learned         last         last      breaks off
    iteration       unknown        b c d                                  unknown
"""

from typing import NamedTuple

Key = int | str
Group = tuple[tuple[Key, int, str], ...]  # (key, elements, dtype) of one call


class PlaceInIteration(NamedTuple):
    """What one call is to the iterations."""

    number: int = -1  # of its group within the iteration, from 0; -1: of no known iteration
    is_last: bool = False  # the iteration ends with it
    learned: tuple[Group, ...] = ()  # if not empty: what every iteration consists of from this call on
    breaks_off: bool = False  # the iteration under way, if any, ends before it; what iterations consist of is unknown


class IterationRecorder:
    """Tells each call's place, in order of calls."""

    def __init__(self) -> None:
        self._record: list[Group] = []
        self._is_iteration = False  # the record is complete
        self._next = 0  # number of the group that the iteration goes on with

    def place(self, group: Group) -> PlaceInIteration:
        """The place of the call that comes now."""
        breaks_off = self._is_iteration and self._record[self._next] != group
        if breaks_off:
            self._record, self._is_iteration, self._next = [], False, 0
        learned: tuple[Group, ...] = ()
        if not self._is_iteration:
            if group not in self._record:
                self._record.append(group)
                return PlaceInIteration(breaks_off=breaks_off)
            del self._record[: self._record.index(group)]  # what came once before the cycle is not part of it
            self._is_iteration, learned = True, tuple(self._record)
        number = self._next
        self._next = (number + 1) % len(self._record)
        return PlaceInIteration(number, self._next == 0, learned)

    def break_off(self) -> None:
        """A call comes that is no part of iterations, such as a broadcast: the next one begins with its first group."""
        self._next = 0
