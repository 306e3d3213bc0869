"""What a job's events say of it: who has joined, and what the job is about. The source is a real Relay."""

from contextlib import contextmanager

import pytest

from nalb.events import (
    DoubtEvent,
    IterationEvent,
    LayoutEvent,
    PlanEvent,
    ReadyEvent,
    StateEvent,
    TokensEvent,
    TokenShapeEvent,
)
from nalb.failures import Phase
from nalb.launch.watch import Watch
from nalb.transport.observer_relay import Relay

NODES = ["n0", "n1"]
TOTALS = {"iteration_s": 1.0, "tokens": [1, 1], "helped": [0, 0], "compute_s": [0.1] * 2, "fetch_s": [0.0] * 2}


@contextmanager
def watched(folder, events):
    """A watch of a job with these events."""
    with Relay(f"ipc://{folder}/observers", folder / "samples.jsonl", 2) as relay:
        for event in events:
            relay.tell(event)
        yield Watch(relay)


def ready():
    return ReadyEvent(at_s=0.0, nodes=NODES)


def plan(iteration):
    return PlanEvent(at_s=0.0, iteration=iteration, scheme="exact")


def done(iteration):
    return IterationEvent(at_s=0.0, iteration=iteration, scheme="exact", communication_s={})


def shape(iteration):
    model = {"total": 8, "chunks": 2, "weights": [1, 1], "eligible": [[0, 1]] * 2}
    return TokenShapeEvent(
        at_s=0.0, workers=NODES, iteration=iteration, parallel="mp", staleness=0, reason="as asked for", **model
    )


def tokens(iteration):
    return TokensEvent(at_s=0.0, workers=NODES, iteration=iteration, fetched_bytes=[0, 0], **TOTALS)


def doubt():
    return DoubtEvent(at_s=1.0, process="server n0", node="n0", reason="too fast")


@pytest.mark.parametrize(
    ("events", "moment"),
    [
        ([], (Phase.START, None)),
        ([StateEvent(at_s=0.0, phase="GATHER", nodes=[])], (Phase.START, None)),
        ([StateEvent(at_s=0.0, phase="RUN", nodes=NODES)], (Phase.INIT, None)),
        ([ready()], (Phase.INIT, None)),
        ([ready(), plan(0)], (None, 0)),
        ([ready(), LayoutEvent(at_s=1.0, model_bytes=1), plan(0)], (None, 0)),
        ([ready(), plan(0), done(0)], (Phase.PLAN, 1)),
        ([ready(), plan(0), done(0), plan(1), doubt()], (None, 1)),
        # exchanges of token jobs have a count of their own, or there are none
        ([ready(), shape(0)], (None, 0)),
        ([ready(), shape(0), tokens(0), tokens(1)], (None, 2)),
        ([ready(), shape(0), plan(0), done(0), tokens(4), shape(5), plan(1)], (None, 5)),
        ([ready(), shape(0), tokens(4), plan(1), done(1)], (None, 5)),
    ],
)
def test_the_moment_is_the_last_that_was_told_and_the_tokens_own_where_there_are_tokens(tmp_path, events, moment):
    with watched(tmp_path, events) as watch:
        assert watch.moment() == moment
        assert watch.has_joined() == (moment[0] is not Phase.START)
        assert watch.moment() == moment  # a look keeps what it has found


def test_a_look_between_two_reads_keeps_the_events_for_the_next(tmp_path):
    with watched(tmp_path, [ready(), plan(0)]) as watch:
        assert watch.has_joined()
        assert list(watch.events(0.0)) == [ready(), plan(0)]
        assert list(watch.events(0.0)) == []
        assert watch.moment() == (None, 0)
        assert list(watch.last_events()) == []
