"""When MXNet's own routing takes the place of plans, by how long iterations took."""

from nalb.feedback.routing import FIRST_PATIENCE, LOOK, MOST_REST, MOST_STAY, SURE, TRIAL, Routing


def play(routing, count, planned_s, own_s, explained=False, own_is_less=True):
    """Who routes each of so many iterations: 'o' MXNet, 'p' the plan."""
    word = ""
    for _ in range(count):
        is_own = routing.choose_own()
        word += "o" if is_own else "p"
        if is_own:
            routing.judge_own(own_s)
        else:
            routing.judge_plan(planned_s, explained, own_is_less)
    return word


def stretches(word, kind):
    other = "p" if kind == "o" else "o"
    return [len(one) for one in word.split(other) if one]


def test_where_links_explain_what_plans_take_they_are_kept():
    assert play(Routing(), 1000, 1.0, 0.5, explained=True) == 1000 * "p"


def test_where_links_alone_make_mxnets_own_loads_longer_plans_are_kept():
    assert play(Routing(), 1000, 1.0, 0.5, own_is_less=False) == 1000 * "p"


def test_one_plan_that_links_explain_begins_the_count_anew():
    routing = Routing()
    for _ in range(10):
        assert play(routing, SURE - 1, 1.0, 0.5) == (SURE - 1) * "p"
        assert play(routing, 1, 1.0, 0.5, explained=True) == "p"


def test_what_takes_less_stays_ever_longer_and_plans_are_looked_at_between():
    word = play(Routing(), 2000, 1.0, 0.9)
    assert word.startswith(SURE * "p" + "o")
    assert stretches(word, "o")[:5] == [TRIAL - 1 + FIRST_PATIENCE + 1, 16, 32, 64, MOST_STAY]
    assert set(stretches(word, "p")[1:-1]) == {LOOK}
    assert word[200:].count("p") < 0.05 * len(word[200:])


def test_what_takes_longer_is_tried_ever_more_rarely():
    word = play(Routing(), 5000, 1.0, 2.0)
    assert set(stretches(word, "o")) == {TRIAL}
    waits = stretches(word, "p")
    assert waits[:4] == [SURE, FIRST_PATIENCE, 16, 32]
    assert max(waits) == MOST_REST


def test_the_first_iteration_of_a_trial_makes_buffers_and_is_not_counted():
    routing = Routing()
    play(routing, SURE, 1.0, 0.9)
    routing.choose_own()
    routing.judge_own(50.0)
    assert "p" not in play(routing, TRIAL - 1 + FIRST_PATIENCE, 1.0, 0.9)


def test_when_iterations_grow_plans_are_back_at_once_and_stay_where_links_make_mxnets_own_loads_longer():
    routing = Routing()
    play(routing, 300, 1.0, 0.9)
    while not routing.is_settled:
        play(routing, 1, 1.0, 0.9)
    play(routing, 3, 1.0, 0.9)
    assert play(routing, 4, 3.0, 9.0, own_is_less=False) == "ooop"
    assert play(routing, 100, 3.0, 9.0, own_is_less=False) == 100 * "p"


def test_other_tensors_are_looked_at_anew():
    routing = Routing()
    play(routing, 300, 1.0, 0.9)
    routing.begin()
    assert play(routing, SURE + 1, 1.0, 0.9) == SURE * "p" + "o"
