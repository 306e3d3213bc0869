import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.launch.network import configured_capacities
from nalb.simulation.families import FAMILIES, HIGH_SEED, LAST_CHANGE_S, draw_network, network_text
from nalb.units import bytes_per_s_to_mbps
from netem.network_file import parse_network
from netem.schedule import quotas_at, timed_changes
from tests.planning.strategies import laws

PRINTED = 0.00501  # Mbit/s: half of the last digit, and rounding
RANGES = {  # family -> (low, high) Mbit/s up, the same down
    "even": ((20, 220), (20, 220)),
    "near": ((150, 220), (150, 220)),
    "heavy": ((10, 1000), (10, 1000)),
    "asymmetric": ((20, 220), (20, 220)),
    "adsl": ((0.15 * 50, 220), (50, 220)),
    "capped": ((60, 220), (60, 220)),
    "changing": ((20, 220), (20, 220)),
    "roles": ((20, 220), (20, 220)),
    "shared-cores": ((20, 220), (20, 220)),
    "sites": ((400, 400), (400, 400)),
}
APART = ("asymmetric", "adsl", "capped")  # families whose nodes have two rates

counts = st.integers(3, 16)
seeds = st.integers(0, HIGH_SEED)
families = st.sampled_from(FAMILIES)


def draw(family, count, seed, scale=1.0):
    return draw_network(family, count, seed, scale, cores=2.0)


def mbps(rates_bytes_per_s):
    return bytes_per_s_to_mbps(np.asarray(rates_bytes_per_s))


def described(network):
    carried = [(0.0, network.capacities), *network.changes]
    rows = [(at_s, c.up.tolist(), c.down.tolist(), sorted(c.pairs.items())) for at_s, c in carried]
    return network.name, network.command, network.nodes, rows, network.quotas, shared(network.capacities)


def shared(capacities):
    """The sites and their links; None where there are none."""
    links = capacities.uplinks
    return links and (links.sites, links.up.tolist(), links.down.tolist())


def test_each_family_has_its_ranges():
    assert set(RANGES) == set(FAMILIES)


@laws
@given(families, counts, seeds, st.sampled_from([0.05, 0.3, 1.0, 10.0]))
def test_rates_lie_in_the_familys_range_times_the_scale(family, count, seed, scale):
    network = draw(family, count, seed, scale)
    assert [node.name for node in network.nodes] == [f"n{i}" for i in range(count)]
    for _, carried in [(0.0, network.capacities), *network.changes]:
        for rates, (low, high) in zip((carried.up, carried.down), RANGES[family], strict=True):
            assert len(rates) == count
            assert np.all(mbps(rates) >= scale * low - PRINTED)
            assert np.all(mbps(rates) <= scale * high + PRINTED)
            assert mbps(rates) == pytest.approx(np.round(mbps(rates), 2), rel=1e-12)
        if family not in APART:
            assert np.array_equal(carried.up, carried.down)
        else:
            assert not np.array_equal(carried.up, carried.down)


@laws
@given(families, counts, seeds)
def test_same_arguments_same_network_and_another_seed_another(family, count, seed):
    assert described(draw(family, count, seed)) == described(draw(family, count, seed))
    assert described(draw(family, count, seed))[2:] != described(draw(family, count, (seed + 1) % HIGH_SEED))[2:]


@laws
@given(families, counts, seeds)
def test_only_the_family_that_is_named_for_it_has_pairs_changes_roles_quotas_or_sites(family, count, seed):
    network = draw(family, count, seed)
    assert bool(network.capacities.pairs) == (family == "capped")
    assert bool(network.changes) == (family == "changing")
    assert all(node.is_worker and node.is_server for node in network.nodes) == (family != "roles")
    assert (network.quotas is not None) == (family == "shared-cores")
    assert (network.capacities.uplinks is not None) == (family == "sites")


