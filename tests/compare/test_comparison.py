"""What a comparison makes of the events of its iterations."""

from nalb.compare.comparison import Series
from nalb.events import IterationEvent


def iteration(finished_s, took_s, number=0):
    return IterationEvent(
        at_s=0.0,
        iteration=number,
        scheme="exact",
        communication_s=dict.fromkeys(finished_s, 1.0),
        iteration_s=took_s,
        plan_wait_s=dict.fromkeys(finished_s, 0.0),
        finished_s=finished_s,
    )


def test_a_wait_for_the_slowest_counts_once():
    """a is done 5 s before b, and waits so long for the next plan: by their own clocks 12 + 14 s, of 21."""
    series = Series()
    series.begin(100.0)
    series.add(iteration({"a": 107.0, "b": 112.0}, {"a": 7.0, "b": 12.0}))
    series.add(iteration({"a": 121.0, "b": 120.5}, {"a": 14.0, "b": 8.5}))
    assert series.iteration_s == [12.0, 9.0]
    series.begin(130.0)  # others' turns
    series.add(iteration({"a": 131.0, "b": 131.5}, {"a": 10.0, "b": 11.0}))
    assert series.iteration_s[2] == 1.5
    assert series.result(samples=2 * 32).samples_per_min == 60 * 32 * 2 * 3 / 22.5
    assert series.result(samples=None).samples_per_min is None
    assert series.result(samples=None).rounds is None


def test_what_came_between_two_iterations_with_one_that_was_broken_off_is_part_of_none():
    series = Series()
    series.begin(100.0)
    for number, finished_s in ((0, 102.0), (1, 104.0), (3, 154.0), (4, 156.0)):
        series.add(iteration({"a": finished_s, "b": finished_s - 1}, {"a": 2.0, "b": 1.0}, number))
    assert series.iteration_s == [2.0] * 4


def test_rounds_are_jobs_of_their_own():
    series = Series()
    for count in (3, 2):
        series.begin(100.0)
        for _ in range(count):
            series.add(iteration({"a": 107.0}, {"a": 7.0}))
        series.end_round()
    assert series.result(samples=None).rounds == [3, 2]
