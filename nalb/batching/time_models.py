"""Compute time as a polynomial of the batch size, fitted to measured times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nalb.errors import InputError
from nalb.planning.nodes import Floats


@dataclass(frozen=True)
class Polynomial:
    """The polynomial t(x) = sum_k a_k x^k, seconds for a batch of x samples. Affine: (a0, a1). Source: Yao et al., Eq. 1."""

    coefficients_s: tuple[float, ...]  # a0, a1, ..., the k-th in seconds per sample^k

    def __post_init__(self) -> None:
        if not self.coefficients_s or not np.isfinite(self.coefficients_s).all():
            raise InputError(f"polynomial {self.coefficients_s}: give one finite coefficient or more, a0 first")

    def __call__(self, sizes: Floats) -> Floats:
        return np.asarray(np.polyval(self.coefficients_s[::-1], sizes), dtype=np.float64)

    @property
    def overhead_s(self) -> float:
        """a0: by the fit, the seconds that an iteration takes before its first sample."""
        return self.coefficients_s[0]


def fit(sizes: Sequence[int], seconds: Sequence[float], degree: int = 3) -> Polynomial:
    """The least-squares polynomial of measured times, of a lower degree where there are too few sizes.

    min_a sum_j (sum_k a_k x_j^k - t_j)^2, with degree = min(`degree`, number of different sizes - 1). Sizes are scaled to [0, 1]
    to keep the powers apart. A single size gives a line through the origin: time in proportion to the batch. Cost: O(points).
    Raises InputError without a point, or for a size or time that is not positive. Source: Yao et al., Algorithm 1, line 25 (cubic;
    plain least squares, so that large sizes count most).
    """
    x, t = np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if x.shape != t.shape or not x.size or not ((x > 0) & (t > 0) & np.isfinite(x) & np.isfinite(t)).all():
        raise InputError(f"fit: sizes {list(sizes)} and seconds {list(seconds)}: give pairs of positive numbers")
    degree = min(degree, len(np.unique(x)) - 1)
    if degree < 1:
        return Polynomial((0.0, float((t / x).mean())))
    scale = x.max()
    scaled = np.polyfit(x / scale, t, degree)[::-1]
    return Polynomial(tuple(float(a) for a in scaled / scale ** np.arange(degree + 1)))