@laws
@given(counts, seeds, st.sampled_from([0.05, 1.0, 10.0]))
def test_sites_have_two_to_four_machines_and_links_of_an_even_network(count, seed, scale):
    links = draw("sites", count, seed, scale).capacities.uplinks
    *whole, last = [len(members) for members in links.sites.members]
    assert whole, "two sites at least"
    assert all(2 <= machines <= 4 for machines in whole)
    assert 1 <= last <= 4
    assert links.sites.of_node == tuple(sorted(links.sites.of_node)), "neighbours stand together"
    assert links.up.tolist() == links.down.tolist()
    assert np.all(mbps(links.up) >= scale * 20 - PRINTED)
    assert np.all(mbps(links.up) <= scale * 220 + PRINTED)


@laws
@given(counts, seeds)
def test_adsl_uplinks_are_a_part_of_the_downlinks(count, seed):
    carried = draw("adsl", count, seed).capacities
    assert np.all(mbps(carried.up) <= mbps(carried.down) + PRINTED)
    assert np.all(mbps(carried.up) >= 0.15 * mbps(carried.down) - PRINTED)


@laws
@given(st.integers(2, 16), seeds)
def test_one_to_three_pairs_are_capped_below_both_ends(count, seed):
    carried = draw("capped", count, seed).capacities
    assert 1 <= len(carried.pairs) <= 3
    for (i, j), cap in carried.pairs.items():
        slower = min(carried.up[i], carried.down[j])
        assert mbps(0.1 * slower) - PRINTED <= mbps(cap) <= mbps(0.6 * slower) + 2 * PRINTED
        assert cap < slower


@laws
@given(counts, seeds)
def test_changes_come_every_20_to_60_s_and_move_all_nodes_or_one_by_two(count, seed):
    network = draw("changing", count, seed)
    times_s = [0.0, *(at_s for at_s, _ in network.changes)]
    steps_s = np.diff(times_s)
    assert steps_s.min() >= 20
    assert steps_s.max() <= 60
    assert LAST_CHANGE_S - 60 <= times_s[-1] <= LAST_CHANGE_S
    before = network.capacities
    kinds = set()
    for _, after in network.changes:
        moved = np.flatnonzero(before.up != after.up)
        if len(moved) == 1:
            ratio = after.up[moved[0]] / before.up[moved[0]]
            kinds.add(round(ratio, 2))
            assert ratio == pytest.approx(2, rel=1e-3) or ratio == pytest.approx(0.5, rel=1e-3)
        else:
            kinds.add("all")
            assert len(moved) >= count - 1  # one may have drawn the same to 0.01 Mbit/s
        before = after
    assert {"all", 0.5, 2.0} <= kinds


@laws
@given(counts, seeds)
def test_roles_has_a_worker_a_server_and_a_node_that_is_both(count, seed):
    kinds = [(node.is_worker, node.is_server) for node in draw("roles", count, seed).nodes]
    assert {(True, False), (False, True), (True, True)} == set(kinds)


