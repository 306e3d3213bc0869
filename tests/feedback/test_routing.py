"""When MXNet's own routing takes the place of plans, by how long iterations took."""

import math
import random
from dataclasses import replace

import pytest

from nalb.feedback.routing import Routing
from nalb.measurement.rules import RULES

SURE, LOOK, TRIAL = RULES.plans_to_trial, RULES.look_iterations, RULES.trial_iterations


def play(routing, count, planned_s, own_s, own_links_s=0.0):
    """Who routes each of so many iterations: 'o' MXNet, 'p' the plan."""
    word = ""
    for _ in range(count):
        is_own = routing.choose_own()
        word += "o" if is_own else "p"
        if is_own:
            routing.judge_own(own_s)
        else:
            routing.judge_plan(planned_s, planned_s, own_links_s)
    return word


def stretches(word, kind):
    other = "p" if kind == "o" else "o"
    return [len(one) for one in word.split(other) if one]


@pytest.mark.parametrize("own_links_s", [1.0, 1.5, math.inf])
def test_where_links_alone_make_mxnets_own_loads_longer_plans_are_kept(own_links_s):
    assert play(Routing(), 1000, 1.0, 0.5, own_links_s) == 1000 * "p"


def test_some_slow_plans_do_not_begin_a_trial_but_half_of_the_last_ones_do():
    routing = Routing()
    for _ in range(10):
        assert play(routing, SURE, 1.0, 0.5, own_links_s=1.5) == SURE * "p"
        assert play(routing, SURE // 2 - 1, 8.0, 0.5, own_links_s=1.5) == (SURE // 2 - 1) * "p"
    assert play(routing, SURE, 1.0, 0.5, own_links_s=1.5) == SURE * "p"
    assert play(routing, SURE // 2 + 1, 8.0, 8.0, own_links_s=1.5) == SURE // 2 * "p" + "o"


def test_what_links_need_may_vary_as_estimates_do():
    routing, word = Routing(), ""
    for number in range(SURE + 1):
        word += play(routing, 1, 1.0, 0.5, own_links_s=1.2 if number % 3 == 2 else 0.9)
    assert word == SURE * "p" + "o"


def test_where_delay_sets_the_pace_a_trial_begins_once_plans_can_be_compared_with_it():
    routing = Routing()
    for _ in range(LOOK):
        assert routing.choose_own() == 0
        routing.judge_plan(1.0, 1.0, own_links_s=0.0, is_delayed=True)
    assert routing.choose_own() == 1
    assert play(routing, TRIAL - 1, 1.0, 0.9) == (TRIAL - 1) * "o"


@pytest.mark.parametrize("own_s", [0.99, 0.9, 0.7, 0.55])
def test_what_takes_less_stays_and_plans_are_looked_at_for_a_hundredth_of_the_time(own_s):
    word = play(Routing(), 5000, 1.0, own_s)
    assert word.startswith(SURE * "p" + "o")
    assert set(stretches(word, "p")[1:-1]) == {LOOK}
    took_s = word.count("o") * own_s + word.count("p")
    assert took_s <= (1 + 1.2 * RULES.look_price) * len(word) * own_s + SURE


@pytest.mark.parametrize("own_s", [1.01, 1.1, 1.3, 1.5])
def test_what_takes_longer_is_tried_for_a_hundredth_of_the_time(own_s):
    word = play(Routing(), 5000, 1.0, own_s)
    assert set(stretches(word, "o")) == {TRIAL}
    took_s = word.count("o") * own_s + word.count("p")
    assert took_s <= (1 + 1.2 * RULES.look_price) * len(word)


def test_plans_are_looked_at_however_long_they_take():
    assert max(stretches(play(Routing(), 5000, 1.0, 0.01), "o")) <= RULES.longest_rest + TRIAL


@pytest.mark.parametrize("own_s", [3.0, 7.0, 100.0])
def test_trials_that_cost_much_end_early_and_become_rare(own_s):
    word = play(Routing(), 5000, 1.0, own_s)
    trials, rests = stretches(word, "o"), stretches(word, "p")
    assert set(trials) == {2 if own_s > 4 else 3}, "the first iteration is not counted"
    assert rests[1:3] == [
        min(math.ceil(trials[0] * (own_s - 1) / RULES.look_price), k * RULES.longest_rest) for k in (1, 2)
    ]
    late_s = sum(own_s for one in word[2500:] if one == "o")
    assert late_s <= 2 * own_s * max(1, 2500 * RULES.look_price / (own_s - 1))


def test_a_trial_that_ends_early_is_not_begun_by_what_was_chosen_before():
    routing = Routing()
    play(routing, SURE, 1.0, 9.0)
    for _ in range(3):
        assert routing.choose_own() == 1
    routing.judge_own(9.0)
    routing.judge_own(9.0)
    assert routing.choose_own() == 0
    routing.judge_own(0.1)  # the third of them
    assert play(routing, 200, 1.0, 9.0) == 200 * "p"


def test_slow_plans_of_the_past_ask_for_no_trial_where_the_last_ones_are_quicker():
    routing = Routing()
    play(routing, 5, 4.5, 3.9, own_links_s=3.8)
    assert play(routing, 200, 1.0, 3.9, own_links_s=3.8) == 200 * "p"


def test_the_first_iteration_of_a_trial_makes_buffers_and_is_not_counted():
    routing = Routing()
    play(routing, SURE, 1.0, 0.9)
    routing.choose_own()
    routing.judge_own(50.0)
    assert "p" not in play(routing, TRIAL - 1 + SURE, 1.0, 0.9)


def amid_a_stretch(planned_s, own_s):
    """Routing that has compared both ways for long, and left some iterations of a further stretch to MXNet."""
    routing = Routing()
    play(routing, 300, planned_s, own_s)
    while not routing.is_settled:
        play(routing, 1, planned_s, own_s)
    play(routing, 3, planned_s, own_s)
    return routing


def test_when_iterations_grow_plans_are_back_at_once_and_stay_where_links_make_mxnets_own_loads_longer():
    routing = amid_a_stretch(1.0, 0.9)
    assert play(routing, 4, 3.0, 9.0, own_links_s=math.inf) == "ooop"
    assert play(routing, 100, 3.0, 9.0, own_links_s=math.inf) == 100 * "p"


def test_when_iterations_become_shorter_plans_are_back_at_once_and_stay_where_they_take_less():
    routing = amid_a_stretch(4.0, 3.0)
    assert play(routing, LOOK + LOOK, 0.5, 0.7) == LOOK * "o" + LOOK * "p"
    assert play(routing, TRIAL, 0.5, 0.7) == TRIAL * "o", "it may have been a disturbance"
    assert play(routing, 100, 0.5, 0.7) == 100 * "p"


@pytest.mark.parametrize("part", [1.5, 0.6])
def test_a_disturbance_costs_little(part):
    """For a few iterations in each hundred both ways take another time."""
    routing, word = Routing(), ""
    play(routing, 100, 1.3, 1.0)
    for _ in range(30):
        for step in range(100):
            now = part if step < LOOK + 1 else 1.0
            word += play(routing, 1, 1.3 * now, 1.0 * now)
    assert word.count("p") < 0.1 * len(word)


def test_longer_and_shorter_iterations_by_turns_are_no_change():
    routing = settled(0.5)
    play(routing, 10, 1.0, 0.5)
    for _ in range(10):
        assert play(routing, 1, 1.0, 0.7) + play(routing, 1, 1.0, 0.35) == "oo"


def settled(own_s):
    """Routing that has left all to MXNet for a while, and knows how long that takes."""
    routing = Routing()
    play(routing, SURE + TRIAL, 1.0, own_s)
    assert routing.is_settled
    for _ in range(RULES.compared_iterations):
        play(routing, 1, 1.0, own_s)
    return routing


def test_plans_under_way_when_a_stretch_begins_are_not_those_after_it():
    routing = settled(0.7)
    while routing.is_settled:
        assert routing.choose_own() == 1
        routing.judge_own(0.7)
    for _ in range(LOOK):
        assert routing.choose_own() == 0
        routing.judge_plan(1.0, 1.0, own_links_s=0.0)
    assert routing.choose_own() == 1
    routing.judge_plan(1.0, 1.0, own_links_s=0.0)  # was made before that was known
    routing.judge_own(0.7)
    for _ in range(LOOK):
        routing.judge_own(2.0)
    for _ in range(LOOK):
        assert routing.choose_own() == 0
        routing.judge_plan(1.0, 1.0, own_links_s=0.0)
    assert routing.choose_own() == 1


@pytest.mark.parametrize(
    ("own_s", "most", "run"), [(0.01, 99, RULES.run_iterations), (0.3, 99, 3), (0.01, 2, 2), (0.9, 99, 1)]
)
def test_short_iterations_are_chosen_several_at_once(own_s, most, run):
    assert settled(own_s).choose_own(most) == run


def test_no_more_are_chosen_at_once_than_until_plans_are_looked_at():
    routing = settled(0.01)
    chosen = 0
    while routing.is_settled:
        chosen += routing.choose_own(99)
    assert chosen == RULES.longest_rest - RULES.compared_iterations
    assert routing.choose_own(99) == 0


def test_trials_are_chosen_one_by_one():
    routing = Routing()
    play(routing, SURE, 1.0, 0.01)
    for _ in range(TRIAL):
        assert routing.choose_own(99) == 1
        routing.judge_own(0.01)


def test_what_is_chosen_already_does_not_keep_plans_away():
    routing = settled(0.01)
    assert routing.choose_own(99) == RULES.run_iterations
    for _ in range(LOOK):
        routing.judge_own(1.0)
    assert routing.choose_own(99) == 0


def test_other_tensors_are_looked_at_anew():
    routing = Routing()
    play(routing, 300, 1.0, 0.9)
    routing.begin()
    assert play(routing, SURE + 1, 1.0, 0.9) == SURE * "p" + "o"


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("plans_to_trial", 3),
        ("look_iterations", 5),
        ("trial_iterations", 9),
        ("look_price", 0.1),
        ("shortest_rest", 50),
        ("longest_rest", 20),
        ("compared_iterations", 1),
        ("off_own", 9.0),
        ("run_iterations", 2),
        ("run_s", 0.1),
    ],
)
def test_by_other_rules_other_iterations_are_left_to_mxnet(rule, value):
    def chosen(routing: Routing) -> list[int]:
        """How many are at once, of a job whose way to route turns from slower to faster and whose times vary."""
        times, found = random.Random(1), []
        for number in range(600):
            noise = times.uniform(0.8, 1.25)
            slow = 1.0 + 2.0 * (number > 300)
            found.append(routing.choose_own(99))
            if not found[-1]:
                routing.judge_plan(0.1 * noise * slow, 0.1, own_links_s=0.05)
            for _ in range(found[-1]):
                routing.judge_own(0.098 * noise * slow)
        return found

    assert chosen(Routing(replace(RULES, **{rule: value}))) != chosen(Routing())


