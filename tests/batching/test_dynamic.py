import numpy as np
import pytest

from nalb.batching.dynamic import SETTLE, OpenLoop, ProportionalControl
from nalb.batching.sizes import Bounds
from nalb.errors import InputError

from .workers import affine, observe, proportional, train


def test_static_goes_by_cores():
    # their Fig. 3: (3, 5, 12) cores
    assert OpenLoop((40, 40, 40), Bounds.of(120, 3), (3, 5, 12)).begin().sizes == (18, 30, 72)
    # their mix of GPU and CPU: FLOP/s as 0.813 to 0.187, "only 4.3 times faster"
    sizes = OpenLoop((64, 64), Bounds.of(128, 2), (0.813, 0.187)).begin().sizes
    assert sizes == (104, 24)
    assert sizes[0] / sizes[1] == pytest.approx(4.3, abs=0.1)


@pytest.mark.parametrize("cores", [(9, 12, 18), (2, 17, 20)])
def test_static_evens_out_their_heterogeneity_levels(cores):
    sizes = OpenLoop((128,) * 3, Bounds.of(384, 3), cores).begin().sizes
    assert max(np.divide(sizes, cores)) / (384 / 39) < 1.05


def test_static_measures_once_where_power_is_not_known():
    times, ran, _ = train(OpenLoop((40,) * 3, Bounds.of(120, 3)), (40,) * 3, proportional((3, 5, 12)), 20)
    assert ran[SETTLE - 1] == (40, 40, 40)
    assert set(ran[SETTLE:]) == {(18, 30, 72)}
    assert times[-1].max() == pytest.approx(6.0)


def test_known_power_is_not_measured_again():
    loop = OpenLoop((60, 60), Bounds.of(120, 2), (1, 1))
    assert loop.begin().sizes is None
    assert loop.update(observe((60, 60), (1.0, 5.0))).sizes is None


def test_two_adjustments_are_enough():
    # their Fig. 4a: three unequal workers, begun alike; a fixed part of 10 % makes the first step miss
    control = ProportionalControl((100,) * 3, Bounds.of(300, 3))
    times, ran, _ = train(control, (100,) * 3, affine((0.1, 0.1, 0.1), (0.003, 0.006, 0.012)), 60)
    assert len(set(ran)) <= 3
    assert times[-1].max() / times[-1].min() < 1.05


def test_the_rule_is_theirs_where_it_keeps_the_total():
    times = np.array([1.0, 2.0, 4.0])
    control = ProportionalControl((56,) * 3, Bounds.of(168, 3), window=1)
    sizes = control.update(observe((56,) * 3, times)).sizes
    theirs = 56 * times.mean() / times  # 130.7, 65.3, 32.7: 228.7 samples for 168
    np.testing.assert_allclose(sizes, theirs * 168 / theirs.sum())
    assert sizes == (96, 48, 24)


def test_dead_band_stops_chasing_noise():
    noisy = proportional((100.0, 100.0, 100.0), noise=0.02, seed=2)
    _, ran, _ = train(ProportionalControl((1000,) * 3, Bounds.of(3000, 3)), (1000,) * 3, noisy, 200)
    assert len(set(ran)) == 1
    noisy = proportional((100.0, 100.0, 100.0), noise=0.005, seed=2)
    chasing = ProportionalControl((1000,) * 3, Bounds.of(3000, 3), dead_band=0.0, window=1)
    _, ran, _ = train(chasing, (1000,) * 3, noisy, 200)
    assert len(set(ran)) > 100


def test_smoothing_covers_the_iterations_since_the_change_only():
    control = ProportionalControl((10, 10), Bounds.of(20, 2), window=2)
    control.update(observe((10, 10), (1.0, 3.0)))
    assert control.update(observe((10, 10), (1.0, 3.0))).sizes == (15, 5)
    control.update(observe((15, 5), (1.0, 1.0)))
    assert control.update(observe((15, 5), (1.0, 1.0))).sizes is None


def out_of_cache(limit, speed, slower_speed):
    """A worker whose throughput falls above a size (their Fig. 5)."""
    return lambda size: size / (speed if size <= limit else slower_speed)


def test_a_throughput_drop_becomes_the_upper_bound():
    fast = out_of_cache(60, 100.0, 40.0)

    def times(sizes, _):
        return np.array([fast(sizes[0]), sizes[1] / 60.0, sizes[2] / 60.0])

    control = ProportionalControl((50,) * 3, Bounds.of(150, 3))
    seen, ran, _ = train(control, (50,) * 3, times, 60)
    assert max(sizes[0] for sizes in ran) > 60
    assert control.bounds.most == (50, 150, 150)
    assert ran[-1] == (50, 50, 50)
    assert seen[-1].max() < max(now.max() for now in seen)


def test_a_bound_that_the_total_cannot_bear_is_not_learnt_and_said():
    control = ProportionalControl((50, 50), Bounds.of(100, 2, most=(100, 49 + 1)), window=1)
    assert control.update(observe((50, 50), (0.5, 1.0))).sizes == (67, 33)
    decision = control.update(observe((67, 33), (6.7, 3.3)))
    assert control.bounds.most == (50, 50)  # worker 0: 100/s at 50, 10/s at 67
    assert decision.sizes == (50, 50)
    tight = ProportionalControl((50, 50), Bounds.of(100, 2, most=(100, 40)), window=1)
    tight.update(observe((50, 50), (0.5, 1.0)))
    decision = tight.update(observe((67, 33), (6.7, 3.3)))
    assert tight.bounds.most == (100, 40)
    assert "above its best size" in decision.reason


def test_a_bound_that_would_make_the_iteration_longer_is_not_learnt():
    """Of three workers the two large ones lose 15 % at larger sizes: no reason to go back to equal ones, four times as slow."""
    control = ProportionalControl((512,) * 3, Bounds.of(1536, 3), window=1)
    sizes = control.update(observe((512,) * 3, (0.08, 0.11, 0.95))).sizes
    assert sizes[2] < 100 < 512 < sizes[1] < sizes[0]
    speeds = 0.85 * np.array([512 / 0.08, 512 / 0.11, 512 / 0.95 / 0.85])
    after = control.update(observe(sizes, np.array(sizes) / speeds))
    assert (after.sizes or sizes)[2] < 100
    assert "above its best size" in after.reason


def test_the_largest_machine_is_not_bounded_for_what_noise_took():
    """It lost 9 % of its throughput with more samples; with a bound of 512, the iteration would be half as long again."""
    control = ProportionalControl((512,) * 3, Bounds.of(1536, 3), window=1)
    sizes = control.update(observe((512,) * 3, (0.12, 0.14, 0.96))).sizes
    speeds = np.array([0.91 * 512 / 0.12, 512 / 0.14, 0.5 * 512 / 0.96])  # the smallest has a fixed part
    after = control.update(observe(sizes, np.array(sizes) / speeds))
    assert control.bounds.most == (1536,) * 3
    assert (after.sizes or sizes)[0] > 700
    assert "above its best size" in after.reason


@pytest.mark.parametrize("options", [{"dead_band": -1}, {"smoothing": 0}, {"window": 0}])
def test_options_outside_their_range_are_named(options):
    with pytest.raises(InputError, match="dynamic batching"):
        ProportionalControl((1,), Bounds.of(1, 1), **options)
    with pytest.raises(InputError, match="window of 0"):
        OpenLoop((1,), Bounds.of(1, 1), window=0)
