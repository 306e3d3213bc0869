"""Learns from a training script's calls what an iteration is and which call ends it. Scripts declare nothing. Pure.

A call pushes a group: keys with their sizes, in order. A group that is new is recorded. When a recorded group comes again, the
record from there on is what every iteration consists of. A call that does not fit breaks the iteration off, and a new record
begins. With calls a to d and x:

    call            a  b  c  d     b            c  d      b  c  d      b  x
    number          recorded       0            1  2      0  1  2      0  recorded
    it is           new            learned         last         last      breaks off
    iteration       unknown        b c d                                  unknown

Calls that never come again, as sums of a metric whose key has the step's number, must not fill the memory. So the record holds the
last calls alone, RECORD_MOST tensors in all: an iteration of several calls with more tensors than that is never learned, and its
sums go without a plan. Choice not taken: digests of older calls, which say that one came again, but not what came since.
"""

from collections import OrderedDict
from typing import NamedTuple

Key = int | str
Group = tuple[tuple[Key, int, str], ...]  # (key, elements, dtype) of one call
RECORD_MOST = 100_000  # tensors, about 40 MB of words and numbers; the largest nets of MXNet's model zoo have hundreds


class PlaceInIteration(NamedTuple):
    """The place of one call in the iterations."""

    number: int = -1  # of its group within the iteration, from 0; -1: of no known iteration
    is_last: bool = False  # the iteration ends with it
    learned: tuple[Group, ...] = ()  # if not empty: what every iteration consists of from this call on
    breaks_off: bool = False  # the iteration under way, if any, ends before it; what iterations consist of is unknown


class IterationRecorder:
    """Finds the place of each call, in order of calls."""

    def __init__(self, record_most: int = RECORD_MOST) -> None:
        self._most = record_most
        self._record: OrderedDict[Group, None] = OrderedDict()  # empty where iterations are known
        self._recorded_tensors = 0
        self._iteration: tuple[Group, ...] = ()  # empty: unknown
        self._next = 0  # number of the group that the iteration goes on with

    def place(self, group: Group) -> PlaceInIteration:
        """Take in the next call; returns its place."""
        breaks_off = bool(self._iteration) and self._iteration[self._next] != group
        if breaks_off:
            self._iteration, self._next = (), 0
        learned: tuple[Group, ...] = ()
        if not self._iteration:
            if group not in self._record:
                self._note(group)
                return PlaceInIteration(breaks_off=breaks_off)
            recorded = list(self._record)
            self._iteration = learned = tuple(recorded[recorded.index(group) :])  # what came before is not part of it
            self._record, self._recorded_tensors = OrderedDict(), 0
        number = self._next
        self._next = (number + 1) % len(self._iteration)
        return PlaceInIteration(number, self._next == 0, learned)

    def _note(self, group: Group) -> None:
        """Record a call; the oldest ones are forgotten where there are too many tensors."""
        self._record[group] = None
        self._recorded_tensors += len(group)
        while self._recorded_tensors > self._most and len(self._record) > 1:
            oldest, _ = self._record.popitem(last=False)
            self._recorded_tensors -= len(oldest)

    def break_off(self) -> None:
        """Take in a call that is no part of iterations, such as a broadcast: the next iteration begins with its first group."""
        self._next = 0
