"""Computes the overheads of figure 7: a variant's time over another's, from turns in rounds, with a confidence interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from nalb.compare.comparison import turns
from nalb.errors import InputError

RESAMPLES = 10_000
CONFIDENCE = 0.95
FEWEST_ROUNDS = 5  # fewer rounds give no useful interval


@dataclass(frozen=True)
class Overhead:
    """A relative overhead and its interval: 0.01 means one per cent longer."""

    value: float
    low: float  # the lower end of the bootstrap's interval; NaN with fewer than FEWEST_ROUNDS rounds
    high: float  # the upper end
    rounds: int


def round_means(values_s: Sequence[float]) -> npt.NDArray[np.float64]:
    """Mean seconds of each round, shape (rounds,), for a scheme that took turns on a static network.

    The first iteration of each turn does not count, since its slices are cut and its slots made anew. Neither does the first
    round if there are others.
    """
    means, start = [], 0
    for _, count in turns(["one"], len(values_s), False):
        means.append(float(np.mean(values_s[start + min(1, count - 1) : start + count])))
        start += count
    return np.array(means[1:] if len(means) > 1 else means)


def overhead(values_s: Sequence[float], base_s: Sequence[float], seed: int = 0) -> Overhead:
    """mean(values) / mean(base) - 1 over rounds, with the percentile bootstrap's interval.

    Rounds are drawn with replacement, for both series together, since a machine's slow changes affect both. Raises
    InputError for empty series or series of unequal length. Source: Efron 1979.
    """
    if len(values_s) != len(base_s) or not values_s:
        raise InputError(f"{len(values_s)} iterations against {len(base_s)}: an overhead needs as many of each")
    values, base = round_means(values_s), round_means(base_s)
    low = high = math.nan
    if len(values) >= FEWEST_ROUNDS:
        low, high = stats.bootstrap(
            (values, base),
            _relative,
            n_resamples=RESAMPLES,
            paired=True,
            confidence_level=CONFIDENCE,
            method="percentile",
            random_state=np.random.default_rng(seed),
        ).confidence_interval
    return Overhead(float(_relative(values, base)), float(low), float(high), len(values))


def _relative(values: npt.NDArray[np.float64], base: npt.NDArray[np.float64], axis: int = -1) -> Any:
    return values.sum(axis=axis) / base.sum(axis=axis) - 1
