"""An uplink that nobody declared is noticed; machines with links of their own raise no alarm."""

import numpy as np
import pytest

from nalb.measurement.samples import samples_of
from nalb.measurement.shared_uplinks import JUDGED_ITERATIONS, SharedUplink, SharedUplinkSearch, sides
from nalb.measurement.traffic import Traffic
from nalb.planning.nodes import Capacities, Node
from nalb.planning.slices import Tensor
from nalb.simulation.families import draw_network
from nalb.simulation.job import by_planner, planner_of
from nalb.simulation.noise import Noise
from tests.planning.test_levels import by_sites

TENSORS = [Tensor("w", 1_600_000, "float32")]


def noticed(
    nodes: list[Node], capacities: Capacities, seed: int, iterations: int = 2 * JUDGED_ITERATIONS
) -> list[SharedUplink]:
    """What iterations of a job without sites show, with noise."""
    planner, search = planner_of(nodes, TENSORS, 4000.0), SharedUplinkSearch(len(nodes))
    found = []
    for k in range(iterations):
        (done,) = by_planner("exact", nodes, planner.layout, capacities, 1, planner, noise=Noise((seed, k)))
        found += search.search(Traffic(done.samples))
    return found


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("sizes", "up", "lan", "nodes"),
    [
        ([3, 3], [60, 100], [400] * 6, (0, 1, 2)),
        ([2, 2], [60, 100], [400] * 4, (0, 1)),
        ([1, 3, 1], [150, 50, 100], [150, 400, 400, 400, 100], (0, 4)),  # on either side of the same link
    ],
)
def test_a_shared_uplink_is_noticed_within_ten_iterations(
    sizes: list[int], up: list[float], lan: list[float], nodes: tuple[int, ...]
) -> None:
    for seed in (1, 2):
        found = noticed(*by_sites(sizes, up, lan), seed)
        assert nodes in [one.nodes for one in found]
        for one in found:
            assert 0.85 * min(up) < one.up / 125_000 < 1.05 * min(up)


@pytest.mark.jobs
@pytest.mark.parametrize("family", ["even", "near", "heavy", "asymmetric", "adsl", "capped"])
def test_links_of_their_own_raise_no_alarm(family: str) -> None:
    for seed in (1, 2):
        network = draw_network(family, 4 + seed, seed)
        assert noticed(list(network.nodes), network.capacities, seed, JUDGED_ITERATIONS) == []


def test_slow_crossings_that_add_up_are_no_shared_uplink() -> None:
    """Two regions with slow connections between them: sides that look like sites, but each connection that joins adds its own."""
    search = SharedUplinkSearch(4)
    assert [search.search(alternating(number)) for number in range(2 * JUDGED_ITERATIONS)] == [[]] * (
        2 * JUDGED_ITERATIONS
    )


def alternating(seed: int) -> Traffic:
    """Every pair sends at a rate of its own, 1 MB/s between the sides and 20 within, at times of its own."""
    source, rows = np.random.default_rng(seed), []
    for i in range(4):
        for j in range(4):
            if i == j:
                continue
            speed = 1e6 if (i < 2) != (j < 2) else 20e6
            start_s = 0.0
            while (start_s := start_s + source.exponential(0.3)) < 9.0:
                took_s = source.uniform(0.5, 1.0)
                rows.append((i, j, int(speed * took_s), start_s, start_s + took_s, True))
                start_s += took_s
    return Traffic(samples_of(rows))


def test_sides_are_the_sets_that_fast_pairs_join() -> None:
    speeds = np.ones((5, 5))
    speeds[:2, :2] = speeds[2:, 2:] = 9.0
    assert [np.flatnonzero(side).tolist() for side in sides(speeds)] == [[0, 1], [2, 3]]
