"""Tuning while training: the paper's cases in its order, and the fastest stays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.tokens.tuning import ITERATIONS, Configuration, Tuner


def tune(tuner, seconds_of, set_up_s=0.0):
    """All cases in order; an iteration takes what `seconds_of` says, the first of a case `set_up_s` more."""
    tried = []
    while not tuner.is_done:
        case = tuner.configuration
        tried.append(case)
        for i in range(ITERATIONS):
            assert tuner.configuration == case
            tuner.observe_iteration(seconds_of(case) + (set_up_s if i == 0 else 0.0))
    return tried


def test_eight_workers_and_three_sub_models_have_the_thirteen_cases_of_the_paper():
    tuner = Tuner(8, 3, 64, 16, phases=2)
    tried = tune(tuner, lambda case: 1.0 if case.weights == (1, 1, 4) else 2.0)
    assert [one.weights for one in tried[:10]] == [
        (1, 1, 1), (1, 1, 2), (1, 1, 4), (1, 1, 8), (1, 2, 2), (1, 2, 4), (1, 2, 8), (1, 4, 4), (1, 4, 8), (1, 8, 8),
    ]  # fmt: skip
    assert {len(one.subset) for one in tried[:10]} == {8}
    assert [(one.weights, one.subset) for one in tried[10:]] == [
        ((1, 1, 4), (0, 1, 2, 3)),
        ((1, 1, 4), (0, 1)),
        ((1, 1, 4), (0,)),
    ]
    assert len(tried) == 13


def test_a_third_phase_tries_all_weights_with_few_workers():
    def seconds(case):  # all together: the larger the second weight, the better; one alone: best at 1, 1, 4
        if len(case.subset) > 1:
            return 20.0 - case.weights[1]
        return abs(case.weights[1] - 1) + abs(case.weights[2] - 4)

    tuner = Tuner(8, 3, 64, 16, phases=3)
    tried = tune(tuner, seconds)
    assert tried[9].weights == (1, 8, 8)  # phase 1 chose it
    assert [one.weights for one in tried[13:]] == [one.weights for one in tried[:9]]
    assert {one.subset for one in tried[13:]} == {(0,)}
    assert tuner.configuration == Configuration((1, 1, 4), (0,))


def test_a_fourth_phase_tries_the_few_workers_without_samples_of_their_own():
    tuner = Tuner(4, 3, 64, 16)
    tried = tune(tuner, lambda case: len(case.subset) - 0.5 * case.is_apart + (case.weights != (1, 1, 3)))
    assert [one for one in tried if one.is_apart] == [
        Configuration(weights, (0,), True) for weights in ((1, 1, 1), (1, 1, 3), (1, 3, 3))
    ]
    assert tuner.reason == "weights 1,1,3, |S| = 1, apart: the best of 16 cases, 0.5 s an iteration"
    assert tuner.policy.eligible == ((1, 2, 3), (1, 2, 3), (0,))
    assert tuner.shape.chunks == 3  # of 21 and 22 samples: 64 / 16 would give one worker two


def test_it_ends_with_the_best_case_and_says_so():
    tuner = Tuner(8, 3, 1024, 16)
    tune(tuner, lambda case: sum(case.weights) + abs(len(case.subset) - 2))
    assert tuner.configuration == Configuration((1, 1, 1), (0, 1))
    assert tuner.reason == "weights 1,1,1, |S| = 2: the best of 31 cases, 3 s an iteration"
    assert tuner.shape.weights == (1, 1, 1)
    assert tuner.policy.eligible[2] == (0, 1)
    tuner.observe_iteration(100.0)
    assert tuner.configuration == Configuration((1, 1, 1), (0, 1))


def test_a_cases_first_iteration_does_not_count():
    tuner = Tuner(2, 2, 8, 1)
    tune(tuner, lambda _: 1.0, set_up_s=9.0)
    assert set(tuner.measured_s.values()) == {1.0}
    assert tuner.best == Configuration((1, 1), (0, 1))  # of equal ones the earliest


def test_members_of_the_subset_can_be_chosen():
    tuner = Tuner(4, 2, 64, 16, members=lambda size: range(4 - size, 4))
    tried = tune(tuner, lambda _: 1.0)
    assert [one.subset for one in tried if one.weights == (1, 1)][1:3] == [(2, 3), (3,)]


def test_cases_that_may_be_as_fast_as_the_best_are_tried_again_and_the_slower_half_goes():
    times = {(1, 1, 1): [1.0, 1.0, 1.0, 1.0], (1, 1, 2): [0.9, 1.1, 1.1, 1.1], (1, 2, 2): [1.2, 1.2, 1.2, 1.2]}
    again = {(1, 1, 1): 1.3, (1, 1, 2): 0.8}

    def seconds(case, counted):
        if len(case.subset) == 1:
            return 2.0
        return times[case.weights][counted] if case not in tuner.measured_s else again[case.weights]

    tuner = Tuner(2, 3, 64, 16)
    reasons = []
    while not tuner.is_done:
        reasons.append(tuner.reason)
        tuner.observe_iteration(9.0)
        for counted in range(ITERATIONS - 1):
            tuner.observe_iteration(seconds(tuner.configuration, counted))
    assert reasons[-2:] == [
        "weights 1,1,1, |S| = 2: one of the 2 fastest of 4 cases is tried again",
        "weights 1,1,2, |S| = 2: one of the 2 fastest of 4 cases is tried again",
    ]
    assert tuner.best.weights == (1, 1, 2)
    assert tuner.measured_s[tuner.best] == pytest.approx(0.85)  # of eight iterations


def loss_by_luck(phases, seed):
    """How much longer than the best one the chosen case takes, where iterations differ by a standard deviation of 0.1."""
    lots = np.random.default_rng(seed)
    true_s = {}
    tuner = Tuner(8, 3, 256, 16, phases=phases)
    while not tuner.is_done:
        one = true_s.setdefault(tuner.configuration, lots.uniform(1.0, 1.5))
        tuner.observe_iteration(one * lots.lognormal(0.0, 0.1))
    return true_s[tuner.best] / min(true_s.values()) - 1


def test_trying_the_fastest_again_takes_half_off_what_noise_costs():
    with_it, without = ([loss_by_luck(phases, seed) for seed in range(200)] for phases in (5, 4))
    assert np.mean(with_it) < 0.5 * np.mean(without)
    assert np.percentile(with_it, 90) < 0.04


@given(st.integers(1, 24), st.integers(1, 4), st.integers(1, 2000), st.integers(1, 64), st.integers(0, 3))
def test_all_cases_have_a_shape_and_a_policy(workers, sub_models, total, threshold, conditional):
    tuner = Tuner(workers, sub_models, total, threshold, conditional=min(conditional, sub_models - 1))
    cases = []
    while not tuner.is_done:
        cases.append(tuner.configuration)
        assert tuner.shape.weights[-1] <= tuner.shape.chunks
        assert len(tuner.policy.eligible) == sub_models
        assert f"case {len(cases)} is tried" in tuner.reason
        for _ in range(ITERATIONS):
            tuner.observe_iteration(len(tuner.configuration.subset))
    assert len(set(cases)) == len(cases)
    assert len(tuner.configuration.subset) == 1


@pytest.mark.parametrize(("workers", "sizes"), [(6, [3, 2, 1]), (8, [4, 2, 1]), (7, [1]), (1, [])])
def test_subsets_have_sizes_that_divide_the_workers(workers, sizes):
    tried = tune(Tuner(workers, 1, 64, 1, phases=2), lambda _: 1.0)
    assert [len(one.subset) for one in tried[1:]] == sizes
