"""Transfers share links as connections do, and a sum alone takes what the exact shares take."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import bound_s, exact
from nalb.planning.sites import Sites, Uplinks
from nalb.simulation.carried import Carried
from nalb.simulation.flows import flow
from nalb.simulation.sharing import SharedLinks

pytestmark = pytest.mark.jobs  # they compute for seconds

RATES = st.lists(st.floats(1.0, 100.0), min_size=3, max_size=6)


@settings(max_examples=100)
@given(RATES, st.integers(0, 1 << 30))
def test_transfers_have_the_rates_of_connections(rates, seed):
    count, random = len(rates), np.random.default_rng(seed)
    capacities = Capacities.from_lists(rates, rates[::-1])
    connections = random.integers(0, 3, (count, count)) * (1 - np.eye(count, dtype=int))
    of_one = SharedLinks(capacities).max_min(connections.astype(float))
    carried = Carried(capacities)
    pairs = [pair for pair in np.ndindex(count, count) for _ in range(connections[pair])]
    numbers = [carried.transfer(*pair, of_one[pair]) for pair in pairs]  # all take one second
    if numbers:
        assert carried.next_s() == pytest.approx(1.0)
        assert carried.advance(carried.next_s()) == numbers


@settings(max_examples=50)
@given(RATES)
def test_a_sum_alone_takes_what_exact_shares_take(rates):
    nodes, capacities = [Node(f"n{i}") for i in range(len(rates))], Capacities.from_lists(rates, rates)
    carried = Carried(capacities)
    number = carried.sum(range(len(rates)), 1000.0)
    assert carried.next_s() == pytest.approx(bound_s(nodes, 1000.0, capacities))
    assert carried.advance(carried.next_s()) == [number]
    assert carried.next_s() == np.inf


def test_on_equal_links_a_sum_takes_as_long_as_flow_by_flow():
    nodes, capacities = [Node(f"n{i}") for i in range(5)], Capacities.from_lists([7.0] * 5, [7.0] * 5)
    shares = exact(nodes, 1000.0, capacities)[0]
    carried = Carried(capacities)
    carried.sum(range(5), 1000.0)
    assert carried.next_s() == pytest.approx(flow(nodes, capacities, shares).time_s)


def test_a_transfer_has_its_part_of_a_link_beside_a_sum():
    carried = Carried(Capacities.from_lists([70.0] * 4, [70.0] * 4))
    carried.sum(range(4), 1000.0)  # six connections on each link, each way
    transfer = carried.transfer(0, 1, 10.0)
    assert carried.next_s() == pytest.approx(1.0)
    assert carried.advance(1.0) == [transfer]
    # the load is 1000 * 2 * 3 / 4 bytes each way: 60 are there, the rest goes at full rate
    assert carried.next_s() == pytest.approx((1500.0 - 60.0) / 70.0)


def test_two_sums_share_the_links():
    carried = Carried(Capacities.from_lists([10.0] * 4, [10.0] * 4))
    carried.sum(range(4), 100.0)
    alone_s = carried.next_s()
    carried.sum(range(4), 100.0)
    assert carried.next_s() == pytest.approx(2 * alone_s)


def test_a_sum_among_some_leaves_the_others_links_free():
    carried = Carried(Capacities.from_lists([10.0] * 4, [10.0] * 4))
    carried.sum((0, 1), 100.0)
    transfer = carried.transfer(2, 3, 10.0)
    assert carried.next_s() == pytest.approx(1.0)
    assert carried.advance(1.0) == [transfer]


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("caps of pairs", {"pairs": {(0, 1): 0.5}}),
        ("uplinks of sites", {"uplinks": Uplinks(Sites(("east", "east", "west")), [1.0, 1.0], [1.0, 1.0])}),
    ],
)
def test_limits_that_sums_do_not_see_are_refused(what, more):
    with pytest.raises(InputError, match=what):
        Carried(replace(Capacities.from_lists([1.0] * 3, [1.0] * 3), **more))
