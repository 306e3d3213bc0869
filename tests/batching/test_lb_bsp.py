from itertools import pairwise

import numpy as np
import pytest

from nalb.batching.lb_bsp import FINE_WINDOW, SpeedBalancer, StepBalancer
from nalb.batching.schemes import BatchJob, build
from nalb.batching.sizes import Bounds
from nalb.batching.speed import Ema, Memoryless
from nalb.errors import InputError

from .workers import affine, observe, proportional, train

# seconds before the first sample and per sample, so that Chen et al.'s Fig. 8 balances at (89, 21, 12, 6): at about
# 1.9 s there, K520 nearly 2 s faster by 26 samples fewer, V100 0.5 s slower by 57 more
FOUR_GPUS = affine((1.1, 1.25, 1.3, 1.4), (0.5 / 57, 0.65 / 21, 0.6 / 12, 2.0 / 26))


class Says:
    """A predictor that always says the same."""

    def __init__(self, speed):
        self.speed = speed

    def observe_speed(self, speed, cpu_share, memory_share):
        pass

    def predict(self):
        return self.speed


def test_sizes_are_in_proportion_to_speeds():
    balancer = SpeedBalancer(Bounds.of(96, 3), [Memoryless() for _ in range(3)])
    decision = balancer.update(observe((32, 32, 32), (1.0, 2.0, 3.0)))
    assert decision.sizes == (52, 26, 18)  # 96 / (1 + 1/2 + 1/3) = 52.36, 26.18, 17.45: the last sample to .45


def test_nothing_to_change_keeps_the_sizes():
    balancer = SpeedBalancer(Bounds.of(60, 3), [Ema() for _ in range(3)])
    assert balancer.update(observe((30, 20, 10), (1.0, 1.0, 1.0))).sizes is None


def test_sizes_that_are_within_the_slack_are_kept():
    for slack, sizes in ((0.0, (31, 29)), (0.05, None)):
        balancer = SpeedBalancer(Bounds.of(60, 2), [Memoryless(), Memoryless()], slack)
        assert balancer.update(observe((30, 30), (1.0, 1.05))).sizes == sizes
    assert balancer.update(observe((30, 30), (1.0, 1.2))).sizes == (33, 27)


@pytest.mark.parametrize("useless", [None, -3.0, 0.0, float("nan"), float("inf")])
def test_a_useless_prediction_is_replaced_and_named(useless):
    balancer = SpeedBalancer(Bounds.of(60, 3), [Says(10.0), Says(useless), Says(40.0)])
    decision = balancer.update(observe((20, 20, 20), (1.0, 2.0, 1.0)))
    assert decision.sizes == (10, 10, 40)
    assert "no usable prediction for worker 1" in decision.reason
    balancer = SpeedBalancer(Bounds.of(1000, 1000), [Says(useless)] * 1000)
    assert "worker 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 990 more:" in balancer.foresee(observe([1] * 1000, [1.0] * 1000))[1]


def test_resources_reach_the_predictor():
    seen = []

    class Watches(Says):
        def observe_speed(self, speed, cpu_share, memory_share):
            seen.append((speed, cpu_share, memory_share))

    balancer = SpeedBalancer(Bounds.of(8, 1), [Watches(1.0)])
    balancer.update(observe((8,), (2.0,), cpu_share=0.25, memory_share=0.5))
    assert seen == [(4.0, 0.25, 0.5)]


def test_observations_of_another_job_are_named():
    balancer = SpeedBalancer(Bounds.of(8, 2), [Ema(), Ema()])
    with pytest.raises(InputError, match="1 observations for 2 workers"):
        balancer.update(observe((8,), (1.0,)))
    with pytest.raises(InputError, match="computed 9 samples, the total is 8"):
        balancer.update(observe((4, 5), (1.0, 1.0)))
    with pytest.raises(InputError, match="1 predictors for 2 workers"):
        SpeedBalancer(Bounds.of(8, 2), [Ema()])


