import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nalb.planning.nodes import Capacities
from nalb.simulation.sharing import SharedLinks
from tests.planning.strategies import laws, mixed_nodes, networks


def rates_of(capacities, connections, cores=None):
    return SharedLinks(capacities, cores).max_min(np.array(connections, dtype=float))


def test_a_flow_that_is_limited_elsewhere_leaves_its_part_to_the_others():
    capacities = Capacities.from_lists([12, 100, 100, 100], [100, 2, 100, 100])
    connections = np.zeros((4, 4))
    connections[0, 1:] = 1
    np.testing.assert_allclose(rates_of(capacities, connections)[0], [0, 2, 5, 5])


def test_a_cap_of_a_pair_is_shared_by_its_connections():
    capacities = Capacities.from_lists([12, 100, 100], [100, 100, 100], {(0, 1): 4})
    connections = np.zeros((3, 3))
    connections[0, 1], connections[0, 2] = 2, 1
    np.testing.assert_allclose(rates_of(capacities, connections)[0], [0, 2, 8])


def test_what_comes_and_what_goes_shares_the_cores():
    capacities = Capacities.from_lists([12, 100, 100], [100, 100, 100])
    connections = np.array([[0, 1, 0], [0, 0, 2], [0, 0, 0]])
    cores = np.array([np.inf, 9, np.inf])
    np.testing.assert_allclose(rates_of(capacities, connections, cores), [[0, 3, 0], [0, 0, 3], [0, 0, 0]])


@laws
@given(networks(mixed_nodes(), with_pairs=True), st.integers(0, 2**32 - 1), st.floats(0.1, 10))
def test_nothing_is_overfull_and_every_connection_has_a_full_resource_where_none_is_faster(network, seed, part):
    _, capacities = network
    size = len(capacities.up)
    connections = np.random.default_rng(seed).integers(0, 3, (size, size)).astype(float)
    cores = part * np.minimum(capacities.up, capacities.down)
    rate = rates_of(capacities, connections, cores)
    carried = rate * connections
    assert ((rate > 0) == (connections > 0)).all()
    caps = np.full((size, size), np.inf)
    for pair, value in capacities.pairs.items():
        caps[pair] = value
    slack = 1 + 1e-6
    assert (carried.sum(axis=1) <= capacities.up * slack).all()
    assert (carried.sum(axis=0) <= capacities.down * slack).all()
    assert (carried <= caps * slack).all()
    worked = carried.sum(axis=0) + carried.sum(axis=1)
    assert (worked <= cores * slack).all()
    fastest = np.maximum(rate.max(axis=0), rate.max(axis=1))
    for i, j in zip(*np.nonzero(connections), strict=True):
        up_full = carried[i].sum() * slack >= capacities.up[i] and rate[i, j] * slack >= rate[i].max()
        down_full = carried[:, j].sum() * slack >= capacities.down[j] and rate[i, j] * slack >= rate[:, j].max()
        cores_full = any(worked[k] * slack >= cores[k] and rate[i, j] * slack >= fastest[k] for k in (i, j))
        assert up_full or down_full or cores_full or carried[i, j] * slack >= caps[i, j]
