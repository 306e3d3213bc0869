"""What an iteration is, where sums have no names: learned from their sizes, dtypes and groups, which are alike on all ranks. Pure.

An iteration is the shortest pattern of sums that came twice in a row, once its first sum comes again:

    sum          a  b  c  a  b  c  a        b  c  a     x
    it is        unknown           learned        last  breaks off

Where the first iteration of a script differs from all later ones, as DDP's does, which rebuilds its buckets after it, the pattern
could begin in the middle: z b, then a b, a b would be learned as (b a). DDP's buckets hold the same elements in either form. So a
pattern counts after two times only if the sums before it hold as many elements as itself, or if there were none. Otherwise it
counts after three times: the right one comes to three before any that begins later.

A pattern that breaks off soon was none: a a b a a b may seem to repeat a. It must come twice as often in a row before it is
learned again, so any such mistake ends.
"""

from collections import OrderedDict

import numpy as np

from nalb.services.exchange.recorder import Group, Key, PlaceInIteration

SUMS_MOST = 1 << 15  # that are remembered; an iteration has at most half of them
TIMES = 2  # in a row that a pattern must come before it is learned
SOON = 3  # iterations within which a pattern that breaks off was none
DOUBTED_MOST = 64  # patterns that must come more often

KIND_BITS = 23  # 8 million kinds, and 2^40 elements

Sum = tuple[int, str, str]  # elements, dtype, name of the group that sums


def key_of(number: int, group: str) -> Key:
    """What a sum is called."""
    return f"{number} of group {group}" if group else number


class CycleRecorder:
    """Tells each sum's place in the iteration, in order of calls."""

    def __init__(self, sums_most: int = SUMS_MOST) -> None:
        self._most = sums_most
        self._kinds: dict[tuple[str, str], int] = {}  # dtypes and groups, by number
        self._codes = np.zeros(2 * sums_most, np.int64)  # of the sums so far: one number for elements and kind
        self._count = 0
        self._rows = np.zeros(sums_most // 2, np.int64)  # [p - 1]: how many last sums in a row equal the one p before
        self._pattern: tuple[Sum, ...] = ()  # empty: unknown
        self._next = 0  # number of the sum that the iteration goes on with
        self._begun = 0  # iterations since the pattern was learned
        self._times: OrderedDict[tuple[Sum, ...], int] = OrderedDict()  # in a row, of patterns that broke off soon

    def place(self, elements: int, dtype: str, group: str = "") -> PlaceInIteration:
        """The place of the sum that comes now. In `learned` the keys are by `key_of`. group: empty for the default group."""
        one = (elements, dtype, group)
        breaks_off = bool(self._pattern) and self._pattern[self._next] != one
        if breaks_off:
            self._doubt()
        is_new = not self._pattern and bool(period := self._period(one))
        if is_new:
            self._pattern = self._last(period)
            self._next = self._begun = 0
        self._note(one)
        if not self._pattern:
            return PlaceInIteration(breaks_off=breaks_off)
        number = self._next
        self._next = (number + 1) % len(self._pattern)
        self._begun += number == 0
        return PlaceInIteration(number, self._next == 0, self._learned() if is_new else (), breaks_off)

    def _learned(self) -> tuple[Group, ...]:
        return tuple(
            ((key_of(index, group), elements, dtype),) for index, (elements, dtype, group) in enumerate(self._pattern)
        )

    def _doubt(self) -> None:
        """The pattern broke off."""
        times = self._times.get(self._pattern, TIMES)
        if self._begun <= max(SOON, times):
            self._times[self._pattern] = 2 * times
            self._times.move_to_end(self._pattern)
            if len(self._times) > DOUBTED_MOST:
                self._times.popitem(last=False)
        self._pattern = ()

    def _period(self, one: Sum) -> int:
        """Length of the pattern that comes again with this sum; 0: none does."""
        most = min(self._count, len(self._rows))
        begins = self._codes[self._count - most : self._count][::-1] == self._code(one)
        doubted: list[int] = []
        for index in np.flatnonzero(begins & (self._rows[:most] > np.arange(most))):
            period, row = int(index) + 1, int(self._rows[index])
            if any(period % other == 0 and self._rows[other - 1] >= period for other in doubted):
                continue  # several times a shorter one
            if row < (self._times.get(self._last(period), TIMES) - 1) * period:
                doubted.append(period)
            elif row >= TIMES * period or self._fits(period):
                return period
        return 0

    def _fits(self, period: int) -> bool:
        """Whether the sums before a pattern that came twice hold as many elements as itself."""
        start = self._count - 2 * period
        elements = self._codes[:start][::-1] >> KIND_BITS
        return start == 0 or bool((np.cumsum(elements) == sum(one[0] for one in self._last(period))).any())

    def _last(self, period: int) -> tuple[Sum, ...]:
        codes, kinds = self._codes[self._count - period : self._count].tolist(), list(self._kinds)
        return tuple((code >> KIND_BITS, *kinds[code & (1 << KIND_BITS) - 1]) for code in codes)

    def _code(self, one: Sum) -> int:
        elements, dtype, group = one
        return elements << KIND_BITS | self._kinds.setdefault((dtype, group), len(self._kinds))

    def _note(self, one: Sum) -> None:
        if self._count == len(self._codes):
            self._codes[: self._most] = self._codes[self._most :]
            self._count = self._most
        code, most = self._code(one), min(self._count, len(self._rows))
        equal = self._codes[self._count - most : self._count][::-1] == code
        self._rows[:most] = (self._rows[:most] + 1) * equal
        self._codes[self._count] = code
        self._count += 1
