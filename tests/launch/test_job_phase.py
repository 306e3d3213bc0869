"""When a job failed, by what its coordinator has noted."""

import pytest

from nalb.events import IterationEvent, PlanEvent, ReadyEvent, TokensEvent, TokenShapeEvent, encode_line
from nalb.failures import Phase
from nalb.launch.job_phase import moment_of

NODES = ["n0", "n1"]
TOTALS = {"iteration_s": 1.0, "tokens": [1, 1], "helped": [0, 0], "compute_s": [0.1] * 2, "fetch_s": [0.0] * 2}


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


@pytest.mark.parametrize(
    ("events", "moment"),
    [
        ([], (Phase.START, None)),
        ([ready()], (Phase.INIT, None)),
        ([ready(), plan(0)], (None, 0)),
        ([ready(), plan(0), done(0)], (Phase.PLAN, 1)),
        # exchanges of token jobs have a count of their own, or there are none
        ([ready(), shape(0)], (None, 0)),
        ([ready(), shape(0), tokens(0), tokens(1)], (None, 2)),
        ([ready(), shape(0), plan(0), done(0), tokens(4), shape(5), plan(1)], (None, 5)),
        ([ready(), shape(0), tokens(4), plan(1), done(1)], (None, 5)),
    ],
)
def test_the_moment_is_the_last_that_was_noted_and_the_tokens_own_where_there_are_tokens(tmp_path, events, moment):
    path = tmp_path / "samples.jsonl"
    path.write_bytes(b"".join(map(encode_line, events)) + b'{"event": "pla')  # cut off
    assert moment_of(path) == moment


def test_a_job_without_a_file_says_nothing(tmp_path):
    assert moment_of(tmp_path / "samples.jsonl") == (None, None)
