import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.distribution import Situation
from nalb.planning.nodes import Capacities, Node, completion_s
from nalb.planning.shares import average, exact
from nalb.schemes import decide
from nalb.simulation.exchange import MessageWeight, exchange
from nalb.simulation.flows import flow, lump
from nalb.units import mbps_to_bytes_per_s
from tests.planning.strategies import laws, mixed_nodes, model_sizes, networks, simple_layout

any_network = networks(mixed_nodes(), with_pairs=True)


def drawn(count, low_mbps, high_mbps, seed=3):
    rates = np.random.default_rng(seed).uniform(low_mbps, high_mbps, count) * mbps_to_bytes_per_s(1)
    return [Node(f"n{i}") for i in range(count)], Capacities.from_lists(rates, rates)


def test_two_peers():
    nodes, capacities = [Node("a"), Node("b")], Capacities.from_lists([5, 5], [5, 5])
    assert flow(nodes, capacities, np.array([10.0, 10.0])).time_s == pytest.approx(4)
    assert flow(nodes, capacities, np.array([10.0, 10.0]), goodput_part=0.5).time_s == pytest.approx(8)


@laws
@given(any_network, model_sizes)
def test_never_faster_than_the_cost_model(network, model_bytes):
    nodes, capacities = network
    for shares in (average(nodes, model_bytes), exact(nodes, model_bytes, capacities)[0]):
        took_s = flow(nodes, capacities, shares).time_s
        assert took_s >= completion_s(nodes, shares, model_bytes, capacities) * (1 - 1e-6)


@pytest.mark.parametrize("scheme", ["average", "exact"])
@pytest.mark.parametrize(("low_mbps", "high_mbps", "tolerance"), [(20, 220, 0.07), (150, 220, 0.1)])
def test_flows_agree_with_slices(scheme, low_mbps, high_mbps, tolerance):
    """Near where one node sets the pace; a little below where all are nearly equal, since slices wait for each other."""
    parts = []
    for count in (3, 4, 6, 8):
        nodes, capacities = drawn(count, low_mbps, high_mbps)
        layout = simple_layout(3_000_000, count, alpha_bytes=1000.0)
        plan, _ = decide(scheme, Situation(0, nodes, layout, estimated=capacities))
        by_slices = exchange(
            nodes, capacities, layout.sizes_bytes, np.array(plan.server_of_slice), 2_000_000, MessageWeight()
        ).time_s
        parts.append(flow(nodes, capacities, np.array(plan.shares_bytes, dtype=float)).time_s / by_slices)
    assert np.abs(np.array(parts) - 1).max() < tolerance
    assert abs(np.median(parts) - 1) < 0.04


def test_lumping_equal_nodes_changes_nothing():
    base = mbps_to_bytes_per_s(1) * np.array([20.0] * 5 + [100.0] * 7 + [220.0] * 4)
    nodes = [Node(f"n{i}") for i in range(len(base))]
    times, classes = [], []
    for wobble in (0.0, 1e-9):  # rates that all differ, if only in the ninth digit, are not lumped
        rates = base * (1 + wobble * np.arange(len(base)))
        capacities = Capacities.from_lists(rates, rates)
        shares = exact(nodes, 10e6, Capacities.from_lists(base, base))[0]
        result = flow(nodes, capacities, shares)
        times.append(result.time_s)
        classes.append(result.classes)
    assert classes == [3, len(base)]
    assert times[0] == pytest.approx(times[1], rel=0.005)


@pytest.mark.jobs
def test_coarser_classes_are_slower_by_little_and_never_faster_than_the_bound():
    nodes, capacities = drawn(300, 20, 220)
    shares, bound = exact(nodes, 100e6, capacities)
    fine, coarse = (flow(nodes, capacities, shares, max_classes=k).time_s for k in (64, 16))
    assert bound <= fine <= 1.05 * bound
    assert fine == pytest.approx(coarse, rel=0.05)


@laws
@given(any_network, model_sizes, st.integers(1, 6))
def test_classes_never_mix_roles(network, model_bytes, most):
    nodes, capacities = network
    group = lump(nodes, capacities, average(nodes, model_bytes), most)
    kinds = {}
    for node, number in zip(nodes, group.tolist(), strict=True):
        assert kinds.setdefault(number, (node.is_worker, node.is_server)) == (node.is_worker, node.is_server)
    assert set(kinds) == set(range(max(kinds) + 1))
    assert len(kinds) <= max(most, 3)


def test_caps_of_pairs_are_not_lumped():
    nodes, _ = drawn(70, 20, 220)
    capacities = Capacities.from_lists([1e6] * 70, [1e6] * 70, {(0, 1): 1e3})
    with pytest.raises(InputError, match="caps of pairs"):
        flow(nodes, capacities, average(nodes, 1e6))
