"""Pours bytes into vessels to a common level: every optimum of shares is such a filling."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
HALVINGS = 40  # a level is then known to 1e-12 of the first distance


def fill(start_s: Floats, slope_s: Floats, total_bytes: float) -> Floats:
    """Pour `total_bytes` into vessels to a common level t: m_i = max(0, min_l (t - start_li) / slope_li), sum_i m_i = total.

    start_s: by limit l, the time of server i without a share, seconds, shape (L, K), K >= 1. slope_s: seconds per byte of share,
    >= 0, shape (L, K). Bisection finds two neighbouring floats between which the level lies; the shares lie between those that fit
    below and above. Servers of slope 0, whose times do not depend on their shares, take equal parts once the level reaches one of
    them. Returns bytes, shape (K,). Cost: O(L K) for each of about 60 halvings.
    """
    vessels = _Vessels(start_s, slope_s)

    def fits(level_s: float) -> Floats:
        return vessels.hold_bytes(level_s, total_bytes)

    low_s = float(np.nextafter(vessels.start_s.min(), -np.inf))
    high_s = float(np.nextafter((vessels.start_s + slope_s * total_bytes).max(axis=0).min(), np.inf))
    return pour(fits, low_s, high_s, total_bytes)


def fill_levels_s(start_s: Floats, slope_s: Floats, total_bytes: Floats) -> Floats:
    """The levels of `fill` in several cases at once, seconds, shape (C,).

    start_s, slope_s: shape (C, L, K). total_bytes: shape (C,). Cost: O(C L K) for each of HALVINGS.
    """
    vessels = _Vessels(start_s, slope_s)
    low_s = vessels.start_s.min(axis=(1, 2))
    high_s = (vessels.start_s + slope_s * total_bytes[:, None, None]).max(axis=1).min(axis=1)
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        held_bytes = vessels.hold_bytes(middle_s[:, None, None], total_bytes[:, None])
        fits = held_bytes.sum(axis=1) >= total_bytes
        low_s, high_s = np.where(fits, low_s, middle_s), np.where(fits, middle_s, high_s)
    return np.asarray(high_s)


class _Vessels:
    """Servers as `fill` has them, in one case or in several: shape (..., L, K)."""

    def __init__(self, start_s: Floats, slope_s: Floats):
        self._slope_s, self._rises = slope_s, slope_s > 0
        flat_s = start_s.min(axis=(-2, -1), keepdims=True, initial=np.inf, where=~self._rises)
        self.start_s = np.where(self._rises, start_s, flat_s)

    def hold_bytes(self, level_s: float | Floats, most_bytes: float | Floats) -> Floats:
        """The bytes that each server takes by a level, at most `most_bytes`, shape (..., K)."""
        left_s = level_s - self.start_s
        unlimited = np.where(left_s >= 0, np.inf, 0.0)
        room = np.divide(left_s, self._slope_s, out=unlimited, where=self._rises)
        return np.asarray(np.clip(room.min(axis=-2), 0.0, most_bytes))


def pour(fits: Callable[[float], Floats], low_s: float, high_s: float, total_bytes: float) -> Floats:
    """Pour `total_bytes` into any vessels to a common level; returns bytes, shape (K,).

    fits: gives the bytes that each vessel holds at a level, shape (K,), which never fall as the level rises. low_s: a level at
    which too little fits. high_s: one at which enough fits. Cost: about 60 calls of `fits`.
    """
    while low_s < (middle_s := (low_s + high_s) / 2) < high_s:
        if fits(middle_s).sum() >= total_bytes:
            high_s = middle_s
        else:
            low_s = middle_s
    below, above = fits(low_s), fits(high_s)
    rest, more = total_bytes - below.sum(), above - below
    shares = below + more * (rest / more.sum()) if more.any() else above
    return np.asarray(shares * (total_bytes / shares.sum()))  # corrects rounding
