import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Node, completion_s
from nalb.planning.shares import bound_s
from nalb.simulation.exchange import WITH_HEADERS, MessageWeight, exchange
from nalb.units import GOODPUT_PART
from tests.planning.strategies import laws, mixed_nodes, networks, traffic_bytes

PLAIN = MessageWeight()
any_network = networks(mixed_nodes(), with_pairs=True)
slices = st.lists(st.integers(1, 50_000), min_size=1, max_size=12)
windows = st.sampled_from([0, 1, 20_000, 60_000])


def run(nodes, capacities, sizes, servers, window=0, wire=PLAIN):
    return exchange(nodes, capacities, np.array(sizes), np.array(servers), window, wire)


def servers_for(nodes, sizes, seed):
    servers = [i for i, node in enumerate(nodes) if node.is_server]
    return np.random.default_rng(seed).choice(servers, len(sizes))


WORKER_AND_SERVER = [Node("w", is_server=False), Node("s", is_worker=False)]


@pytest.mark.parametrize(("window", "expected_s"), [(0, 3), (25, 3), (20, 3), (10, 4), (1, 4)])
def test_a_window_holds_the_second_slice_back(window, expected_s):
    """10 bytes/s: push, push, answer take 3 s where pushes and answers overlap; 4 s where the second push waits."""
    capacities = Capacities.from_lists([10, 10], [10, 10])
    assert run(WORKER_AND_SERVER, capacities, [10, 10], [1, 1], window).time_s == pytest.approx(expected_s)


def test_rates_may_change_within_an_exchange():
    """10 bytes/s, then 5: of the push's 40 bytes 10 are left after 3 s. They take 2 s, and the answer takes 8 s."""
    before, after = (Capacities.from_lists([rate, rate], [rate, rate]) for rate in (10, 5))
    sizes, servers = np.array([40]), np.array([1])
    result = exchange(WORKER_AND_SERVER, before, sizes, servers, wire=PLAIN, change=(3.0, after))
    assert result.time_s == pytest.approx(3 + 2 + 8)
    late = exchange(WORKER_AND_SERVER, before, sizes, servers, wire=PLAIN, change=(99.0, after))
    assert late.time_s == pytest.approx(8)


def test_two_peers_push_at_once_and_answer_at_once():
    capacities = Capacities.from_lists([5, 5], [5, 5])
    result = run([Node("a"), Node("b")], capacities, [10, 10], [0, 1])
    np.testing.assert_allclose(result.finish_s, [4, 4])
    np.testing.assert_allclose(result.link_bytes, [[0, 20], [20, 0]])
    np.testing.assert_allclose(result.busy_s, [[0, 4], [4, 0]])


def test_an_answer_waits_for_the_slowest_worker_and_then_goes_to_all():
    """Pushes at 2 and 8 bytes/s; the server answers at 5 s, at 5 bytes/s each; the slow one takes it in at 10."""
    nodes = [Node("slow", is_server=False), Node("fast", is_server=False), Node("s", is_worker=False)]
    capacities = Capacities.from_lists([2, 100, 10], [10, 10, 10])
    result = run(nodes, capacities, [10], [2])
    np.testing.assert_allclose(result.finish_s, [7, 7, 0])
    assert result.samples[["source", "start_s", "end_s"]][:2].tolist() == [
        (1, 0.0, pytest.approx(1.25)),
        (0, 0.0, pytest.approx(5.0)),
    ]


def test_messages_of_a_connection_keep_their_order():
    capacities = Capacities.from_lists([10, 10], [10, 10])
    result = run(WORKER_AND_SERVER, capacities, [40, 10, 20], [1, 1, 1])
    assert result.samples["size_bytes"][result.samples["is_push"]].tolist() == [40, 10, 20]
    assert result.samples["size_bytes"][~result.samples["is_push"]].tolist() == [40, 10, 20]


def test_a_node_alone_needs_no_network():
    capacities = Capacities.from_lists([1], [1])
    assert run([Node("n")], capacities, [10, 10, 10], [0, 0, 0], 10).time_s == 0


