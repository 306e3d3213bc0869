import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.batching.lbb import (
    BALANCED,
    FINE,
    FINE_ONLY,
    RAPID,
    RAPID_THRESHOLD,
    BatchProfile,
    ThresholdTuner,
    straggler_effect,
)
from nalb.batching.sizes import Bounds, fastest
from nalb.batching.time_models import Polynomial
from nalb.errors import InputError

from ..planning.strategies import laws
from .strategies import all_sizes
from .workers import affine, observe, train

# Yao et al., Table 2: (batch size, ms) of each worker, without and with balancing
TABLE_2 = (
    ((128, 81.81), (167, 104.94)),
    ((128, 81.49), (167, 104.14)),
    ((128, 85.39), (158, 103.46)),
    ((128, 392.92), (20, 104.41)),
)


def line(points):
    (x, t), (y, u) = points
    slope = (u - t) / (y - x) / 1000
    return Polynomial((t / 1000 - slope * x, slope))


TABLE_2_LINES = tuple(line(points) for points in TABLE_2)


def test_table_2_balances_to_at_most_its_time():
    sizes, time_s = fastest(TABLE_2_LINES, Bounds.of(512, 4))
    equal_s = max(float(curve(np.array([128.0]))[0]) for curve in TABLE_2_LINES)
    assert equal_s == pytest.approx(0.39292)
    assert time_s <= 0.10494
    np.testing.assert_allclose(sizes, (167, 167, 158, 20), atol=1)
    near = Bounds(512, tuple(x - 3 for x in sizes), tuple(x + 3 for x in sizes))
    costs = [
        max(float(c(np.array([float(x)]))[0]) for c, x in zip(TABLE_2_LINES, s, strict=True)) for s in all_sizes(near)
    ]
    assert time_s == pytest.approx(min(costs), rel=1e-12)


def test_table_2_is_reached_from_equal_sizes_by_rapid_and_fine_tuning():
    times = affine(*zip(*[curve.coefficients_s for curve in TABLE_2_LINES], strict=True))
    seen, ran, decisions = train(ThresholdTuner((128,) * 4, Bounds.of(512, 4)), (128,) * 4, times, 60)
    assert decisions[0].reason == RAPID
    assert seen[0].max() == pytest.approx(0.39292)
    assert straggler_effect(seen[-1]) < 0.05
    assert seen[-1].max() <= 0.10494 * 1.03
    assert all(sum(sizes) == 512 for sizes in ran)


@pytest.mark.parametrize("disturbed", range(4))
def test_a_sudden_50_ms_is_tuned_away(disturbed):
    def times(sizes, k):
        calm = np.array([float(curve(np.array([x]))[0]) for curve, x in zip(TABLE_2_LINES, sizes, strict=True)])
        return calm + np.where(np.arange(4) == disturbed, 0.05 * (k >= 5), 0.0)

    tuner = ThresholdTuner((128,) * 4, Bounds.of(512, 4), TABLE_2_LINES)
    sizes = tuner.begin().sizes
    seen, _, decisions = train(tuner, sizes, times, 5 + 1 + FINE_ONLY)
    effects = [straggler_effect(now) for now in seen]
    assert max(effects[:5]) < 0.05
    assert effects[5] >= RAPID_THRESHOLD
    assert decisions[5].reason == RAPID
    assert effects[6] < 0.3
    assert min(effects[6:]) < 0.05
    assert effects[-1] < 0.05


def test_begin_solves_the_profiled_curves():
    tuner = ThresholdTuner((128,) * 4, Bounds.of(512, 4), TABLE_2_LINES)
    assert tuner.begin().sizes == fastest(TABLE_2_LINES, Bounds.of(512, 4))[0]


def test_straggler_effect_is_their_ratio():
    assert straggler_effect(np.array([1.0, 2.0, 3.0])) == pytest.approx(1.0)


def test_thresholds_choose_the_tuning():
    bounds = Bounds.of(100, 2)
    for slower, reason in ((1.04, BALANCED), (1.2, FINE), (1.5, RAPID)):
        assert ThresholdTuner((50, 50), bounds).update(observe((50, 50), (1.0, slower))).reason == reason


