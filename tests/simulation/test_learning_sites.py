"""Networks of sites: from whatever another network taught, plans come to the true optimum of both levels."""

from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nalb.measurement.estimators import ESTIMATORS
from nalb.planning.nodes import Capacities, Node
from nalb.planning.slices import Tensor
from nalb.simulation.job import by_planner, by_slices, planner_of, windows_of
from nalb.simulation.noise import Noise
from tests.planning.test_levels import by_sites

pytestmark = pytest.mark.jobs

TENSORS = [Tensor("w", 3_200_000, "float32")]
ALPHA_BYTES = 4000.0  # fewer, larger slices: a simulation takes a fifth of the time
WRONG, LEARNING, COUNTED = 4, 9, 4  # iterations on another network; of this one that do not count; that do
NEAR = 1.10  # times what true capacities give

GEO2X3 = by_sites([3, 3], [60, 100], [400] * 6)
GEO3X4 = by_sites([4, 4, 4], [60, 90, 120], [400] * 12)


def drawn(seed: int, sizes: list[int]) -> tuple[list[Node], Capacities]:
    """Uplinks of 20 to 220 Mbit/s, machines of 100 to 1,000."""
    source = np.random.default_rng(seed)
    up, lan = source.uniform(20, 220, len(sizes)), 10 ** source.uniform(2, 3, sum(sizes))
    return by_sites(sizes, up.tolist(), lan.tolist())


def over_truth(network: tuple[list[Node], Capacities], taught: Capacities | None, noise: Noise | None = None) -> float:
    """The median of what counts, over the time of shares from true capacities, with the usual window."""
    nodes, true = network
    planner = planner_of(nodes, TENSORS, ALPHA_BYTES, sites=true.sites)
    layout = planner.layout
    windows = windows_of(layout, nodes, true)
    if taught is not None:
        by_planner("exact", nodes, layout, taught, WRONG, planner)
    done = by_planner("exact", nodes, layout, true, LEARNING + COUNTED, planner, noise=noise)
    best = by_slices("exact", nodes, layout, true, 1, windows, noise=noise)[0]
    return median(one.time_s for one in done[LEARNING:]) / best.time_s


@pytest.mark.parametrize("network", [GEO2X3, GEO3X4], ids=["geo2x3", "geo3x4"])
def test_what_other_uplinks_taught_is_unlearnt(network: tuple[list[Node], Capacities]) -> None:
    sizes = [len(members) for members in network[1].uplinks.sites.members]  # type: ignore[union-attr]
    assert over_truth(network, drawn(1, sizes)[1]) <= NEAR


@settings(max_examples=2)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 3), min_size=2, max_size=3).filter(lambda sizes: max(sizes) > 1),
)
def test_drawn_networks_of_sites_are_learnt(seed: int, sizes: list[int]) -> None:
    assert over_truth(drawn(seed, sizes), drawn(seed + 1, sizes)[1]) <= NEAR


def test_a_halved_uplink_is_followed_within_two_iterations() -> None:
    before = by_sites([2, 2, 2], [60, 90, 120], [400] * 6)
    nodes, after = by_sites([2, 2, 2], [60, 45, 120], [400] * 6)
    planner = planner_of(nodes, TENSORS, ALPHA_BYTES, sites=after.sites)
    by_planner("exact", nodes, planner.layout, before[1], 10, planner)
    done = by_planner("exact", nodes, planner.layout, after, 5, planner)
    windows = windows_of(planner.layout, nodes, after)
    best = by_slices("exact", nodes, planner.layout, after, 1, windows)[0]
    assert done[0].time_s > 1.2 * best.time_s
    assert max(one.time_s for one in done[2:]) < NEAR * best.time_s


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_any_estimator_learns_uplinks(estimator: str) -> None:
    nodes, true = GEO2X3
    planner = planner_of(nodes, TENSORS, ALPHA_BYTES, new_estimator=ESTIMATORS[estimator], sites=true.sites)
    done = by_planner("exact", nodes, planner.layout, true, 6, planner)
    equal = by_slices("average", nodes, planner.layout, true, 1, 2e6)[0]
    assert done[-1].time_s < 0.95 * equal.time_s
