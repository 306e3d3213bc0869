"""Which window an iteration has, by what is known of delay, links and workers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.feedback.window import (
    LEAST_SLICES_PER_SERVER,
    SLICES_PER_SERVER,
    LinkPace,
    choose_windows,
    delay_sets_pace,
    usual_windows,
    window_with_delay,
)

USUAL = [4_000_000, 8_000_000]
NEAR = LinkPace(
    links_s=1.0,
    usual=USUAL,
    model_bytes=64_000_000,
    wire_part=1.0,
    uplinks=[1e7, 5e7],
    round_trip_s=0.0,
    capped_s=0.0,
    is_bbr=False,
    fastest=5e7,
    compute_spread_s=0.0,
)


def never():
    raise AssertionError("asked")


@pytest.mark.parametrize(
    ("pace", "may_have", "expected"),
    [
        (NEAR, True, USUAL),
        (NEAR, False, []),
        (None, True, []),
        (replace(NEAR, compute_spread_s=0.45), True, USUAL),
        (replace(NEAR, compute_spread_s=0.55), True, []),  # the windows make up for 0.4 s, and they gain 0.1 s
        # three of these round trips are less than a twentieth of the links' time
        (replace(NEAR, round_trip_s=0.01), True, [4_100_000, 8_500_000]),
        (replace(NEAR, capped_s=0.2), True, [6_000_000, 18_000_000]),
        (replace(NEAR, usual=[*USUAL, 9_000_000], uplinks=[1e7, 5e7, 0.0], compute_spread_s=0.55), True, []),
    ],
)
def test_where_delay_does_not_count_it_is_asked_whether_there_may_be_windows(pace, may_have, expected):
    asked = []
    assert choose_windows(pace, lambda: asked.append(1) or may_have) == expected
    assert asked == [1]


def test_where_delay_counts_nobody_is_asked():
    far = replace(NEAR, round_trip_s=0.3)
    assert choose_windows(far, never) == [int(2 / 3 * 5e7 * 0.3)] * 2
    assert choose_windows(replace(far, is_bbr=True), never) == []


@given(st.lists(st.floats(1e4, 1e10), min_size=1, max_size=30), st.integers(1, 30))
def test_each_worker_has_slices_under_way_and_all_together_so_many_per_server(uplinks, servers):
    windows = usual_windows(1000, servers, uplinks)
    assert min(windows) >= 1000 * LEAST_SLICES_PER_SERVER * servers
    assert sum(windows) >= 1000 * SLICES_PER_SERVER * servers * len(uplinks) - len(uplinks)
    assert [windows[i] for i in np.argsort(uplinks)] == sorted(windows)


def test_a_window_grows_as_the_root_of_the_uplink():
    slow, fast = usual_windows(1000, 10, [4e6, 9e6])
    assert fast == pytest.approx(1.5 * slow, rel=1e-3)
    assert usual_windows(1000, 10, [8e6, 18e6]) == pytest.approx([slow, fast], abs=1)


def test_nodes_without_a_worker_change_no_workers_window():
    assert usual_windows(1000, 10, [4e6, 0.0, 9e6])[::2] == usual_windows(1000, 10, [4e6, 9e6])


def test_a_window_has_what_a_worker_pushes_while_a_slow_server_has_a_slice():
    usual = usual_windows(1000, 10, [4e6, 9e6])
    assert usual_windows(1000, 10, [4e6, 9e6], 4e6) == [4_000_000] * 2
    assert usual_windows(1000, 10, [4e6, 9e6], 1e3) == usual


@pytest.mark.parametrize("model_bytes", [1_000_000, 12_900_000, 100_000_000])
def test_with_delay_the_same_values_are_under_way_whatever_bytes_they_travel_in(model_bytes):
    whole_bytes = window_with_delay(model_bytes, 1.0, 0.0, 1e7, is_bbr=False)
    assert window_with_delay(model_bytes // 4, 0.25, 0.0, 1e7, is_bbr=False) == whole_bytes // 4


@pytest.mark.parametrize(
    ("round_trip_s", "took_s", "expected"), [(0.1, 0.59, True), (0.1, 0.61, False), (0.0, 0.1, False)]
)
def test_delay_sets_the_pace_where_its_round_trips_take_most_of_the_exchange(round_trip_s, took_s, expected):
    assert delay_sets_pace(round_trip_s, took_s) is expected
