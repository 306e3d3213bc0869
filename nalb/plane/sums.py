"""Sums of slices over ranks, whose bits do not depend on who came first. Pure.

Floating-point addition depends on the order of its operands. So parts are added in the order of ranks, ((p0 + p1) + p2) + ...; a
part that comes early waits. A sum lives until all its parts are there. No rank comes to the next iteration but one while another
rank's part of this one is missing, so parts of two iterations at most wait here.
"""

from collections import defaultdict
from typing import Any

import numpy as np
import numpy.typing as npt

from nalb.errors import PeerError

Values = npt.NDArray[Any]

ITERATIONS_MOST = 2


class OrderedSum:
    """The sum of one slice."""

    __slots__ = ("_added", "_total", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, Values] = {}  # parts by their place in the order
        self._added = 0  # parts 0 .. _added - 1 are in _total
        self._total: Values | None = None

    def add(self, place: int, values: Values, parts: int) -> Values | None:
        """Take in the part of this place; returns the sum, once all `parts` are there.

        values: stays unchanged until then; a sum of one part is the part itself. Raises PeerError for a part that came before, or
        has another size or dtype than the others.
        """
        if place < self._added or place in self._waiting:
            raise PeerError("pushed it twice")
        other = self._total if self._total is not None else next(iter(self._waiting.values()), values)
        if (values.size, values.dtype) != (other.size, other.dtype):
            raise PeerError(f"pushed {values.size} {values.dtype}, others {other.size} {other.dtype}")
        self._waiting[place] = values
        with np.errstate(all="ignore"):  # infinities are sums too
            while (part := self._waiting.pop(self._added, None)) is not None:
                if self._added < 2:
                    self._total = part if self._total is None else self._total + part
                else:
                    self._total += part
                self._added += 1
        return self._total if self._added == parts else None


class SumsUnderWay:
    """All sums that some part is missing of."""

    def __init__(self, parts: int):
        self._parts = parts
        self._sums: dict[int, defaultdict[int, OrderedSum]] = {}  # by iteration and slice

    def add(self, iteration: int, index: int, place: int, values: Values) -> Values | None:
        """Take in a part of slice `index`; returns the sum, once all parts are there. Raises PeerError."""
        if iteration not in self._sums and len(self._sums) == ITERATIONS_MOST:
            raise PeerError(f"pushed it while sums of iterations {sorted(self._sums)} are incomplete")
        sums = self._sums.setdefault(iteration, defaultdict(OrderedSum))
        total = sums[index].add(place, values, self._parts)
        if total is not None:
            del sums[index]
            if not sums:
                del self._sums[iteration]
        return total