@laws
@given(any_network, slices, windows, st.integers(0, 99))
def test_never_faster_than_the_cost_model_and_every_byte_arrives(network, sizes, window, seed):
    nodes, capacities = network
    servers = servers_for(nodes, sizes, seed)
    result = run(nodes, capacities, sizes, servers, window)
    shares = np.bincount(servers, sizes, minlength=len(nodes)).astype(float)
    assert result.time_s >= completion_s(nodes, shares, sum(sizes), capacities) * (1 - 1e-6)
    assert result.time_s >= bound_s(nodes, sum(sizes), capacities) * (1 - 1e-5)
    np.testing.assert_allclose(result.link_bytes, traffic_bytes(nodes, shares))
    assert (result.busy_s <= result.time_s * (1 + 1e-9)).all()
    assert ((result.busy_s > 0) == (result.link_bytes > 0)).all()
    seen, samples = np.zeros(result.link_bytes.shape), result.samples
    np.add.at(seen, (samples["source"], samples["target"]), samples["size_bytes"])
    assert ((samples["start_s"] >= 0) & (samples["start_s"] < samples["end_s"])).all()
    assert (samples["end_s"] <= result.time_s).all()
    np.testing.assert_allclose(seen, result.link_bytes)


@laws
@given(any_network, slices, windows, st.integers(0, 99), st.sampled_from([0.5, 2.0, 8.0]))
def test_a_network_k_times_as_fast_takes_a_kth_of_the_time(network, sizes, window, seed, factor):
    nodes, capacities = network
    servers = servers_for(nodes, sizes, seed)
    scaled = Capacities(
        capacities.up * factor, capacities.down * factor, {p: r * factor for p, r in capacities.pairs.items()}
    )
    first, second = (run(nodes, c, sizes, servers, window).time_s for c in (capacities, scaled))
    assert second == pytest.approx(first / factor, rel=1e-6)


@laws
@given(networks(mixed_nodes(), with_pairs=False), st.integers(1, 50_000), st.integers(0, 99), st.integers(0, 15))
def test_a_faster_link_never_slows_a_single_slice(network, size, seed, which):
    """With several slices it may: one that is early can take a rate that a later, longer way would have needed."""
    nodes, capacities = network
    servers = servers_for(nodes, [size], seed)
    rates = [capacities.up.copy(), capacities.down.copy()]
    rates[which % 2][which // 2 % len(nodes)] *= 3
    faster = Capacities(rates[0], rates[1], {})
    first, second = (run(nodes, c, [size], servers).time_s for c in (capacities, faster))
    assert second <= first * (1 + 1e-6)


@pytest.mark.jobs
@laws
@given(any_network, slices, windows, st.integers(0, 99))
def test_deterministic_and_headers_cost_their_part(network, sizes, window, seed):
    nodes, capacities = network
    servers = servers_for(nodes, sizes, seed)
    first, second = (run(nodes, capacities, sizes, servers, window) for _ in range(2))
    assert first.samples.tolist() == second.samples.tolist()
    with_headers = run(nodes, capacities, sizes, servers, window, WITH_HEADERS).time_s
    assert with_headers == pytest.approx(first.time_s / GOODPUT_PART, rel=1e-6)


def test_a_message_may_cost_bytes_of_its_own():
    capacities = Capacities.from_lists([10, 10], [10, 10])
    assert run(WORKER_AND_SERVER, capacities, [10], [1], wire=MessageWeight(0.5, 5)).time_s == pytest.approx(
        2 * 30 / 10
    )


@pytest.mark.parametrize(
    ("sizes", "servers", "what"),
    [([10], [0], "no server"), ([10], [2], "no server"), ([0], [1], "at least 1"), ([], [], "one of each"),
     ([1, 2], [1], "one of each")],
)  # fmt: skip
def test_slices_that_cannot_travel_are_refused(sizes, servers, what):
    with pytest.raises(InputError, match=what):
        run(WORKER_AND_SERVER, Capacities.from_lists([1, 1], [1, 1]), sizes, servers)
