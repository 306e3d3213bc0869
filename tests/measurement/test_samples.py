"""Samples come from other machines: whatever cannot be is counted and dropped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.measurement.samples import CHECKED, READ_S, ClockAlignment, check

NODES = {0: 0, 1: 0, 2: 1, 3: 1}  # by peer number: servers 2 rank, workers 2 rank + 1


def checked(received):
    """The samples that a receiver on node 0 is believed, and the faults of its rows."""
    count = len(received)
    rows, within_s = np.array(received, dtype=np.int64).reshape(-1, 4), np.tile([-np.inf, np.inf], (count, 1))
    samples, kept, wrong = check(rows, np.zeros(count, np.int64), NODES, np.zeros(count), within_s)
    assert len(samples) == len(kept)
    return samples, [CHECKED[k].value for k in wrong if k >= 0]


def test_a_good_sample_is_named_by_node_and_timed_in_seconds():
    samples, faults = checked([(3, 1_000_000, 2_000_000_000, 2_500_000_000)])
    assert samples.tolist() == [(1, 0, 1_000_000, 2.0, 2.5, True)]
    assert not faults


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ((77, 1000, 1, 2_000), "unknown peer"),
        ((-1, 1000, 1, 2_000), "unknown peer"),
        ((3, 0, 1, 2_000), "no bytes"),
        ((3, 1000, 0, 2_000), "no forecast"),
        ((3, 1000, 5_000, 5_000), "no time"),
        ((3, 1000, 5_000, 4_000), "no time"),
        ((3, 1000, 1, 7_200_000_000_001), "too long"),
        ((3, 1 << 40, 1, 2), "too fast"),
    ],
)
def test_impossible_samples_are_named_and_dropped(row, reason):
    samples, faults = checked([row])
    assert len(samples) == 0
    assert faults == [reason]


def test_a_message_that_waited_with_its_forecast_is_kept():
    samples, faults = checked([(3, 1 << 20, 1_000, 2_000)])
    assert len(samples) == 1
    assert not faults


def test_loopback_is_no_link():
    samples, faults = checked([(1, 1000, 1, 2_000)])
    assert len(samples) == 0
    assert not faults


rows = st.tuples(
    st.integers(-5, 1 << 31), st.integers(-10, 1 << 50), st.integers(-10, 1 << 62), st.integers(-10, 1 << 62)
)


@given(st.lists(rows, max_size=30))
def test_whatever_comes_what_is_kept_is_possible(received):
    samples, faults = checked(received)
    took_s = samples["end_s"] - samples["start_s"]
    assert ((samples["size_bytes"] > 0) & (samples["size_bytes"] <= 50e9 * (took_s + READ_S))).all()
    assert (samples["source"] != samples["target"]).all()
    assert len(samples) + len(faults) <= len(received)


def test_clocks_are_aligned_by_the_shortest_delay():
    clocks = ClockAlignment()
    for sent_s, delay_s in ((10.0, 0.5), (11.0, 0.02), (12.0, 0.3)):
        clocks.observe_stamp("worker n1", sent_s, sent_s + 1000.0 + delay_s)
    assert clocks.to_common_s("worker n1", 20.0) == pytest.approx(1020.02)


@pytest.mark.parametrize("drift", [-1e-4, 0.0, 2e-5, 1e-4])
def test_a_clock_that_drifts_is_followed(drift):
    """For three hours, seconds apart; one report in ten is not held up."""
    clocks = ClockAlignment()
    for sent_s in range(3 * 3600):
        ahead_s = 1000.0 + drift * sent_s
        clocks.observe_stamp("worker n1", sent_s, sent_s + ahead_s + (0.3 if sent_s % 10 else 0.02))
        if sent_s > 10:
            assert clocks.to_common_s("worker n1", sent_s) == pytest.approx(sent_s + ahead_s + 0.02, abs=5e-3)


@pytest.mark.parametrize("stood_s", [0.5, 100.0])
def test_a_clock_that_stood_still_is_aligned_again_within_a_minute(stood_s):
    """A machine was suspended for so long; it reports every second, and nothing while it is."""
    clocks = ClockAlignment()
    for now_s in (*range(100), *range(100 + round(stood_s), 300)):
        sent_s = now_s - 1000.0 - (0.0 if now_s < 100 else stood_s)
        clocks.observe_stamp("worker n1", sent_s, now_s + (0.3 if now_s % 10 else 0.02))
        if not 100 <= now_s < 160 + stood_s:
            assert clocks.to_common_s("worker n1", sent_s) == pytest.approx(now_s + 0.02, abs=1e-6)
