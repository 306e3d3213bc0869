"""What headers and acknowledgements leave of links."""

import numpy as np
import pytest

from nalb.planning.goodput import goodput_capacities, goodput_part
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import bound_s, exact
from nalb.planning.sites import Sites, Uplinks


def test_a_link_carries_both_its_data_and_acknowledgements():
    """1,448 bytes of data each way, by counting what one way carries."""
    header_bytes = 14 + 20 + 32  # Ethernet, IPv4, TCP with timestamps
    for segments_per_ack in (1, 2, 4, 16):
        carried = 16 * (1448 + header_bytes) + 16 / segments_per_ack * header_bytes
        assert goodput_part(segments_per_ack) == pytest.approx(16 * 1448 / carried)


def test_each_direction_pays_for_the_acknowledgements_of_the_other():
    capacities = Capacities.from_lists([10e6, 20e6, 30e6], [40e6, 50e6, 60e6], {(0, 1): 7e6})
    at_once = np.array([[0, 2, 8], [4, 0, 16], [3, 5, 0]])
    left = goodput_capacities(capacities, at_once)
    assert list(left.up) == pytest.approx([10e6 * goodput_part(4), 20e6 * goodput_part(5), 30e6 * goodput_part(16)])
    assert list(left.down) == pytest.approx([40e6 * goodput_part(8), 50e6 * goodput_part(16), 60e6 * goodput_part(5)])
    assert left.pairs == {(0, 1): pytest.approx(7e6 * goodput_part(4))}


def test_a_node_alone_has_nobody_to_acknowledge():
    assert goodput_capacities(Capacities.from_lists([1e6], [1e6]), np.zeros((1, 1))).up[0] > 0


def test_alike_acknowledgements_move_no_share_and_lengthen_every_bound_alike():
    """What the report rests on where a network changes: there bunches are alike everywhere."""
    nodes = [Node("a"), Node("b"), Node("w", is_server=False), Node("c")]
    rates = [20e6, 5e6, 12e6, 9e6]
    for pairs in ({}, {(0, 1): 2e6}):
        capacities = Capacities.from_lists(rates, rates, pairs)
        left = goodput_capacities(capacities, np.full((4, 4), 4))
        assert bound_s(nodes, 1e7, left) == pytest.approx(bound_s(nodes, 1e7, capacities) / goodput_part(4))
        assert exact(nodes, 1e7, left)[0] == pytest.approx(exact(nodes, 1e7, capacities)[0], rel=1e-4)


def test_uplinks_lose_what_the_links_of_their_machines_lose() -> None:
    sites = Sites(("a", "a", "b"))
    rates = np.full(3, 1e6)
    capacities = Capacities(rates, rates, {}, None, Uplinks(sites, np.array([3e5, np.inf]), np.array([2e5, np.inf])))
    left = goodput_capacities(capacities, np.full((3, 3), 2))
    assert left.uplinks is not None
    assert left.uplinks.up == pytest.approx([3e5 * goodput_part(2), np.inf])
    assert left.uplinks.down == pytest.approx([2e5 * goodput_part(2), np.inf])
