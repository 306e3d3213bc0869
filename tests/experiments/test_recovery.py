import math

import pytest

from experiments.recovery import Recovery, recoveries
from nalb.events import ChangeEvent, IterationEvent
from nalb.reporting.record import Record, Step
from nalb.reporting.run_file import RunFile, SchemeResult

BOUND_S = 2.0


def record_of(times_s, changes_s, bounds_s=None):
    """A run from second 0 on, whose iterations follow each other; an iteration's clock starts 0.1 s after its predecessor."""
    steps, now_s = [], 0.0
    for number, took_s in enumerate(times_s):
        bound_s = (bounds_s or [BOUND_S] * len(times_s))[number]
        event = IterationEvent(
            at_s=now_s + 0.1 + took_s,
            iteration=number,
            scheme="aware",
            communication_s={"n0": took_s},
            started_s={"n0": now_s + 0.1, "n1": now_s + 0.2},
            bound_s=bound_s,
        )
        steps.append(Step(number, now_s, event, []))
        now_s = event.at_s
    result = SchemeResult(list(times_s), list(times_s), 1.0, [0.0] * len(times_s), None)
    run = RunFile("net", "replay mobilenet", 2, 1, BOUND_S, {"aware": result})
    changes = [ChangeEvent(at_s=at_s, elapsed_s=at_s) for at_s in changes_s]
    return Record(["n0", "n1"], ["n0", "n1"], {"aware": steps}, changes, True, run=run)


def test_the_iteration_that_saw_the_change_is_not_counted():
    """The change comes during the second iteration; the third is too slow, the fourth within a tenth of the bound."""
    (found,) = recoveries(record_of([2.1, 4.0, 3.0, 2.19, 2.1, 2.1], [3.0]), "aware")
    assert found == Recovery(at=pytest.approx(1 + 0.8 / 4.1), to_bound=2, to_settled=2, seen=4)


def test_a_change_between_two_iterations_counts_the_next_one():
    (found,) = recoveries(record_of([2.1, 2.1, 2.1], [2.25]), "aware")
    assert (found.to_bound, found.seen) == (1, 2)


def test_the_new_bound_counts_and_what_never_comes_near_it_is_told():
    found = recoveries(record_of([2.1, 2.5, 4.0, 3.0, 3.0, 3.0], [3.0], [2, 2, 2.6, 2.6, 2.6, 2.6]), "aware")
    assert [(one.to_bound, one.to_settled) for one in found] == [(math.inf, 2)]


def test_each_change_has_the_iterations_until_the_next():
    """Iterations end at 2.1, 4.2, 6.6, 8.7, 10.8, 12.9: the second change comes during the third."""
    found = recoveries(record_of([2.0, 2.0, 2.3, 2.5, 2.0, 2.0], [2.15, 6.4]), "aware")
    assert [one.seen for one in found] == [1, 3]
    assert [one.to_bound for one in found] == [1, 2]


def test_changes_of_other_times_and_other_schemes_are_not_its_own():
    record = record_of([2.0, 2.0], [-1.0, 90.0])
    assert recoveries(record, "aware") == []
    assert recoveries(record, "average") == []
