import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Node, check_nodes, completion_s, load_bytes, served_s

from .strategies import laws, mixed_nodes, networks, time_by_messages, traffic_bytes


def random_shares(nodes, seed, model_bytes=1e6):
    weights = np.random.default_rng(seed).uniform(0, 1, len(nodes)) * [node.is_server for node in nodes]
    return weights / weights.sum() * model_bytes


@laws
@given(mixed_nodes(), st.integers(0, 99))
def test_load_is_what_the_messages_add_up_to_in_both_directions(nodes, seed):
    shares = random_shares(nodes, seed)
    sent = traffic_bytes(nodes, shares)
    loads = load_bytes(nodes, shares, 1e6)
    np.testing.assert_allclose(loads, sent.sum(axis=1), rtol=1e-9, atol=1e-3)
    np.testing.assert_allclose(loads, sent.sum(axis=0), rtol=1e-9, atol=1e-3)


@laws
@given(networks(mixed_nodes(), with_pairs=True), st.integers(0, 99))
def test_completion_is_the_slowest_link_of_the_traffic_matrix(network, seed):
    nodes, capacities = network
    shares = random_shares(nodes, seed)
    expected = time_by_messages(nodes, shares, capacities)
    assert completion_s(nodes, shares, 1e6, capacities) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_slice_is_away_from_the_first_push_to_the_last_answer_at_the_slowest_server_that_is_no_worker():
    nodes = [Node("a"), Node("b", is_server=False), Node("fast", False), Node("slow", False)]
    capacities = Capacities.from_lists([1, 1, 100, 10], [1, 1, 100, 20])
    shares = np.array([50.0, 0, 50, 50])
    assert served_s(nodes, shares, capacities, 40) == pytest.approx(2 * 40 / 20 + 2 * 40 / 10)
    assert served_s(nodes, np.array([50.0, 0, 50, 6]), capacities, 40) == pytest.approx(2 * 6 / 20 + 2 * 6 / 10)
    assert served_s(nodes[:2], shares[:2], Capacities.from_lists([1, 1], [1, 1]), 40) == 0


def test_equation_7():
    nodes = [Node(f"n{i}") for i in range(4)]
    np.testing.assert_allclose(load_bytes(nodes, np.array([10.0, 20.0, 30.0, 40.0]), 100.0), [120, 140, 160, 180])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_capacities_refuse_what_is_no_rate(bad):
    with pytest.raises(InputError, match="node 1"):
        Capacities.from_lists([1, bad], [1, 1])
    with pytest.raises(InputError, match="0 -> 1"):
        Capacities.from_lists([1, 1], [1, 1], {(0, 1): bad})


def test_capacities_refuse_lists_that_do_not_fit():
    with pytest.raises(InputError):
        Capacities.from_lists([1, 2], [1])
    with pytest.raises(InputError):
        Capacities.from_lists([], [])
    for pair in ((0, 0), (0, 2), (-1, 0)):
        with pytest.raises(InputError, match="pair"):
            Capacities.from_lists([1, 1], [1, 1], {pair: 1.0})


def test_capacities_keep_their_own_numbers():
    up = np.array([1.0, 2.0])
    capacities = Capacities(up, up, {})
    up[0] = 9.0
    assert capacities.up[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        capacities.up[0] = 3.0


def test_estimates_wait_for_every_node_and_name_the_missing_one():
    nodes = [Node("a"), Node("b")]
    capacities, reason = Capacities.from_estimates(nodes, np.array([1.0, np.nan]), np.array([1.0, 1.0]))
    assert capacities is None
    assert "b" in reason


def test_an_estimate_of_zero_is_a_slow_node_and_is_named():
    nodes = [Node("a"), Node("b")]
    links = {(0, 1): 0.0, (1, 0): float("nan")}
    capacities, reason = Capacities.from_estimates(nodes, np.array([1e6, 0.0]), np.array([1e6, 1e6]), links)
    assert capacities is not None
    assert capacities.limit.tolist() == [1e6, 1.0]
    assert capacities.pairs == {(0, 1): 1.0}
    assert reason.endswith(": b")


def test_a_job_needs_a_worker_a_server_and_bytes():
    with pytest.raises(InputError, match="neither"):
        Node("n0", is_worker=False, is_server=False)
    with pytest.raises(InputError, match="no node is a server"):
        check_nodes([Node("n0", is_server=False)], 1.0)
    with pytest.raises(InputError, match="no node is a worker"):
        check_nodes([Node("n0", is_worker=False)], 1.0)
    for size in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="bytes"):
            check_nodes([Node("n0")], size)
    with pytest.raises(InputError, match="2 capacities for 1 nodes"):
        check_nodes([Node("n0")], 1.0, Capacities.from_lists([1, 1], [1, 1]))


def test_nodes_without_a_rate_are_named_the_first_ten_of_them():
    nodes = [Node(f"n{i}") for i in range(1000)]
    known = np.full(1000, 1e6)
    assert Capacities.from_estimates(nodes, np.full(1000, np.nan), known)[1].endswith("n8, n9 and 990 more")
    assert Capacities.from_estimates(nodes, 0 * known, known)[1].endswith("n8, n9 and 990 more")
    assert Capacities.from_estimates(nodes[:2], known[:2], known[:2] * [1, np.nan])[1] == "not measured yet: n1"