def test_gpu_first_steps_are_5_after_a_window_of_5():
    balancer = StepBalancer(Bounds.of(128, 4))
    _, ran, decisions = train(balancer, (32, 32, 32, 32), FOUR_GPUS, 6)
    assert [decision.sizes for decision in decisions[:4]] == [None] * 4
    assert ran[5] == (37, 32, 32, 27)


def test_gpu_reaches_the_papers_equilibrium():
    balancer = StepBalancer(Bounds.of(128, 4))
    times, ran, _ = train(balancer, (32, 32, 32, 32), FOUR_GPUS, 300)
    fine = next(k for k, (a, b) in enumerate(pairwise(ran)) if max(np.abs(np.subtract(a, b))) == 1)
    assert 10 <= fine <= 70
    assert np.abs(np.subtract(ran[-1], (89, 21, 12, 6))).max() <= 2
    assert times[-1].max() < 0.55 * times[0].max()


def test_gpu_oscillation_ends_the_fast_phase_for_good():
    balancer = StepBalancer(Bounds.of(20, 2))
    _, ran, _ = train(balancer, (10, 10), proportional((1.0, 1.2)), 100)
    steps = [abs(a[0] - b[0]) for a, b in pairwise(ran)]
    first_fine = steps.index(1)
    assert steps.index(5) < first_fine
    assert 5 not in steps[first_fine:]


def test_gpu_full_memory_is_given_no_more():
    balancer = StepBalancer(Bounds.of(30, 3))
    for _ in range(5):
        seen = observe((10,), (1.0,), memory_share=0.96) + observe((10, 10), (2.0, 3.0), memory_share=0.95)
        decision = balancer.update(seen)
    assert decision.sizes == (10, 15, 5)
    seen = observe((10, 10, 10), (1.0, 2.0, 3.0), memory_share=0.96)
    assert balancer.update(seen) == (None, "no worker has room for more samples", None)


def test_gpu_straggler_without_samples_to_give_is_to_be_removed():
    balancer = StepBalancer(Bounds.of(11, 2))
    _, ran, decisions = train(balancer, (6, 5), affine((0.1, 9.0), (0.1, 0.1)), 60)
    assert ran[-1] == (10, 1)
    assert decisions[-1].remove == 1
    assert decisions[-1].sizes is None
    assert "remove it" in decisions[-1].reason
    assert all(decision.remove is None for decision in decisions[: 5 + FINE_WINDOW - 5])


def test_gpu_adapts_when_a_worker_becomes_slower():
    balancer = StepBalancer(Bounds.of(128, 4))
    before = affine((1.1, 1.25, 1.3, 1.4), (0.5 / 57, 0.65 / 21, 0.6 / 12, 2.0 / 26))
    after = affine((1.1, 1.55, 1.3, 1.4), (0.5 / 57, 0.65 / 21, 0.6 / 12, 2.0 / 26))
    times, ran, _ = train(balancer, (32, 32, 32, 32), lambda x, k: (before if k < 150 else after)(x, k), 400)
    assert ran[-1][1] < ran[149][1]
    assert times[-1].max() < times[151].max()


def test_federated_rounds_end_together():
    speeds = (300.0, 200.0, 250.0, 150.0, 190.0)  # the fastest waits a third of the slowest's time and more, as in 5.5
    per_iteration = proportional(speeds, noise=0.02, seed=4)

    def round_s(sizes, k):
        return 500 * per_iteration(sizes, k)  # the paper's tau

    balancer, sizes = build("lb-bsp-federated", BatchJob((100,) * 5))
    times, ran, _ = train(balancer, sizes, round_s, 30)
    assert all(sum(sizes) == 500 for sizes in ran)
    settled = np.mean([now.max() for now in times[10:]])
    assert settled <= (1 - 0.27) * np.mean([round_s(np.full(5, 100.0), k).max() for k in range(20)])