@laws
@given(st.integers(2, 16), seeds, st.sampled_from([1.0, 2.0, 64.0]))
def test_quotas_share_the_cores(count, seed, cores):
    quotas = draw_network("shared-cores", count, seed, cores=cores).quotas
    assert len(quotas) == count
    assert cores / 2 - 0.001 * count <= sum(quotas) <= cores
    assert min(quotas) >= 0.01
    assert max(quotas) - 0.001 <= 5 * (min(quotas) + 0.001)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("odd", 4, 1), "family 'odd' is unknown: choose one of even, near"),
        (("even", 1, 1), "family even of 1 nodes: give 2 to 200"),
        (("roles", 2, 1), "family roles of 2 nodes: give 3 to 200"),
        (("sites", 2, 1), "family sites of 2 nodes: give 3 to 200"),
        (("even", 201, 1), "family even of 201 nodes"),
        (("even", 4, -1), "seed -1: give a whole number from 0"),
        (("even", 4, HIGH_SEED + 1), "seed 100000000"),
        (("even", 4, 1, 0.0), "scale 0: give 0.01 to 34"),
        (("even", 4, 1, float("nan")), "scale nan"),
        (("shared-cores", 4, 1), "on None cores: give how many the nodes share"),
        (("shared-cores", 4, 1, 1.0, 1e6), "on 1000000.0 cores: give how many the nodes share, at most 1024"),
        (("shared-cores", 4, 1, 1.0, 0.0), "on 0.0 cores"),
        (("shared-cores", 200, 1, 1.0, 1.0), "of 200 nodes on 1 cores: a node gets 0.00"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(arguments, message):
    with pytest.raises(InputError) as caught:
        draw_network(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@laws
@given(families, counts, seeds, st.sampled_from([0.01, 0.3, 1.0, 34.0]))
def test_the_printed_file_is_the_drawn_network(family, count, seed, scale):
    network = draw(family, count, seed, scale)
    read = parse_network(network_text(network), "drawn.toml")
    assert read.name == network.name
    assert [(node.name, node.is_worker, node.is_server) for node in read.nodes] == [
        (node.name, node.is_worker, node.is_server) for node in network.nodes
    ]
    assert [change.at_s for change in timed_changes(read)] == [at_s for at_s, _ in network.changes]
    for at_s, carried in [(0.0, network.capacities), *network.changes]:
        told = configured_capacities(read, at_s)
        assert (told.up.tolist(), told.down.tolist(), told.pairs) == (
            carried.up.tolist(), carried.down.tolist(), carried.pairs,
        )  # fmt: skip
        assert shared(told) == shared(carried)
    assert list(quotas_at(read, 0.0).values()) == list(network.quotas or [None] * count)


@pytest.mark.parametrize("count", [150, 199, 200])
def test_no_more_sites_are_drawn_than_a_file_may_have(count):
    for seed in range(20):
        assert len(parse_network(network_text(draw("sites", count, seed)), "drawn.toml").sites) <= 50


def test_a_seed_means_the_same_file_for_ever():
    assert (
        network_text(draw_network("capped", 4, 7))
        == """\
# nalb net random --family capped --nodes 4 --seed 7
name = "capped-7"
nodes = [
    { name = "n0", up_mbps = 149.68, down_mbps = 148.55 },
    { name = "n1", up_mbps = 127.45, down_mbps = 81.32 },
    { name = "n2", up_mbps = 82.2, down_mbps = 154.05 },
    { name = "n3", up_mbps = 171.82, down_mbps = 161.85 },
]
links = [
    { src = "n0", dst = "n3", mbps = 31.47 },
]
"""
    )
    assert (
        network_text(draw_network("roles", 3, 12_345_678, scale=0.3))
        == """\
# nalb net random --family roles --nodes 3 --seed 12345678 --scale 0.3
name = "roles-12345678"
nodes = [
    { name = "n0", up_mbps = 60.61, down_mbps = 60.61 },
    { name = "n1", up_mbps = 35.91, down_mbps = 35.91, server = false },
    { name = "n2", up_mbps = 63.51, down_mbps = 63.51, worker = false },
]
"""
    )
    assert (
        network_text(draw_network("shared-cores", 2, 1, cores=2.0))
        == """\
# nalb net random --family shared-cores --nodes 2 --seed 1 --cores 2.0
name = "shared-cores-1"
nodes = [
    { name = "n0", up_mbps = 77.67, down_mbps = 77.67, cpu_quota = 0.454 },
    { name = "n1", up_mbps = 82.01, down_mbps = 82.01, cpu_quota = 0.943 },
]
"""
    )
    assert (
        network_text(draw_network("sites", 3, 1, scale=0.3))
        == """\
# nalb net random --family sites --nodes 3 --seed 1 --scale 0.3
name = "sites-1"
sites = [
    { name = "s0", up_mbps = 44.74, down_mbps = 44.74 },
    { name = "s1", up_mbps = 61.56, down_mbps = 61.56 },
]
nodes = [
    { name = "n0", up_mbps = 120.0, down_mbps = 120.0, site = "s0" },
    { name = "n1", up_mbps = 120.0, down_mbps = 120.0, site = "s0" },
    { name = "n2", up_mbps = 120.0, down_mbps = 120.0, site = "s1" },
]
"""
    )
    heavy, changing = (network_text(draw_network(family, 2, 1)).splitlines() for family in ("heavy", "changing"))
    assert heavy[4] == '    { name = "n1", up_mbps = 167.67, down_mbps = 167.67 },'
    assert changing[7] == '    { at_s = 26.3, node = "n0", up_mbps = 107.69, down_mbps = 107.69 },'
