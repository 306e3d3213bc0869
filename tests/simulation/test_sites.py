"""Sums of two levels, simulated: what links carry, and that uplinks are shared by max-min fairness."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.levels import lan_load_bytes, uplink_load_bytes
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import bound_s, exact
from nalb.planning.sites import Sites, Uplinks
from nalb.simulation.exchange import MessageWeight, exchange
from nalb.simulation.flows import flow
from nalb.simulation.job import by_slices
from nalb.simulation.noise import Noise
from nalb.simulation.sharing import SharedLinks
from tests.planning.strategies import laws, simple_layout
from tests.planning.test_levels import by_sites, networks_of_sites

PLAIN = MessageWeight()


@laws
@given(networks_of_sites(), st.integers(0, 2**32 - 1))
def test_every_connection_is_among_the_fastest_of_a_full_link(
    network: tuple[list[Node], Capacities], seed: int
) -> None:
    _, capacities = network
    uplinks = capacities.uplinks
    assert uplinks is not None
    site, count = np.array(uplinks.sites.of_node), len(capacities.up)
    connections = np.random.default_rng(seed).integers(0, 3, (count, count)).astype(float)
    np.fill_diagonal(connections, 0)
    rates = SharedLinks(capacities).max_min(connections)
    carried, leaves = rates * connections, site[:, np.newaxis] != site
    ways = [(capacities.up[i], np.arange(count)[:, np.newaxis] == i) for i in range(count)]
    ways += [(capacities.down[i], np.arange(count) == i) for i in range(count)]
    ways += [(uplinks.up[s], (site[:, np.newaxis] == s) & leaves) for s in range(uplinks.sites.count)]
    ways += [(uplinks.down[s], (site == s) & leaves) for s in range(uplinks.sites.count)]
    explained = np.zeros((count, count), dtype=bool)
    for full, which in ways:
        on_it = which & (connections > 0)
        assert carried[on_it].sum() <= full * (1 + 1e-6)
        if on_it.any() and carried[on_it].sum() >= full * (1 - 1e-6):
            explained |= on_it & (rates >= rates[on_it].max() * (1 - 1e-6))
    assert explained[connections > 0].all()


@pytest.mark.jobs
@laws
@given(networks_of_sites(), st.integers(1000, 60_000), st.sampled_from([0, 50_000]))
def test_links_carry_the_loads_and_never_beat_the_bound(
    network: tuple[list[Node], Capacities], elements: int, window_bytes: int
) -> None:
    nodes, capacities = network
    assert capacities.uplinks is not None
    sites, layout = capacities.uplinks.sites, simple_layout(elements, len(nodes))
    result = by_slices("exact", nodes, layout, capacities, 1, window_bytes, PLAIN)[0]
    assert result.time_s >= bound_s(nodes, layout.model_bytes, capacities) * (1 - 1e-6)
    assert (result.finish_s > 0).all()
    site = np.array(sites.of_node)
    leaves = result.link_bytes * (site[:, np.newaxis] != site)
    owned, _ = exact(nodes, layout.model_bytes, capacities)
    total = uplink_load_bytes(sites, owned, layout.model_bytes).sum()
    assert leaves.sum() == pytest.approx(total)
    led = np.zeros(len(nodes))
    for members in sites.members:
        led[members[0]] = layout.model_bytes  # whoever leads: all LANs together carry the same
    assert result.link_bytes.sum() == pytest.approx(lan_load_bytes(sites, owned, led, layout.model_bytes)[0].sum())
    assert result.samples["size_bytes"].sum() == pytest.approx(result.link_bytes.sum())


def test_two_levels_are_three_times_faster_than_one_behind_two_uplinks() -> None:
    nodes, capacities = by_sites([3, 3], [60, 100], [400] * 6)
    layout = simple_layout(3_200_000, 6)
    by_site = by_slices("exact", nodes, layout, capacities, 1, 2e6, PLAIN)[0].time_s
    assert by_site < 1.1 * bound_s(nodes, layout.model_bytes, capacities)
    owner, _ = exact(nodes, layout.model_bytes, Capacities(capacities.up, capacities.down, {}))
    servers = np.arange(len(layout.slices)) % 6
    assert owner == pytest.approx(np.full(6, layout.model_bytes / 6))
    assert exchange(nodes, capacities, layout.sizes_bytes, servers, 2e6, PLAIN).time_s > 2.5 * by_site


def test_noise_blurs_two_levels_by_seed() -> None:
    nodes, capacities = by_sites([2, 1, 2], [60, 100, 80], [400, 400, 100, 300, 300])
    layout = simple_layout(400_000, 5)
    runs = [by_slices("exact", nodes, layout, capacities, 1, 0, noise=Noise((seed,)))[0] for seed in (1, 1, 2)]
    assert runs[0].time_s == runs[1].time_s != runs[2].time_s
    assert runs[0].time_s < 1.3 * by_slices("exact", nodes, layout, capacities, 1, 0)[0].time_s


def test_one_machine_per_site_is_the_star_without_sites() -> None:
    """Two levels of lone machines cannot be asked for: then each node's own link is all that there is."""
    with pytest.raises(InputError, match="without levels"):
        Capacities(np.ones(3), np.ones(3), {}, None, Uplinks(Sites(("a", "b", "c")), np.ones(3), np.ones(3)))


def test_flows_refuse_sites() -> None:
    nodes, capacities = by_sites([2, 1], [60, 100], [400] * 3)
    with pytest.raises(InputError, match="know no uplinks"):
        flow(nodes, capacities, np.full(3, 1e6))