def test_fine_tuning_keeps_the_total():
    decision = ThresholdTuner((50, 50), Bounds.of(100, 2)).update(observe((50, 50), (1.0, 1.2)))
    assert decision.sizes == (51, 49)


def test_within_the_window_only_fine_tuning():
    tuner = ThresholdTuner((50, 50), Bounds.of(100, 2))
    reasons = [tuner.update(observe((50, 50), (1.0, 1.5))).reason for _ in range(FINE_ONLY + 2)]
    assert reasons == [RAPID, *[FINE] * FINE_ONLY, RAPID]


def test_a_step_that_only_swaps_is_not_made():
    decision = ThresholdTuner((2, 2), Bounds.of(4, 2)).update(observe((2, 2), (1.0, 1.3)))
    assert decision == (None, "as even as whole samples allow", None)


def test_workers_at_their_bounds_are_passed_over():
    bounds = Bounds(100, (1, 1, 1), (33, 100, 100))
    assert ThresholdTuner((33, 33, 34), bounds).update(observe((33, 33, 34), (1.0, 1.05, 1.2))).sizes == (33, 34, 33)
    fixed = Bounds(100, (33, 33, 34), (33, 33, 34))
    assert ThresholdTuner((33, 33, 34), fixed).update(observe((33, 33, 34), (1.0, 1.05, 1.2))).sizes is None


@pytest.mark.parametrize("overhead_s", [-0.5, 5.0])
def test_an_overhead_that_cannot_be_counts_as_none(overhead_s):
    curves = (Polynomial((overhead_s, 0.01)),) * 2
    decision = ThresholdTuner((50, 50), Bounds.of(100, 2), curves).update(observe((50, 50), (1.0, 3.0)))
    assert decision.sizes == (75, 25)


def test_rapid_tuning_keeps_the_overhead():
    curves = (Polynomial((0.5, 0.01)),) * 2
    decision = ThresholdTuner((50, 50), Bounds.of(100, 2), curves).update(observe((50, 50), (1.0, 1.5)))
    assert decision.sizes == (67, 33)  # 0.5 + 0.01 x against 0.5 + 0.02 x


def profile(most, memory, curve=lambda size: 0.01 + 0.001 * size):
    """The whole schedule on a worker whose memory holds `memory` samples."""
    worker, tried = BatchProfile(most), []
    while worker.next_size is not None:
        tried.append(worker.next_size)
        if worker.next_size > memory:
            worker.out_of_memory()
        else:
            worker.measured(curve(worker.next_size))
    return worker, tried


def test_profiling_doubles_until_memory_runs_out():
    worker, tried = profile(512, 40)
    assert tried == [4, 8, 16, 32, 64]
    assert worker.limit == 32
    np.testing.assert_allclose(worker.curve(np.array([5.0, 30.0])), [0.015, 0.04], rtol=1e-9)


def test_profiling_ends_at_the_most_that_a_worker_can_get():
    worker, tried = profile(100, 10**6)
    assert tried == [4, 8, 16, 32, 64]
    assert worker.limit == 100


def test_profiling_goes_down_where_the_first_size_does_not_fit():
    worker, tried = profile(512, 1)
    assert tried == [4, 2, 1]
    assert worker.limit == 1
    with pytest.raises(InputError, match="single sample"):
        profile(512, 0)


@laws
@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_profile_ends_with_a_limit_that_fits(most, memory):
    worker, tried = profile(most, memory)
    assert len(tried) == len(set(tried)) <= 15
    assert 1 <= worker.limit <= most
    assert worker.limit <= memory or max(tried) <= memory
    assert worker.curve.overhead_s < 0.02


def test_a_profile_out_of_turn_is_named():
    worker = BatchProfile(4)
    with pytest.raises(InputError, match="4 samples are to be timed"):
        _ = worker.limit
    with pytest.raises(InputError, match="4 samples are to be timed"):
        _ = worker.curve
    with pytest.raises(InputError, match="positive time"):
        worker.measured(0.0)
    worker.measured(1.0)
    with pytest.raises(InputError, match="it is done"):
        worker.measured(1.0)
    with pytest.raises(InputError, match="give 1 or more"):
        BatchProfile(0)
    with pytest.raises(InputError, match="1 compute curves for 2 workers"):
        ThresholdTuner((1, 1), Bounds.of(2, 2), (Polynomial((1.0,)),))
