"""Random workers for the laws of batch sizes, and brute force to hold optima against."""

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from nalb.batching.sizes import Bounds

speeds = st.floats(1e-3, 1e6)


@st.composite
def bounds_of(draw: st.DrawFn, max_workers: int = 8, max_spare: int = 200) -> Bounds:
    """Bounds that some sizes keep."""
    workers = draw(st.integers(1, max_workers))
    least = draw(st.lists(st.integers(1, 5), min_size=workers, max_size=workers))
    room = draw(st.lists(st.integers(0, max_spare), min_size=workers, max_size=workers))
    total = draw(st.integers(sum(least), sum(least) + sum(room)))
    return Bounds(total, tuple(least), tuple(low + more for low, more in zip(least, room, strict=True)))


def all_sizes(bounds: Bounds) -> Iterator[tuple[int, ...]]:
    """Every choice of whole sizes that keeps the bounds."""

    def extend(start: tuple[int, ...], left: int) -> Iterator[tuple[int, ...]]:
        worker = len(start)
        if worker == len(bounds.least):
            if left == 0:
                yield start
            return
        for size in range(bounds.least[worker], min(bounds.most[worker], left) + 1):
            yield from extend((*start, size), left - size)

    return extend((), bounds.total)


def stairs(steps: list[float]):
    """A curve that rises by these steps, sample by sample, from size 1 on."""
    times = np.cumsum(steps)
    return lambda sizes: times[np.asarray(sizes, dtype=int) - 1]
