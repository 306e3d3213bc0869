"""Which window an iteration has, by what is known of delay, links and workers."""

from dataclasses import replace

import pytest

from nalb.feedback.window import LinkPace, choose_window, usual_inflight_bytes

USUAL = usual_inflight_bytes(64_000_000)
NEAR = LinkPace(
    links_s=1.0, usual_bytes=USUAL, round_trip_s=0.0, is_bbr=False, fastest=5e7, slowest=1e7, compute_spread_s=0.0
)


def never():
    raise AssertionError("asked")


@pytest.mark.parametrize(
    ("pace", "may_have", "expected"),
    [
        (NEAR, True, USUAL),
        (NEAR, False, 0),
        (None, True, 0),
        (replace(NEAR, compute_spread_s=0.85), True, USUAL),
        (replace(NEAR, compute_spread_s=0.95), True, 0),  # a window of 8 MB makes up for 0.8 s, and it gains 0.1 s
        (replace(NEAR, round_trip_s=0.01), True, USUAL),  # three of them are less than a twentieth of the links' time
    ],
)
def test_where_delay_does_not_count_it_is_asked_whether_there_may_be_a_window(pace, may_have, expected):
    asked = []
    assert choose_window(pace, lambda: asked.append(1) or may_have) == expected
    assert asked == [1]


def test_where_delay_counts_nobody_is_asked():
    far = replace(NEAR, round_trip_s=0.3)
    assert choose_window(far, never) == int(2 / 3 * 5e7 * 0.3)
    assert choose_window(replace(far, is_bbr=True), never) == 0


@pytest.mark.parametrize("model_bytes", [1_000_000, 12_900_000, 100_000_000])
def test_the_same_values_are_under_way_whatever_bytes_they_travel_in(model_bytes):
    assert usual_inflight_bytes(model_bytes // 4, 0.25) == usual_inflight_bytes(model_bytes) // 4
