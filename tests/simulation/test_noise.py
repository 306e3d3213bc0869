from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.planning.nodes import Capacities, Node
from nalb.simulation.exchange import MessageWeight, exchange
from nalb.simulation.noise import MIN_BURST_BYTES, Noise, Readers, SavedBytes
from tests.planning.strategies import laws, mixed_nodes, networks

WORKER_AND_SERVER = [Node("w", is_server=False), Node("s", is_worker=False)]
STILL = Noise((1,), burst_s=0, bunch_bytes=0, turn_bytes=0, run_s=np.inf, stall_s=0, jitter_s=0)
RATE = 1e6  # bytes/s
CAPACITIES = Capacities.from_lists([RATE, RATE], [RATE, RATE])


def run(noise, sizes, window=0, capacities=CAPACITIES):
    servers = np.ones(len(sizes), dtype=np.int64)
    return exchange(WORKER_AND_SERVER, capacities, np.array(sizes), servers, window, MessageWeight(), noise)


def test_a_direction_that_rested_carries_a_burst_at_once():
    """The window holds the second push back until the first answer is in. Meanwhile the way of pushes rests."""
    seen = run(replace(STILL, burst_s=0.05), [100_000, 100_000], window=1).samples
    took_s = seen["end_s"] - seen["start_s"]
    assert took_s == pytest.approx(4 * [0.05])
    seen = run(replace(STILL, burst_s=0.05), [100_000, 100_000]).samples
    pushes = seen[seen["is_push"]]
    assert pushes["end_s"] - pushes["start_s"] == pytest.approx([0.05, 0.1])


def test_a_bucket_gives_what_it_has_saved_and_all_on_the_way_must_have_it():
    buckets = SavedBytes(Capacities.from_lists([RATE, RATE], [RATE, RATE], {(1, 0): 1e5}), 0.1)
    assert buckets.take_saved(0, 1, 30_000) == 30_000
    assert buckets.take_saved(0, 1, 1e9) == pytest.approx(70_000)
    assert buckets.take_saved(0, 1, 1e9) == 0
    assert buckets.take_saved(1, 0, 1e9) == pytest.approx(10_000)  # of its cap
    buckets.rest(buckets.spare(np.array([[0.0, 0.75 * RATE], [0.0, 0.0]])), 0.1)
    assert buckets.take_saved(0, 1, 1e9) == pytest.approx(25_000)
    assert SavedBytes(CAPACITIES, 0).take_saved(0, 1, 1e9) == MIN_BURST_BYTES


def test_only_a_message_that_shares_its_way_comes_in_bunches():
    bunches = replace(STILL, bunch_bytes=50_000)
    alone = run(bunches, [100_000] * 20, window=1).samples
    assert alone["start_s"][2:] == pytest.approx(
        alone["end_s"][1:-1], abs=1e-6
    )  # each begins when the one before is read
    nodes, capacities = [*WORKER_AND_SERVER, Node("v", is_server=False)], Capacities.from_lists([RATE] * 3, [RATE] * 3)
    both = exchange(
        nodes, capacities, np.array([100_000] * 20), np.ones(20, dtype=np.int64), 0, MessageWeight(), bunches
    ).samples
    pushes = both[both["is_push"]]
    part = (pushes["end_s"] - pushes["start_s"]) * RATE / 2 / 100_000  # two share the server's way in
    assert 0.75 <= part[2:-1].min() < 0.8 < 0.95 < part.max() <= 1 + 1e-9  # buckets make up the first and the last


def test_what_comes_while_a_process_stands_still_is_read_when_that_ends():
    readers = Readers(1, replace(STILL, run_s=0.1, stall_s=0.02))
    came_s = np.arange(0, 100, 1e-3)
    read_s = np.array([readers.read_s(0, at_s) for at_s in came_s])
    late_s = read_s - came_s
    assert late_s.min() == 0
    assert (np.diff(read_s) >= 0).all()
    assert (late_s > 0).mean() == pytest.approx(0.02 / 0.12, rel=0.15)
    ends_s = np.unique(read_s[late_s > 0])
    assert np.isin(read_s[late_s > 0], ends_s).all()
    assert len(ends_s) == pytest.approx(100 / 0.12, rel=0.15)


def test_a_late_server_answers_late():
    sizes = [10_000] * 50
    on_time, late = (run(one, sizes, 20_000) for one in (STILL, replace(STILL, run_s=0.02, stall_s=0.05)))
    assert late.time_s > 1.5 * on_time.time_s
    pushed_s, answered_s = (late.samples["end_s"][late.samples["is_push"] == is_push] for is_push in (True, False))
    assert (answered_s > pushed_s).all()


@pytest.mark.jobs
@laws
@given(networks(mixed_nodes(), with_pairs=True), st.integers(0, 99), st.sampled_from([0, 60_000]))
def test_every_message_arrives_in_order_and_a_seed_gives_the_same_noise(network, seed, window):
    nodes, capacities = network
    source = np.random.default_rng(seed)
    sizes = source.integers(1, 50_000, 12)
    servers = source.choice([i for i, node in enumerate(nodes) if node.is_server], 12)
    clean, one, same, other = (
        exchange(nodes, capacities, sizes, servers, window, MessageWeight(), noise)
        for noise in (None, Noise((seed,)), Noise((seed,)), Noise((seed,)).at(1))
    )
    np.testing.assert_array_equal(one.link_bytes, clean.link_bytes)
    assert one.samples.tolist() == same.samples.tolist()
    assert len(one.samples) == len(clean.samples)
    if len(one.samples):
        assert one.samples.tolist() != other.samples.tolist()
    connection = one.samples[["source", "target", "is_push"]]
    for each in np.unique(connection):
        own = one.samples[connection == each]
        assert (own["start_s"] < own["end_s"]).all()
        assert (np.diff(own["end_s"]) >= 0).all()
    assert (one.samples["end_s"] <= one.time_s).all()
