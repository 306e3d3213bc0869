"""When plans are made one iteration ahead. Iterations here take what they are said to take."""

from nalb.feedback.early_plans import EarlyPlans
from nalb.measurement.rules import RULES

TOOK_S, WAIT_S = 1.0, 0.15


def learned():
    """One that has learned the links, and has saved nothing yet."""
    early = EarlyPlans()
    for took_s in (4.0, 2.0):
        early.judge(took_s, WAIT_S, True)
    assert not early.pay
    return early


def calm(early, iterations):
    """Whether the next plan is early after each of so many calm iterations."""
    said = []
    for _ in range(iterations):
        early.judge(TOOK_S, None if early.pay else WAIT_S, False)
        said.append(early.pay)
    return said


def test_a_whole_iteration_is_saved_up_first_whatever_learning_took():
    assert calm(learned(), 20) == [False] * 6 + [True] * 14


def test_nobody_waits_so_nothing_is_early():
    early = learned()
    for _ in range(1000):
        early.judge(TOOK_S, 0.0, False)
        assert not early.pay


def test_what_a_surprise_cost_is_paid():
    early = learned()
    calm(early, 8)
    early.judge(TOOK_S, None, True)  # faster links cost nothing
    assert early.pay
    early.judge(TOOK_S + 0.9, None, True)
    assert not early.pay
    assert calm(early, 5) == [False, False, True, True, True]


def test_where_the_network_changes_again_and_again_no_plan_is_early():
    early, pays = learned(), []
    for _ in range(100):
        pays += calm(early, 5)
        early.judge(2 * TOOK_S, None if early.pay else WAIT_S, True)
    assert not any(pays)


def test_where_no_estimate_is_ever_refuted_long_iterations_are_paid():
    """Estimators of one's own may never say that they were wrong."""
    early, pays = EarlyPlans(), []
    for number in range(200):
        early.judge(2 * TOOK_S if number % 4 == 0 else TOOK_S, None if early.pay else WAIT_S, False)
        pays.append(early.pay)
    assert not any(pays[8:])


def test_iterations_that_have_become_longer_for_good_are_calm():
    early = learned()
    calm(early, 8)
    for _ in range(40):
        early.judge(2 * TOOK_S, None if early.pay else 2 * WAIT_S, False)
    assert early.pay


def test_a_long_calm_is_worth_a_few_iterations_alone():
    """A network that has begun to change is believed soon."""
    early = learned()
    calm(early, 10_000)
    for _ in range(int(RULES.early_account)):
        early.judge(2 * TOOK_S, None, True)
    assert calm(early, 1) == [False]


def test_one_long_wait_is_no_usual_one():
    early = learned()
    early.judge(TOOK_S, 5.0, False)
    assert not early.pay
    first = EarlyPlans()
    first.judge(TOOK_S, 5.0, False)
    assert not first.pay


def test_other_tensors_begin_anew():
    early = learned()
    calm(early, 20)
    early.begin()
    assert not early.pay
    assert not any(calm(early, 6))
