"""What is known of a run after its events."""

import pytest
from msgspec import structs

from nalb.events import (
    AbortEvent,
    BatchEvent,
    ChangeEvent,
    DoubtEvent,
    LayoutEvent,
    PlanEvent,
    ReadyEvent,
    SharedUplinkEvent,
    TokensEvent,
)
from nalb.live.state import FAILED, NEWS, RECENT, RUNNING, WAITING, LiveState
from tests.reporting.paced import MB, NODES, rates, step

READY = ReadyEvent(at_s=100.0, nodes=NODES, servers=NODES)


def iterations(count, **fields):
    """Events of iterations that end every 2 s."""
    one = step(estimate=rates([9, 18, 18, 36]), reason="least time", **fields).event
    return [structs.replace(one, iteration=k, at_s=102.0 + 2 * k) for k in range(count)]


def test_a_run_is_told_from_its_events():
    state = LiveState()
    assert state.phase == WAITING
    assert state.pace() is state.last is state.rate_per_s is state.least_s() is None
    state.take_all([READY, LayoutEvent(at_s=101.0, model_bytes=12_000_000), *iterations(6)])
    assert (state.phase, state.iterations, state.model_bytes) == (RUNNING, 6, 12_000_000)
    assert state.rate_per_s == pytest.approx(0.5)
    assert state.pace().sentence == "n0's link (up and down) sets the pace"
    assert state.shares() == dict.fromkeys(NODES, 0.25)
    assert state.carried_bytes["n0"] == pytest.approx(6 * 18 * MB)
    assert state.least_s() == pytest.approx(12 / 9)
    assert state.left_s(10) == pytest.approx(8.0)
    assert state.left_s(None) is None


def test_the_pace_is_of_the_recent_iterations_of_one_scheme():
    state = LiveState()
    state.take_all([READY, *iterations(RECENT + 5)])
    assert len(state.recent) == RECENT
    state.take_all(iterations(3, scheme="exact"))
    assert [one.event.scheme for one in state.recent] == ["exact"] * 3
    assert state.pace().iterations == 2  # the first one had waited for its turn
    assert state.iterations == RECENT + 8
    state.take_all(iterations(1, computing_s=[30.0] * 4))
    assert state.last.iteration_s == pytest.approx(2.0)  # what it waited is not known, and so not what it computed
    assert state.last.worker_iteration_s == pytest.approx(dict.fromkeys(NODES, 2.0))
    assert state.pace().sentence == "n0's link (up and down) sets the pace"


def test_a_job_without_an_iteration_so_far_has_no_pace():
    """A restart, or the next script of a comparison."""
    state = LiveState()
    state.take_all([READY, LayoutEvent(at_s=101.0, model_bytes=12_000_000), *iterations(6)])
    assert state.pace() is not None
    assert state.least_s() is not None
    state.take(structs.replace(READY, at_s=120.0))
    assert state.pace() is state.least_s() is None
    assert state.iterations == 6


def test_the_time_left_counts_each_scheme_by_its_own_times():
    state = LiveState()
    state.take(READY)
    ends_s, scheme_ends = [102.0 + 2 * k for k in range(6)], [120.0 + 10 * k for k in range(3)]
    assert state.left_s(18) is None
    one = step().event
    state.take_all([structs.replace(one, scheme="exact", at_s=at_s) for at_s in ends_s])
    assert state.left_s(18) == pytest.approx(12 * 2.0)
    state.take_all([structs.replace(one, scheme="stock", at_s=at_s) for at_s in scheme_ends])
    assert state.left_s(12) == pytest.approx(3 * 10.0)
    assert state.left_s(18) == pytest.approx(3 * 10.0 + 6 * 6.0)  # of the third scheme nothing is known: the median
    assert state.left_s(5) is not None


def test_what_happened_is_kept_newest_last():
    state = LiveState()
    plan = PlanEvent(at_s=103.0, iteration=0, scheme="exact", reason="equal shares")
    state.take_all([READY, plan, plan, structs.replace(plan, reason="least time")])
    assert state.plan_changes == 1
    sizes = {"workers": NODES[:2], "iteration": 1, "batching": "lb-bsp", "sizes": [8, 8], "compute_s": [1.0, 2.0]}
    waits = {"period_s": [2.0, 2.0], "wait_s": [0.0, 0.0], "cpu_share": [1.0, 1.0], "memory_share": [0.1, 0.1]}
    state.take(BatchEvent(at_s=104.0, **sizes, **waits, next_sizes=[10, 6], reason="faster", remove=None))
    assert state.batch_sizes == {"n0": 10, "n1": 6}
    tokens = {"tokens": [1], "helped": [0], "compute_s": [1.0], "fetch_s": [0.0], "fetched_bytes": [0]}
    state.take(TokensEvent(at_s=105.0, workers=["n0"], iteration=0, iteration_s=1.0, **tokens))
    assert state.tokens == 1
    state.take(ChangeEvent(at_s=106.0, elapsed_s=6.0))
    shared = {"nodes": ["n0", "n1"], "others": ["n2", "n3"], "up_bytes_per_s": 11.5 * MB, "down_bytes_per_s": 20 * MB}
    state.take(SharedUplinkEvent(at_s=107.0, iteration=1, **shared))
    state.take_all(iterations(1))
    assert state.pace().limits[0].thing.where == "n0, n1"
    state.take(DoubtEvent(at_s=108.0, process="server n1", node="n1", reason="a message before its forecast"))
    state.take_all([AbortEvent(at_s=109.0, reason="worker n1 \x1b[2Jleft\r\x07")] * 2)
    assert state.phase == FAILED
    words = [one.words for one in state.news]
    assert words[:2] == ["plan: equal shares", "plan: least time"]
    assert words[-2:] == ["server n1 reported what cannot be: a message before its forecast", "worker n1 ?[2Jleft ?"]
    state.restarted(1)
    assert (state.phase, state.restarts) == (WAITING, 1)
    state.take_all([READY, *iterations(NEWS)])
    assert len(state.news) <= NEWS
    assert state.phase == RUNNING
