"""The screen and the line, as text."""

import io
from importlib.util import find_spec

import pytest
from msgspec import structs
from rich.console import Console

from nalb.events import AbortEvent, ReadyEvent, TokensEvent
from nalb.live.state import LiveState
from nalb.live.view import MOST_NODES, line, screen
from nalb.units import duration
from tests.live.test_state import READY, iterations
from tests.reporting.paced import rates, step


def text_of(state, iterations_in_all=None, width=140):
    console = Console(file=io.StringIO(), width=width)
    console.print(screen(state, iterations_in_all))
    return console.file.getvalue()


def test_a_running_job():
    state = LiveState()
    state.take_all([READY, *iterations(6)])
    told = line(state, 12)
    assert told == (
        "average, iteration 6 of 12, 0.5 a second; exchange 2.000 s, 1.50 x what the links allow, exposed 1.990 s;"
        " n0's link (up and down) sets the pace; about 12 s left"
    )
    shown = text_of(state, 12)
    for part in told.split("; "):
        assert part in shown
    rows = [row.split() for row in shown.splitlines()]
    assert ["n0", "72", "72", "25.0%", "2.000", "2.000"] in rows
    assert "twice as fast" in shown


def test_an_exchange_and_what_shows_of_it_are_of_one_iteration():
    state = LiveState()
    slow, fast = (step(place, exchange_s=took_s).event for place, took_s in enumerate((8.0, 2.0)))
    state.take_all([READY, slow, structs.replace(slow, iteration=1, at_s=130.0), structs.replace(fast, at_s=132.0)])
    assert state.pace().exposed_s > 4
    assert "exchange 2.000 s, exposed 1.990 s" in line(state)
    if find_spec("prometheus_client") is not None:
        from nalb.live.metrics import metrics_of

        told = {one.name: one.value for metric in metrics_of(state, True) for one in metric.samples}
        names = [f"nalb_{what}_seconds" for what in ("iteration", "exchange", "exposed")]
        assert [told[name] for name in names] == pytest.approx([2.0, 2.0, 1.99])


def test_a_rate_without_proof_is_shown_as_its_lower_bound():
    state = LiveState()
    event = step(estimate=rates([9, 18, 18, 18]), least=rates([8, 18, 18, 18])).event
    state.take_all([READY, event])
    assert "≥64" in text_of(state, width=40)
    assert "≥64" in text_of(state)


def test_a_job_that_has_not_begun_and_one_that_failed():
    state = LiveState()
    assert "waiting for all processes; no iteration yet" in line(state)
    assert "no iteration yet" in text_of(state)
    totals = {"tokens": [1], "helped": [0], "compute_s": [1.0], "fetch_s": [0.0], "fetched_bytes": [0]}
    of_tokens = TokensEvent(at_s=0.0, workers=["n0"], iteration=0, iteration_s=1.0, **totals)
    for words in ("1 iteration of tokens", "2 iterations of tokens"):
        state.take(of_tokens)
        assert words in line(state)
    state.take(AbortEvent(at_s=1.0, reason="[worker] n1 left"))
    assert line(state).endswith("[worker] n1 left")
    assert "[worker] n1 left" in text_of(state)
    state.restarted(2)
    assert "started again 2 x" in line(state)


def test_a_job_after_another_one_says_what_came_before():
    state = LiveState()
    state.take_all([READY, *iterations(6), structs.replace(READY, at_s=120.0)])
    assert line(state) == "running; no iteration of this job yet, 6 before it"
    assert "twice as fast" not in text_of(state)


def test_a_large_job_shows_its_first_nodes():
    state = LiveState()
    state.take(ReadyEvent(at_s=1.0, nodes=[f"n{k}" for k in range(MOST_NODES + 7)]))
    assert "and 7 more" in text_of(state)


@pytest.mark.parametrize(("value_s", "words"), [(45.2, "45 s"), (700, "12 min"), (11_100, "3 h 5 min")])
def test_times_left(value_s, words):
    assert duration(value_s) == words


def test_names_of_a_record_do_not_steer_the_terminal():
    names = ["n0", "\x1b[31mred", "\x1b]0;title\x07", "n3"]
    state = LiveState()
    state.take_all([ReadyEvent(at_s=0.0, nodes=names), *iterations(5, scheme="\x1b[2Jexact")])
    for shown in (line(state), text_of(state)):
        assert "\x1b" not in shown
        assert "?[2Jexact" in shown
    assert "?[31mred" in text_of(state)
