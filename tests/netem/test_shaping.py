"""The numbers for tc: laws over any rates."""

import math

from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.units import mbps_to_bytes_per_s
from netem import shaping
from netem.network import Network
from netem.network_file import parse_network
from netem.network_tables import HIGH_QUEUE_MS, LOW_MBPS, Link, NetworkNode, Site
from netem.shaping import FRAME_BYTES, Impairment

MBPS = st.floats(LOW_MBPS, 34_000)


def network_with(up_mbps: float, caps: list[float], others: int) -> Network:
    """A node n0 with a cap towards each of the first others."""
    nodes = tuple(NetworkNode(up_mbps, up_mbps, name=f"n{index}") for index in range(1 + len(caps) + others))
    links = tuple(Link("n0", f"n{index + 1}", cap, 0, 0, 0) for index, cap in enumerate(caps))
    return Network("net", nodes, links, (), None)


def uplink_of(network: Network) -> shaping.Egress:
    rates = {node.name: (node.up_mbps or 0, node.down_mbps or 0) for node in network.nodes}
    caps = {(link.src, link.dst): link.mbps for link in network.links}
    return shaping.uplink(network, network.nodes[0], rates, caps)


@given(MBPS)
def test_the_longest_queue_of_a_file_fits_tcs_32_bits(mbps: float):
    text = 'name="n"\ndefaults={{up_mbps={0},down_mbps={0},queue_ms={1}}}\n[[nodes]]\nname="a"\n[[nodes]]\nname="b"\n'
    try:
        queue_ms = HIGH_QUEUE_MS
        parse_network(text.format(mbps, queue_ms), "x")
    except InputError as error:
        queue_ms = float(str(error).split()[-2])
        parse_network(text.format(mbps, queue_ms), "x")
    assert shaping.burst_bytes(mbps) <= shaping.queue_bytes(mbps, queue_ms) < 2**32


@given(MBPS, st.lists(MBPS, min_size=1, max_size=6), st.integers(0, 5))
def test_leaves_share_the_uplink_and_respect_the_caps(up_mbps: float, caps: list[float], others: int):
    egress = uplink_of(network_with(up_mbps, caps, others))
    *capped, rest = egress.leaves
    assert [leaf.destination for leaf in capped] == [f"n{index + 1}" for index in range(len(caps))]
    for leaf, cap in zip(capped, caps, strict=True):
        assert leaf.ceiling_mbps == min(cap, up_mbps)
        assert leaf.guaranteed_mbps <= leaf.ceiling_mbps
    assert rest.destination is None
    assert rest.ceiling_mbps == up_mbps
    total = sum(leaf.guaranteed_mbps for leaf in egress.leaves)
    assert total <= up_mbps * 1.011 + shaping.LOW_GUARANTEE_MBPS
    if others:
        assert math.isclose(total, up_mbps)
    for leaf in egress.leaves:
        assert leaf.burst_bytes / mbps_to_bytes_per_s(leaf.guaranteed_mbps) < 2**32 * 64e-9, "as tc counts it"
        assert leaf.quantum_bytes >= FRAME_BYTES
        assert leaf.queue_bytes > FRAME_BYTES


@given(MBPS, st.floats(1, 10_000))
def test_queue_and_burst_hold_packets_and_follow_the_rate(mbps: float, queue_ms: float):
    assert shaping.burst_bytes(mbps) >= FRAME_BYTES
    queued = shaping.queue_bytes(mbps, queue_ms)
    assert queued >= shaping.MIN_QUEUE_BYTES
    if queued > shaping.MIN_QUEUE_BYTES:
        assert math.isclose(queued / mbps_to_bytes_per_s(mbps) * 1000, queue_ms, rel_tol=1e-3)


def test_a_plain_node_has_a_bucket():
    egress = uplink_of(network_with(100, [], 1))
    assert egress == shaping.Egress(100, 12_500, 625_000, None, ())
    assert shaping.needed_qdiscs(network_with(100, [], 1)) == ("tbf",)
    assert shaping.needed_qdiscs(network_with(100, [5], 1)) == ("tbf", "htb", "bfifo")


def test_impairments_of_node_and_link_add_up():
    nodes = (NetworkNode(10, 10, 50, 5, 1, 10, name="n0"), NetworkNode(10, 10, name="n1"))
    network = Network("net", nodes, (Link("n0", "n1", 1, 20, 2, 50),), (), None)
    egress = uplink_of(network)
    assert [leaf.impairment for leaf in egress.leaves] == [Impairment(25, 3, 55), Impairment(5, 1, 10)]
    assert egress.impairment is None
    assert egress.impairments == {"n1": Impairment(25, 3, 55), None: Impairment(5, 1, 10)}
    assert set(egress.unimpaired.impairments.values()) == {None}
    assert [shaping.is_impaired(network, node) for node in nodes] == [True, False]
    assert shaping.downlink(nodes[1], {"n1": (1, 1)}).impairment is None


def test_bunches_fit_the_uplink_of_the_site_too():
    sites = (Site(60, 100, 70, 20, 2, 1, name="s"),)
    nodes = tuple(NetworkNode(400, 400, name=f"n{index}", site="s" if index else None) for index in range(3))
    network = Network("net", nodes, sites=sites)
    fast, slow = shaping.MOST_SEGMENTS, shaping.FEW_SEGMENTS
    assert shaping.segments_at_once(network) == [[fast, 8, 8], [slow] * 3, [slow] * 3], "8 pass the site's downlink"
    rates = {"s": (60.0, 100.0)}
    assert shaping.uplink(network, sites[0], rates, {}) == shaping.Egress(60, 7570, 525_000, Impairment(20, 2, 1), ())
    assert shaping.downlink(sites[0], rates) == shaping.Egress(100, 12_500, 875_000, Impairment(20, 2, 1), ())
    assert shaping.is_impaired(network, sites[0])
