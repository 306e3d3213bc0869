import numpy as np
import pytest

from nalb.batching.traces import LEAST_CPU, MEAN_LIFETIME, OWN_MEMORY, SPIKE_CHANCE, TASKS, trace
from nalb.errors import InputError


def test_the_same_seed_gives_the_same_trace_and_another_seed_another():
    first, again, other = (trace(100.0, 50, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert (first.speed == again.speed).all()
    assert (first.cpu_share == again.cpu_share).all()
    assert not np.allclose(first.speed, other.speed)


def test_shapes_and_ranges():
    made = trace(80.0, 400, np.random.default_rng(4))
    assert made.speed.shape == made.foreseeable.shape == (400,)
    assert made.cpu_share.shape == made.memory_share.shape == (401,)
    for share in (made.cpu_share, made.memory_share):
        assert share.min() >= 0
        assert share.max() <= 1
    assert made.speed.min() > 0
    assert made.foreseeable.max() <= 80.0


def test_speed_follows_the_resources_reported_before_the_iteration():
    made = trace(100.0, 10_000, np.random.default_rng(5))
    roomy = made.memory_share[:-1] < 0.75
    assert np.median(made.speed[roomy] / made.cpu_share[:-1][roomy]) == pytest.approx(100, rel=0.02)
    pressed = (made.memory_share[:-1] > 0.9) & (made.cpu_share[:-1] > LEAST_CPU + 0.1)
    assert pressed.sum() > 20
    assert np.median(made.speed[pressed] / made.cpu_share[:-1][pressed]) < 80  # 75 at 0.9 in use
    assert made.memory_share.min() == pytest.approx(OWN_MEMORY, abs=0.03)


def test_what_is_foreseeable_errs_less_than_the_last_speed_and_not_on_average():
    made = trace(100.0, 4000, np.random.default_rng(6))
    foreseen = made.speed - made.foreseeable
    assert np.sqrt(np.mean(foreseen**2)) < 0.7 * np.sqrt(np.mean(np.diff(made.speed) ** 2))
    assert foreseen.mean() == pytest.approx(0, abs=0.3)


@pytest.mark.jobs
def test_level_shifts_and_spikes_are_as_frequent_as_stated():
    made = trace(100.0, 20_000, np.random.default_rng(7))
    shifts = (np.abs(np.diff(made.foreseeable)) > 1e-9).mean()
    assert shifts == pytest.approx(2 * TASKS / MEAN_LIFETIME, rel=0.25)  # every task begins and ends
    calm = np.append(np.diff(made.foreseeable), 1.0) == 0
    assert (made.speed < 0.87 * made.foreseeable)[calm].mean() == pytest.approx(SPIKE_CHANCE * 0.92, rel=0.25)


@pytest.mark.parametrize(("fastest", "iterations"), [(0.0, 10), (float("nan"), 10), (10.0, 0)])
def test_impossible_traces_are_refused(fastest, iterations):
    with pytest.raises(InputError, match="must be positive"):
        trace(fastest, iterations, np.random.default_rng(0))
