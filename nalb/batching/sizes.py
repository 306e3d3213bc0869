"""Whole batch sizes under bounds: rounds real sizes and finds the optimum in whole samples. Every total is kept exactly."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nalb.errors import InputError, listed
from nalb.planning.nodes import Floats

Sizes = tuple[int, ...]  # samples per worker, in worker order
Curve = Callable[[Floats], Floats]  # batch sizes -> compute seconds of one worker, element by element

WHOLE = 1e-9  # samples: a real size this close below a whole number counts as that number


@dataclass(frozen=True)
class Bounds:
    """The total and the bounds that sizes must keep. Raises InputError where no sizes can."""

    total: int  # samples of one iteration over all workers
    least: Sizes  # per worker, at least 1: a worker without a sample has no gradient to push
    most: Sizes  # per worker, e.g. by its memory

    def __post_init__(self) -> None:
        if not self.least or len(self.least) != len(self.most):
            raise InputError(
                f"bounds: {len(self.least)} least and {len(self.most)} most sizes: give one each per worker"
            )
        for worker, (least, most) in enumerate(zip(self.least, self.most, strict=True)):
            if not 1 <= least <= most:
                raise InputError(f"bounds: worker {worker} may have {least} to {most} samples: need 1 <= least <= most")
        if not sum(self.least) <= self.total <= sum(self.most):
            raise InputError(
                f"bounds: a total of {self.total} does not fit workers that take {sum(self.least)} to {sum(self.most)} "
                f"samples together: change the total, the workers or their bounds"
            )

    @classmethod
    def of(cls, total: int, workers: int, most: Sequence[int] | None = None) -> "Bounds":
        """Bounds from 1 sample to `most`, per worker; None: to the total. Raises InputError."""
        return cls(total, (1,) * workers, tuple(most or (max(total, 1),) * workers))

    def keeps(self, sizes: Sequence[int]) -> bool:
        """Whether these sizes keep the bounds and the total."""
        fits = all(low <= size <= high for low, size, high in zip(self.least, sizes, self.most, strict=True))
        return fits and sum(sizes) == self.total


def apportion(weights: Sequence[float] | Floats, bounds: Bounds) -> Sizes:
    """Whole sizes in proportion to the weights, as near as the bounds allow: largest remainder.

    x_i = clip(w_i T, least_i, most_i) with the T for which sum_i x_i = total; if w are speeds, that is the real-valued optimum of
    max_i x_i / w_i. The x_i are rounded down, and the samples left go one each to the largest remainders. Ties go to the lower
    index; otherwise a permutation of the workers permutes the result. Each size is within 1 of x_i. Cost: O(N log N). Raises
    InputError for a weight that is not positive. Source: Chen et al., Algorithm 1, lines 5 and 6, which leave the rounding open and
    have no bounds; largest remainder is Hamilton's method.
    """
    w = np.asarray(weights, dtype=np.float64)
    low, high = np.array(bounds.least, dtype=np.float64), np.array(bounds.most, dtype=np.float64)
    wrong = w[~(np.isfinite(w) & (w > 0))]
    if w.shape != low.shape or len(wrong):
        raise InputError(
            f"{w.size} weights for {len(low)} workers, not positive: {listed([f'{one:g}' for one in wrong]) or 'none'}: give one "
            "positive number per worker"
        )
    w = w / w.max()  # tiny speeds would overflow below
    first, last = low / w, high / w  # the T from which and up to which each worker's size grows
    corners = np.unique(np.concatenate([first, last]))
    at = bisect_left(corners, float(bounds.total), key=lambda level: math.fsum(np.clip(w * level, low, high)))
    at = min(at, len(corners) - 1)  # rounding may leave the last corner a little short of the total
    growing = (first < corners[at]) & (last >= corners[at])
    level = corners[at]
    if growing.any():
        held = math.fsum(np.where(first >= corners[at], low, high)[~growing])
        level = (bounds.total - held) / math.fsum(w[growing])  # fsum: the same in any order of workers
    ideal = np.clip(w * level, low, high)
    whole = np.floor(ideal + WHOLE).astype(np.int64)
    rest = bounds.total - int(whole.sum())
    remainder = np.where(whole < high, ideal - whole, -1.0)
    whole[np.argsort(-remainder, kind="stable")[:rest]] += 1
    sizes = tuple(int(size) for size in whole)
    assert bounds.keeps(sizes), (sizes, bounds)
    return sizes


def times_table(curves: Sequence[Curve], bounds: Bounds) -> list[Floats]:
    """Per worker, the seconds of every size from its least to the most that the others leave it, never falling.

    Where a curve falls it counts as flat: a fitted polynomial may fall, real times do not. Raises InputError for a curve that is
    not finite.
    """
    if len(curves) != len(bounds.least):
        raise InputError(f"{len(curves)} compute curves for {len(bounds.least)} workers: give one per worker")
    spare = bounds.total - sum(bounds.least)
    table = []
    for worker, (curve, least, most) in enumerate(zip(curves, bounds.least, bounds.most, strict=True)):
        times = np.asarray(curve(np.arange(least, min(most, least + spare) + 1, dtype=np.float64)), dtype=np.float64)
        if not np.isfinite(times).all():
            raise InputError(f"the compute curve of worker {worker} is not finite within its bounds: profile it anew")
        table.append(np.maximum.accumulate(times))
    return table


def fastest(curves: Sequence[Curve], bounds: Bounds) -> tuple[Sizes, float]:
    """The whole sizes of least iteration time, exactly, and that time in seconds.

    min max_i t_i(x_i)  subject to  sum_i x_i = total,  least_i <= x_i <= most_i,  x_i whole;  t_i never falling.
    From the least sizes on, each further sample goes to the worker that then ends earliest. As the t_i do not fall, that means to
    take the smallest of all steps t_i(x), x > least_i, until the total is reached. Ties go to the lower index. Cost: O(N x total)
    by one selection. Raises InputError as times_table.
    Source: Yao et al., Eq. 3. It prints min (max_i t_i - min_i t_i), derived from min max_i t_i. The two agree for real sizes, but
    not for whole ones, where the least spread can be a slower iteration; here the time is minimised. The paper also has B_i = 0,
    which leaves a worker out; here every worker pushes, so every worker has a sample.
    """
    table = times_table(curves, bounds)
    sizes = [least + taken for least, taken in zip(bounds.least, smallest_steps(table, bounds), strict=True)]
    return tuple(sizes), float(max(times[x - low] for times, x, low in zip(table, sizes, bounds.least, strict=True)))


def smallest_steps(rows: Sequence[Floats], bounds: Bounds) -> list[int]:
    """How many entries of each row, without its first one, are among the `total - sum least` smallest entries of all rows.

    Rows do not fall, so the entries taken from a row are those after its first one. Ties go to the lower row.
    """
    count = bounds.total - sum(bounds.least)
    lengths = [len(row) - 1 for row in rows]
    if not count:
        return [0] * len(rows)
    steps = np.concatenate([row[1:] for row in rows])
    threshold = np.partition(steps, count - 1)[count - 1]
    taken = steps < threshold
    ties = np.flatnonzero(steps == threshold)
    taken[ties[: count - int(taken.sum())]] = True
    ends = np.cumsum([0, *lengths])
    return [int(taken[start:end].sum()) for start, end in pairwise(ends)]
