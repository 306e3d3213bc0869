"""How many bytes of a worker may be under way."""

from nalb.feedback.window import (
    LOW_INFLIGHT_BYTES,
    ROUND_TRIPS,
    WINDOW_PART,
    delay_counts,
    usual_inflight_bytes,
    window_with_delay,
    window_without_delay,
)

MODEL_BYTES, LARGE_BYTES = 16_000_000, 1_000_000_000


def test_a_small_model_has_the_least_window_and_a_large_one_a_part_of_itself():
    assert usual_inflight_bytes(1000) == LOW_INFLIGHT_BYTES
    assert usual_inflight_bytes(LARGE_BYTES) == LARGE_BYTES // WINDOW_PART


def test_delay_counts_where_round_trips_make_up_a_twentieth_of_what_links_need():
    assert delay_counts(0.1, 19.9 * ROUND_TRIPS * 0.1)
    assert not delay_counts(0.1, 20.1 * ROUND_TRIPS * 0.1)


def test_with_delay_two_thirds_of_what_the_fastest_node_can_have_on_its_way_are_let_go():
    assert window_with_delay(MODEL_BYTES, 0.1, 90e6, is_bbr=False) == 6_000_000
    assert window_with_delay(MODEL_BYTES, 0.001, 90e6, is_bbr=False) == usual_inflight_bytes(MODEL_BYTES)
    assert window_with_delay(MODEL_BYTES, 0.1, 90e6, is_bbr=True) == 0


def test_a_window_goes_where_waiting_for_the_slowest_worker_costs_more_than_it_saves():
    """It lets 2 MB go, at 1 MB/s in two seconds. Of ten seconds it saves one at most."""
    assert window_without_delay(MODEL_BYTES, 10.0, 1e6, compute_spread_s=2.9) == usual_inflight_bytes(MODEL_BYTES)
    assert window_without_delay(MODEL_BYTES, 10.0, 1e6, compute_spread_s=3.1) == 0
