"""alpha follows how fast links drain; iterations here take what they are said to take."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.planning.granularity import (
    FEWEST,
    FIRST_ALPHA_BYTES,
    ITERATIONS,
    LEAST_RATE,
    MOST_CUTS,
    OFF,
    SLICE_S,
    Granularity,
)
from nalb.planning.slices import slice_bytes

MODEL_BYTES, NODES = 100_000_000, 4
FAST = 500e6  # bytes per second


def watch(granularity, *rates, model_bytes=MODEL_BYTES, nodes=NODES):
    """One iteration at each of these rates; what alpha was after each."""
    alphas = []
    for rate in rates:
        granularity.observe_exchange(1.5 * model_bytes, 1.5 * model_bytes / rate, model_bytes, nodes, nodes)
        alphas.append(granularity.alpha_bytes)
    return alphas


def test_on_fast_links_alpha_grows_once_three_iterations_have_shown_it():
    assert watch(Granularity(), *[FAST] * 6) == [FIRST_ALPHA_BYTES] * 2 + [SLICE_S * FAST] * 4


def test_the_best_of_three_counts_since_other_things_only_make_iterations_slower():
    assert watch(Granularity(), FAST / 10, FAST, FAST / 2)[-1] == SLICE_S * FAST


def test_nothing_is_cut_anew_while_sizes_are_off_by_less_than_twice():
    near = [LEAST_RATE * (0.95 * OFF) ** 2] * 9
    assert watch(Granularity(), *near)[-1] == FIRST_ALPHA_BYTES
    assert watch(Granularity(), *near, *[LEAST_RATE * (1.05 * OFF) ** 2] * 3)[-1] > FIRST_ALPHA_BYTES


def test_slow_iterations_make_slices_no_smaller_than_they_are_at_first_but_as_small_again():
    granularity = Granularity()
    assert watch(granularity, *[LEAST_RATE / 1000] * 9)[-1] == FIRST_ALPHA_BYTES
    assert watch(granularity, *[FAST] * 3, *[LEAST_RATE / 1000] * 5)[-1] == FIRST_ALPHA_BYTES


def test_a_given_alpha_stays():
    assert watch(Granularity(1e3), *[FAST] * 9) == [1e3] * 9


def test_a_job_that_swings_is_cut_anew_a_few_times():
    alphas = watch(Granularity(), *([FAST] * 3 + [LEAST_RATE] * 3) * 10)
    assert sum(a != b for a, b in zip([FIRST_ALPHA_BYTES, *alphas], alphas, strict=False)) == MOST_CUTS


def test_iterations_that_move_nothing_between_nodes_tell_nothing():
    """A node alone, or MXNet's own routing; and a worker that says that it took no time."""
    granularity = Granularity()
    for load_bytes, took_s in [(0.0, 0.1), (1e9, 0.0)] * 5:
        granularity.observe_exchange(load_bytes, took_s, MODEL_BYTES, NODES, NODES)
    assert granularity.alpha_bytes == FIRST_ALPHA_BYTES


@given(st.lists(st.floats(1e3, 1e11), min_size=1, max_size=40), st.integers(100, 10**9), st.integers(1, 64))
def test_every_server_keeps_some_slices_and_two_watchers_agree(rates, model_bytes, nodes):
    one, other = Granularity(), Granularity()
    alphas = watch(one, *rates, model_bytes=model_bytes, nodes=nodes)
    assert alphas == watch(other, *rates, model_bytes=model_bytes, nodes=nodes)
    for alpha in alphas:
        assert alpha >= FIRST_ALPHA_BYTES
        if alpha > FIRST_ALPHA_BYTES:
            assert math.sqrt(model_bytes * alpha / nodes) <= 1.001 * model_bytes / (FEWEST * nodes)


@pytest.mark.parametrize(("rate", "model_bytes", "low", "high"), [
    (6e6, 12.9e6, 30e3, 200e3),  # 60 Mbit/s, MobileNet
    (16e6, 12.9e6, 30e3, 200e3),
    (55e6, 12.9e6, 57e3, 450e3),
    (150e6, 12.9e6, 300e3, 900e3),  # 4 Gbit/s, where the cores set the pace
    (190e6, 94e6, 500e3, 1.7e6),  # ... ResNet-50
])  # fmt: skip
def test_sizes_lie_where_iterations_were_measured_to_be_short(rate, model_bytes, low, high):
    """The ranges of docs/results/slice-sizes.md, four nodes."""
    alpha = watch(Granularity(), *[rate] * ITERATIONS, model_bytes=int(model_bytes))[-1]
    assert low <= slice_bytes(model_bytes, NODES, alpha) <= high
