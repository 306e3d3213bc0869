import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.overhead import overhead, round_means
from nalb.compare.comparison import BLOCK
from nalb.errors import InputError


def test_rounds_leave_out_the_first_of_each_turn_and_the_first_round():
    values = [9, 1, 1, 1, 1, 9, 2, 2, 2, 2, 9, 3, 3, 3, 3]
    assert round_means(values).tolist() == [2, 3]
    assert round_means([9, 1, 3]).tolist() == [2]
    assert round_means([7]).tolist() == [7]


def test_the_interval_holds_a_known_overhead_and_drift_of_both_does_not_widen_it():
    noise = np.random.default_rng(3)
    drift = np.repeat(np.linspace(1, 2, 20), BLOCK)
    base = drift * (1 + 0.01 * noise.standard_normal(drift.size))
    found = overhead(list(1.02 * drift * (1 + 0.01 * noise.standard_normal(drift.size))), list(base))
    assert found.low < 0.02 < found.high
    assert found.high - found.low < 0.02
    assert found.rounds == 19


def test_few_rounds_have_no_interval():
    found = overhead([2.0] * 3 * BLOCK, [1.0] * 3 * BLOCK)
    assert (found.value, found.rounds) == (1.0, 2)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@given(st.lists(st.floats(0.1, 100), min_size=6 * BLOCK, max_size=8 * BLOCK), st.floats(0.5, 2))
def test_the_same_series_costs_nothing_and_a_longer_one_its_factor(base, factor):
    assert overhead(base, base).value == 0
    found = overhead([factor * value for value in base], base)
    assert found.value == pytest.approx(factor - 1)
    assert (found.low, found.high) == pytest.approx((factor - 1, factor - 1))


def test_series_of_unequal_length_are_refused():
    with pytest.raises(InputError, match="3 iterations against 2"):
        overhead([1, 2, 3], [1, 2])
