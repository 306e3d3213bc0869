"""Which plans are trusted, by how iterations ended."""

import pytest

from nalb.feedback.trust import Outcome, Trust
from nalb.measurement.rules import RULES

FEW_FREE, MANY_FREE, LATE = RULES.few_free, RULES.many_free, RULES.late_plan


def outcome(took_s=1.0, explained_s=1.0, refuted=False, equal=False, ours=True, bounded=True, window=True):
    return Outcome(took_s, explained_s, refuted, equal, ours, bounded, window)


def settled():
    """One that has seen equal shares take 2 s and plans take 1 s, as explained."""
    trust = Trust()
    trust.judge(outcome(2.0, 2.0, equal=True))
    trust.judge(outcome())
    return trust


def windows(trust, count):
    return [trust.allow_window() for _ in range(count)]


def test_on_a_network_that_stands_still_iterations_without_a_window_become_rare():
    free = [place for place, has_window in enumerate(windows(settled(), 10 * MANY_FREE)) if not has_window]
    gaps = [later - earlier for earlier, later in zip([-1, *free], free, strict=False)]
    assert gaps[:3] == [FEW_FREE, 2 * FEW_FREE, 4 * FEW_FREE]
    assert set(gaps[3:]) == {MANY_FREE}


def test_what_is_late_without_a_window_asks_for_no_other_one():
    """Without a window iterations take longer by themselves: each would ask for two more, for ever."""
    trust = settled()
    trust.judge(outcome(refuted=True))
    assert windows(trust, 1) == [False]
    trust.judge(outcome(2 * LATE, window=trust.has_window))
    assert windows(trust, 1) == [True]
    trust.judge(outcome(2 * LATE, window=trust.has_window))
    assert windows(trust, 1) == [False]


def test_what_was_refuted_is_looked_at_without_a_window():
    trust = settled()
    trust.judge(outcome(refuted=True))
    assert windows(trust, 1) == [False]
    trust.judge(outcome())
    assert windows(trust, 1) == [True]


def test_a_plan_that_takes_what_is_explained_is_trusted():
    trust = settled()
    for _ in range(50):
        trust.judge(outcome(LATE - 0.01))
        assert not trust.needs_equal_shares


def test_plans_that_cost_more_than_equal_shares_are_given_up_for_longer_each_time():
    """Though they take what is explained: the estimates' assumptions do not hold."""
    trust, given_up = settled(), []
    while len(given_up) < 8:
        while not trust.needs_equal_shares:
            trust.judge(outcome(3.0, 3.0))
        given_up.append(0)
        while trust.needs_equal_shares:
            given_up[-1] += 1
            trust.judge(outcome(2.0, 2.0, equal=True))
    assert given_up == [1, 2, 4, 8, 16, *[RULES.max_patience] * 3]


def test_late_plans_of_a_server_that_is_no_worker_and_has_become_slow_stay():
    trust = settled()
    for _ in range(10):
        trust.judge(outcome(1.9, 1.0, refuted=True, bounded=False))
        assert not trust.needs_equal_shares


def test_what_equal_shares_took_before_the_network_changed_is_no_measure_where_they_may_take_any_time():
    trust = settled()
    for _ in range(10):
        trust.judge(outcome(5.0, 5.0, refuted=True, bounded=False))
        assert not trust.needs_equal_shares


def test_schemes_that_do_not_follow_estimates_say_nothing_of_plans_that_do():
    trust = settled()
    for _ in range(10):
        trust.judge(outcome(9.0, 1.0, ours=False))
        assert not trust.needs_equal_shares


def test_other_tensors_begin_with_equal_shares():
    trust = settled()
    trust.begin()
    assert trust.needs_equal_shares
    trust.judge(outcome(2.0, 2.0, equal=True))
    assert not trust.needs_equal_shares


@pytest.mark.parametrize("refuted", [False, True])
def test_by_sites_a_refuted_estimate_takes_the_window_away_but_a_late_iteration_does_not(refuted):
    trust, free = settled(), []
    for place in range(40):
        trust.judge(outcome(2 * LATE, refuted=refuted))
        if not trust.allow_window(is_by_sites=True):
            free.append(place)
    assert free == (list(range(40)) if refuted else list(range(FEW_FREE - 1, 40, FEW_FREE)))
