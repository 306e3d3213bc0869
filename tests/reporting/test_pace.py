"""What is ranked first, and what twice its speed would save."""

from dataclasses import replace

import pytest

from nalb.reporting.pace import pace_of, paces
from nalb.reporting.step_costs import BOTH, LimitKind, RateSource, Thing
from nalb.reporting.table import pace_table
from tests.reporting.paced import MB, rates, step, timeline

LINK = LimitKind.LINK


def test_the_slowest_link_sets_the_pace_and_twice_its_speed_leaves_the_next():
    pace = pace_of("average", [step(place, estimate=rates([9, 12, 18, 36])) for place in range(3)])
    first, second = pace.limits[:2]
    assert (first.thing, first.source) == (Thing(LINK, "n0", BOTH), RateSource.PROVEN)
    assert first.takes_s == pytest.approx(2.0)
    assert pace.iteration_s == pytest.approx(2.0)
    assert first.doubled_s == pytest.approx(1.5)  # n1's 18 MB at 12 MB/s
    assert second.thing.where == "n1"
    assert second.doubled_s == pytest.approx(2.0)  # saves nothing
    assert pace.level == 1
    assert pace.sentence == "n0's link (up and down) sets the pace"


def test_a_scheme_that_plans_would_plan_anew():
    shares = {"n0": 0.0, "n1": 4 * MB, "n2": 4 * MB, "n3": 4 * MB}
    fields = {"shares": shares, "estimate": rates([9, 18, 18, 18]), "exchange_s": 4 / 3}
    pace = pace_of("exact", [step(scheme="exact", **fields)])
    first = pace.limits[0]
    assert first.thing == Thing(LINK, "n0", BOTH)
    assert first.doubled_s == pytest.approx(1.0)  # 18 MB at 18 MB/s by equal shares; with these it would be 20 MB


def test_links_that_are_level_are_said_to_be():
    pace = pace_of("average", [step(estimate=rates([9, 9.1, 9.1, 18]))])
    assert pace.level == 3
    assert pace.sentence.endswith("set the pace alike")
    assert pace.sentence.count("link (up and down)") == 3
    pace = pace_of("average", [step(estimate=rates([9] * 4))])
    assert "and 1 more set the pace alike" in pace.sentence


def test_a_proven_link_comes_before_one_that_is_hoped_for():
    pace = pace_of("average", [step(estimate=rates([9, 10, 18, 18]), least=rates([8, 10, 18, 18]))])
    assert [limit.thing.where for limit in pace.limits[:2]] == ["n1", "n0"]
    assert pace.limits[1].source is RateSource.HOPED


def test_the_slowest_workers_computing_sets_the_pace_where_it_is_longest():
    pace = pace_of("average", [step(computing_s=[1, 5, 2, 4], estimate=rates([9, 18, 18, 18]))])
    assert pace.sentence == "n1's computing sets the pace"
    assert pace.iteration_s == pytest.approx(7.0)
    assert pace.limits[0].doubled_s == pytest.approx(7.0 - 1.0)  # then n3 is the slowest
    assert next(one for one in pace.limits if one.thing.where == "n3").doubled_s == pytest.approx(7.0)
    assert pace.unexplained_s == pytest.approx(0.0, abs=0.05)


def test_what_nothing_explains_is_said():
    pace = pace_of("average", [step(estimate=rates([36] * 4))])
    assert pace.unexplained_s == pytest.approx(1.5, abs=0.05)


def test_nothing_is_named_where_nothing_is_known():
    pace = pace_of("p3", [step(scheme="p3", shares={}, computing_s=None, estimate=rates([9] * 4))])
    assert not pace.are_loads_known
    assert {limit.thing.kind for limit in pace.limits} <= {LimitKind.PLANS, LimitKind.COMPUTING}


@pytest.mark.parametrize(("computing_s", "names"), [(0.5, "the exchange"), (3.0, "n0's computing")])
def test_computing_sets_the_pace_only_if_it_needs_as_long_as_what_nothing_explains(computing_s, names):
    """Loads of links are known under neither scheme."""
    for scheme in ("gloo", "p3"):
        pace = pace_of(scheme, [step(scheme=scheme, shares={}, computing_s=[computing_s, 0, 0, 0])])
        assert pace.limits[0].takes_s == pytest.approx(computing_s)
        assert pace.unexplained_s == pytest.approx(2.0, abs=0.05)
        assert pace.sentence.startswith(f"{names} set")


def test_what_the_first_of_a_turn_waited_does_not_count_as_computing():
    pace = pace_of("average", [step(computing_s=[30.0] * 4, is_first=True, estimate=rates([9, 18, 18, 18]))])
    assert pace.sentence == "n0's link (up and down) sets the pace"
    assert pace.iteration_s == pytest.approx(2.0)
    assert not any(limit.thing.kind is LimitKind.COMPUTING for limit in pace.limits)


def test_the_warm_up_and_the_wait_for_a_turn_do_not_count():
    slow, fast = rates([3, 18, 18, 18]), rates([18, 18, 6, 18])
    steps = [step(place, "average", 6.0, estimate=slow) for place in range(2)]
    steps += [step(place, "average", 3.0, estimate=fast) for place in range(2, 5)]
    steps += [step(5, "exact", 3.0, estimate=fast), step(6, "exact", 3.0, estimate=fast)]
    steps = [replace(one, ready=steps[0].ready, is_first=one.place in (0, 5)) for one in steps]  # of one job
    found = {pace.scheme: pace for pace in paces(timeline(*steps))}
    assert found["average"].iterations == 3
    assert found["average"].sentence == "n2's link (up and down) sets the pace"
    assert found["exact"].iterations == 1  # its first one waited for its turn
    assert paces(timeline(*steps), last=1)[0].iterations == 1
    assert list(found) == ["average", "exact"]


def test_each_round_of_a_script_has_its_own_warm_up():
    """Rounds are jobs of their own."""
    steps = []
    for number in range(3):
        one_job = [step(4 * number + place, "average", 3.0) for place in range(4)]
        steps += [replace(one, ready=one_job[0].ready, is_first=one is one_job[0]) for one in one_job]
    (pace,) = paces(timeline(*steps))
    assert (pace.iterations, pace.jobs) == (6, 3)
    assert str(pace_table(pace).title).endswith("(medians of 6, of 3 jobs)")
