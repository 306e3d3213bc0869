"""Samples come from other machines: whatever cannot be is counted and dropped."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.measurement.samples import READ_S, ClockAlignment, check

NODES = {8: 0, 9: 0, 10: 1, 11: 1}  # ps-lite ids: servers 8 + 2 rank, workers 9 + 2 rank


def test_a_good_sample_is_named_by_node_and_timed_in_seconds():
    rejected: Counter[str] = Counter()
    (sample,) = check([(11, 1_000_000, 2_000_000_000, 2_500_000_000)], 0, NODES, rejected)
    assert (sample.source, sample.target, sample.size_bytes) == (1, 0, 1_000_000)
    assert sample.rate_bytes_per_s == pytest.approx(2_000_000)
    assert not rejected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((77, 1000, 1, 2_000), "unknown peer"),
        ((-1, 1000, 1, 2_000), "unknown peer"),
        ((11, 0, 1, 2_000), "no bytes"),
        ((11, 1000, 0, 2_000), "no forecast"),
        ((11, 1000, 5_000, 5_000), "no time"),
        ((11, 1000, 5_000, 4_000), "no time"),
        ((11, 1000, 1, 7_200_000_000_001), "too long"),
        ((11, 1 << 40, 1, 2), "too fast"),
    ],
)
def test_impossible_samples_are_counted_and_dropped(row, reason):
    rejected: Counter[str] = Counter()
    assert check([row], 0, NODES, rejected) == []
    assert rejected == {reason: 1}


def test_a_message_that_waited_with_its_forecast_is_kept():
    rejected: Counter[str] = Counter()
    assert len(check([(11, 1 << 20, 1_000, 2_000)], 0, NODES, rejected)) == 1
    assert not rejected


def test_loopback_is_no_link():
    rejected: Counter[str] = Counter()
    assert check([(9, 1000, 1, 2_000)], 0, NODES, rejected) == []
    assert not rejected


rows = st.tuples(
    st.integers(-5, 1 << 31), st.integers(-10, 1 << 50), st.integers(-10, 1 << 62), st.integers(-10, 1 << 62)
)


@given(st.lists(rows, max_size=30))
def test_whatever_comes_what_is_kept_is_possible(received):
    rejected: Counter[str] = Counter()
    kept = check(received, 0, NODES, rejected)
    assert all(0 < s.size_bytes / (s.end_s - s.start_s + READ_S) <= 50e9 and s.source != s.target for s in kept)
    assert len(kept) + sum(rejected.values()) <= len(received)


def test_clocks_are_aligned_by_the_shortest_delay():
    clocks = ClockAlignment()
    for sent_s, delay_s in ((10.0, 0.5), (11.0, 0.02), (12.0, 0.3)):
        clocks.observe("worker n1", sent_s, sent_s + 1000.0 + delay_s)
    assert clocks.to_common_s("worker n1", 20.0) == pytest.approx(1020.02)