@pytest.mark.parametrize(("direct_s", "begins"), [(0.6, True), (1.0, True), (1.1, False), (math.inf, False)])
def test_an_iteration_without_plans_that_took_no_longer_begins_a_trial_soon(direct_s, begins):
    routing = Routing()
    routing.note_direct(direct_s)
    word = play(routing, LOOK + TRIAL, 1.0, 0.5, own_links_s=0.9)
    assert word == LOOK * "p" + (TRIAL * "o" if begins else TRIAL * "p")


def test_such_an_iteration_says_nothing_where_links_would_take_longer():
    routing = Routing()
    routing.note_direct(0.1)
    assert play(routing, 100, 1.0, 0.5, own_links_s=1.5) == 100 * "p"


def test_such_a_trial_that_shows_otherwise_is_not_made_again():
    routing = Routing()
    routing.note_direct(0.5)
    assert play(routing, LOOK + TRIAL, 1.0, 1.5, own_links_s=0.9) == LOOK * "p" + TRIAL * "o"
    for _ in range(100):
        assert play(routing, LOOK + 2, 1.0, 1.5, own_links_s=1.5) == (LOOK + 2) * "p"
        assert play(routing, LOOK, 1.0, 1.5, own_links_s=0.9) == LOOK * "p"


def test_a_trial_is_over_when_its_last_iteration_is():
    """Where MXNet also routes the next iteration, that one is chosen before the present one has ended."""
    routing = Routing()
    ahead, word = [], ""
    for _ in range(SURE + TRIAL + 20):
        is_own = ahead.pop() if ahead else routing.choose_own()
        if routing.is_settled:
            ahead.append(routing.choose_own())
        word += "o" if is_own else "p"
        if is_own:
            routing.judge_own(0.9 if word.count("o") == TRIAL else 1.2)
        else:
            routing.judge_plan(1.0, 1.0, 0.0)
    assert stretches(word, "o") == [TRIAL], word


def test_a_trial_is_not_begun_anew_by_a_plan_that_was_under_way_when_it_was_chosen():
    """Early plans: the next iteration is a plan's already when the present one asks for a trial."""
    routing, word = Routing(), "pp"
    for _ in range(SURE + TRIAL + 20):
        if word[-2] == "o":
            routing.judge_own(1.2)
        else:
            routing.judge_plan(1.0, 1.0, 0.0)
        word += "o" if routing.choose_own() else "p"
    assert stretches(word, "o") == [TRIAL], word
