"""Figure 7: what a variant costs over another one, from turns in rounds, with a confidence interval."""

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
FEWEST_ROUNDS = 5  # fewer say nothing of what the next ones would give


@dataclass(frozen=True)
class Overhead:
    """Relative: 0.01 is one per cent longer."""

    value: float
    low: float  # ends of the bootstrap's interval; NaN with fewer than FEWEST_ROUNDS
    high: float
    rounds: int


def round_means(values_s: Sequence[float]) -> npt.NDArray[np.float64]:
    """Mean seconds of each round, shape (rounds,), for a scheme that took turns on a standing network.

    Left out: the first iteration of each turn (its slices are cut and its slots made anew) and, where there are others, the
    first round.
    """
    means, start = [], 0
    for _, count in turns(["one"], len(values_s), False):
        means.append(float(np.mean(values_s[start + min(1, count - 1) : start + count])))
        start += count
    return np.array(means[1:] if len(means) > 1 else means)


def overhead(values_s: Sequence[float], base_s: Sequence[float], seed: int = 0) -> Overhead:
    """mean(values) / mean(base) - 1 over rounds, with the percentile bootstrap's interval.

    Rounds are drawn with replacement, both series' together, since what drifts on a machine drifts for both. Raises
    InputError for series of unequal length. Source: Efron 1979.
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
