"""All workers join, or none: the laws of what two services share."""

import pytest

from nalb.failures import Cause, render
from nalb.protocol import wire
from nalb.protocol.members import Members
from nalb.services.joining import Joining
from nalb.settings import from_environment
from tests.failures import who
from tests.protocol.test_coordinator import ENVIRONMENT

STARTUP_S = 120.0


def job(is_asked=False, workers=3):
    """A service's Joining, and the workers of its job by rank."""
    counts = {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": "1"}
    members = Members(from_environment(ENVIRONMENT | counts, "host"), 0.0)
    for rank in range(workers):
        assert members.admit(b"w%d" % rank, wire.Hello(wire.VERSION, "worker", f"n{rank}", rank, 1), 0.0) is None
    return Joining(Cause.BATCHING, "the club", "pay", is_asked, members, STARTUP_S), members.workers


@pytest.mark.parametrize("is_asked", [False, True])
def test_who_trains_without_joining_is_named_once_an_option_or_another_worker_asks(is_asked):
    joining, workers = job(is_asked)
    assert (joining.check_training(workers[1]) is not None) is is_asked
    joining.note(workers[0], 1.0)
    assert joining.check_training(workers[0]) is None
    why = joining.check_training(workers[1])
    assert (why.cause, who(why)) == (Cause.BATCHING, ("worker", "n1"))
    assert "the club" in render(why)


def test_who_has_made_more_calls_than_those_that_joined_is_named_after_the_time_to_start():
    joining, workers = job()
    assert joining.check_time(1e9) is None, "nobody has joined"
    joining.note(workers[0], 1.0)
    workers[1].calls = workers[2].calls = 5
    assert joining.check_time(1.0 + STARTUP_S) is None
    why = joining.check_time(1.1 + STARTUP_S)
    assert (why.cause, who(why)) == (Cause.BATCHING, ("worker", "n1"))
    assert "worker n2" in render(why)


def test_who_still_loads_data_may_take_any_time():
    joining, workers = job()
    for worker in workers[:2]:
        joining.note(worker, 1.0)
        worker.calls = 7
    workers[2].calls = 7
    assert joining.check_time(1e9) is None
    workers[2].calls = 8
    assert who(joining.check_time(1e9)) == ("worker", "n2")
