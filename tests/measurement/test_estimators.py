"""Estimators against traffic whose rates are known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from nalb.measurement.estimators import CapacityEstimator, PaperEstimator
from nalb.measurement.evidence import evidence
from nalb.measurement.rules import RULES
from nalb.measurement.samples import samples_of
from nalb.measurement.traffic import Traffic
from nalb.planning.nodes import Capacities, Node, completion_s
from nalb.planning.shares import bound_s, pairwise
from nalb.simulation.exchange import MessageWeight, exchange


class LinkSample(NamedTuple):
    """A message, as SAMPLE has it."""

    source: int
    target: int
    size_bytes: int
    start_s: float
    end_s: float
    is_push: bool = True


def traffic_of(samples):
    return Traffic(samples_of(samples))


def stream(source, target, rate, start_s, span_s, size=50_000, is_push=True):
    """Messages of one connection that flows at `rate` bytes/s from start_s on."""
    each_s = size / rate
    return [
        LinkSample(source, target, size, start_s + k * each_s, start_s + (k + 1) * each_s, is_push)
        for k in range(int(span_s / each_s))
    ]


def test_the_paper_adds_up_a_nodes_link_means():
    paper = PaperEstimator(3)
    paper.observe(
        traffic_of(
            stream(0, 1, 4e6, 0, 1) + stream(0, 2, 2e6, 0, 1) + stream(1, 0, 1e6, 0, 1) + stream(2, 1, 1e6, 0, 1)
        )
    )
    estimate = paper.estimate()
    assert estimate.up == pytest.approx([6e6, 1e6, 1e6])
    assert estimate.down == pytest.approx([1e6, 5e6, 2e6])


def test_pushes_and_answers_of_a_pair_are_two_connections():
    paper = PaperEstimator(2)
    paper.observe(traffic_of(stream(0, 1, 3e6, 0, 1) + stream(0, 1, 2e6, 0, 1, is_push=False)))
    assert paper.estimate().up[0] == pytest.approx(5e6)


def recorded(iteration):
    """Messages of 0.2 s of an iteration on wan6-static (MobileNet), as receivers read them on a busy machine."""
    rows = json.loads((Path(__file__).parent / "wan6_messages.json").read_text())[iteration]
    return [LinkSample(i, j, size, a * 1e-6, b * 1e-6, bool(push)) for i, j, push, size, a, b in rows]


WAN6 = np.array([220, 150, 100, 180, 60, 200]) / 8e-6  # bytes/s, up and down


@pytest.mark.parametrize("iteration", ["equal shares", "shares of a plan"])
def test_messages_that_were_read_together_do_not_outweigh_the_others_of_their_link(iteration):
    """Single messages seem to come at 10 Gbit/s and more, and lift a mean of rates a hundred times above the links."""
    messages = recorded(iteration)
    assert max(one.size_bytes / (one.end_s - one.start_s) for one in messages) > 100 * WAN6.max()
    paper = PaperEstimator(6)
    paper.observe(traffic_of(messages))
    estimate = paper.estimate()
    assert estimate.up == pytest.approx(WAN6, rel=0.25)
    nodes, model_bytes = [Node(f"n{i}") for i in range(6)], 12.9e6
    shares = pairwise(nodes, model_bytes, Capacities.from_lists(estimate.up, estimate.down))
    true = Capacities.from_lists(WAN6, WAN6)
    assert completion_s(nodes, shares, model_bytes, true) < 1.15 * bound_s(nodes, model_bytes, true)


def test_what_was_read_at_once_after_a_pause_says_nothing_of_its_link():
    paper = PaperEstimator(2)
    slow = stream(0, 1, 4e6, 0, 1)
    at_once = [LinkSample(0, 1, 50_000, 2.0, 2.00001)]
    paper.observe(traffic_of(slow + at_once))
    assert paper.estimate().up[0] == pytest.approx(4e6)
    paper.observe(traffic_of(at_once))
    assert paper.estimate().up[0] == pytest.approx(4e6)


def test_messages_that_are_read_right_after_another_belong_to_its_time():
    paper = PaperEstimator(2)
    first = LinkSample(0, 1, 50_000, 0.0, 0.1)
    paper.observe(
        traffic_of([first, LinkSample(0, 1, 50_000, 0.10001, 0.10002), LinkSample(0, 1, 50_000, 0.1001, 0.2)])
    )
    assert paper.estimate().up[0] == pytest.approx(150_000 / 0.2)


def test_the_newest_records_of_a_link_weigh_most():
    paper = PaperEstimator(2)
    for iteration in range(6):
        paper.observe(traffic_of(stream(0, 1, 2e6, iteration, 1)))
    for iteration in range(6):
        paper.observe(traffic_of(stream(0, 1, 8e6, 10 + iteration, 1)))
    assert paper.estimate().up[0] == pytest.approx(8e6, rel=0.03)


def test_a_node_never_seen_is_unknown():
    for estimator in (PaperEstimator(3), CapacityEstimator(3)):
        assert not estimator.estimate().complete
        estimator.observe(traffic_of(stream(0, 1, 4e6, 0, 1)))
        estimate = estimator.estimate()
        assert np.isnan(estimate.up[2])
        assert not estimate.complete
        assert estimate.least[0, 0] == pytest.approx(4e6, rel=0.02)


def test_what_travelled_since_a_moment_has_the_rest_of_the_bytes():
    late = traffic_of([LinkSample(0, 1, 1000, 0.0, 1.0), LinkSample(1, 0, 3000, 1.0, 4.0)]).since(2.0)
    assert late.size_bytes.tolist() == [2000]
    assert (late.first_s, late.last_s) == (2.0, 4.0)


def test_a_message_that_took_no_time_counts_whole_in_what_came_since():
    late = traffic_of([LinkSample(0, 1, 1000, 3.0, 3.0), LinkSample(1, 0, 3000, 1.0, 4.0)]).since(2.0)
    assert late.size_bytes.tolist() == [1000, 2000]


def test_the_same_samples_give_the_same_estimate():
    samples = stream(0, 1, 3e6, 0, 2) + stream(1, 2, 2e6, 0.3, 2) + stream(2, 0, 1e6, 0.1, 2)
    first, second = CapacityEstimator(3), CapacityEstimator(3)
    first.observe(traffic_of(samples))
    second.observe(traffic_of(list(samples)))
    assert (first.estimate().up == second.estimate().up).all()


def starved(shift_s):
    """What the server of a node with 0.15 cores and 160 Mbit/s read of equal shares, on uneven4-both (recorded)."""
    rows = json.loads((Path(__file__).parent / "starved_node.json").read_text())
    return [LinkSample(i, 3, size, shift_s + a * 1e-6, shift_s + b * 1e-6) for i, size, a, b in rows]


def simulated(up, down, shares, pairs=None, inflight_bytes=0.0, slices=240, size=50_000):
    """The messages of one exchange over links of these rates in bytes/s; shares: parts of the slices on each node's server."""
    nodes = [Node(f"n{i}") for i in range(len(up))]
    counts = np.round(np.array(shares) * slices).astype(np.int64)
    servers = np.repeat(np.arange(len(up)), counts)
    order = np.argsort(np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count]), kind="stable")
    sizes = np.full(len(servers), size)
    capacities = Capacities.from_lists(up, down, pairs)
    return Traffic(exchange(nodes, capacities, sizes, servers[order], inflight_bytes, MessageWeight()).samples)


EQUAL = [0.25] * 4


def test_a_direction_that_was_full_while_others_waited_is_proven():
    """Node 0 is slow up, node 1 slow down; of the others only lower bounds are known."""
    found = evidence(simulated([5e6, 20e6, 20e6, 20e6], [20e6, 8e6, 20e6, 20e6], EQUAL), 4)
    assert found.capacity[0, 0] == pytest.approx(5e6, rel=0.03)
    assert found.capacity[1, 1] == pytest.approx(8e6, rel=0.03)
    assert np.isnan(found.capacity[:, 2:]).all()
    assert (found.least <= 20e6 * 1.01).all()
    assert not found.caps
    assert not found.has_slowed


def test_a_pair_that_was_held_back_while_both_ends_had_room_is_capped():
    found = evidence(simulated([10e6] * 4, [10e6] * 4, EQUAL, {(2, 3): 1e6}), 4)
    assert list(found.caps) == [(2, 3)]
    assert found.caps[2, 3] == pytest.approx(1e6, rel=0.05)


def test_of_an_iteration_within_which_a_node_became_slow_the_rest_counts():
    """Node 0 has 20 MB/s each way for some time, then 2."""
    before = simulated([20e6] * 4, [20e6] * 4, EQUAL).samples
    after = simulated([2e6, 20e6, 20e6, 20e6], [2e6, 20e6, 20e6, 20e6], EQUAL).samples
    for time in ("start_s", "end_s"):
        after[time] += before["end_s"].max()
    capacity = CapacityEstimator(4)
    capacity.observe(Traffic(before))
    assert capacity.observe(Traffic(np.concatenate([before, after])))
    estimate = capacity.estimate()
    assert min(estimate.up[0], estimate.down[0]) == pytest.approx(2e6, rel=0.1)
    assert np.minimum(estimate.up, estimate.down)[1:].min() > 8e6


def test_who_held_all_back_became_slower_and_not_each_of_its_peers():
    """Node 3 sums all. It halves, and its peers, which showed 6 MB/s each, could carry more now."""
    capacity = CapacityEstimator(4)
    capacity.observe(simulated([6e6] * 3 + [25e6], [6e6] * 3 + [25e6], [0, 0, 0, 1]))
    assert capacity.estimate().down[3] > 16e6
    assert capacity.observe(simulated([20e6] * 3 + [12e6], [20e6] * 3 + [12e6], [0, 0, 0, 1]))
    estimate = capacity.estimate()
    assert [estimate.up[3], estimate.down[3]] == pytest.approx([12e6, 12e6], rel=0.05)
    assert min(estimate.up[:3].min(), estimate.down[:3].min()) > 5e6


def test_a_fast_node_whose_peers_became_slower_has_not():
    """What it sends and gets explains as much as two of its peers do, but those are full anyway."""
    capacity, shares = CapacityEstimator(4), [0.2, 0.3, 0.45, 0.05]
    capacity.observe(simulated([15e6, 20e6, 26e6, 8e6], [15e6, 20e6, 26e6, 8e6], shares))
    capacity.observe(simulated([7e6, 10e6, 27e6, 8e6], [7e6, 10e6, 27e6, 8e6], shares))
    estimate = capacity.estimate()
    assert min(estimate.up[2], estimate.down[2]) > 20e6
    assert estimate.down[:2] == pytest.approx([7e6, 10e6], rel=0.03)


def test_what_was_known_is_refuted_by_more_and_by_less():
    capacity, fast = CapacityEstimator(4), [20e6] * 3
    assert not capacity.observe(simulated([5e6, *fast], [5e6, *fast], EQUAL))
    assert not capacity.observe(simulated([5e6, *fast], [5e6, *fast], EQUAL))
    assert capacity.observe(simulated([10e6, *fast], [10e6, *fast], EQUAL))
    assert capacity.observe(simulated([2.5e6, *fast], [2.5e6, *fast], EQUAL))
    assert capacity.estimate().up[0] == pytest.approx(2.5e6, rel=0.05)


def test_what_a_node_with_full_cores_carries_refutes_nothing():
    for full in range(4):
        capacity, fast = CapacityEstimator(4), [20e6] * 3
        capacity.observe(simulated([5e6, *fast], [5e6, *fast], EQUAL))
        traffic = simulated([2.5e6, *fast], [2.5e6, *fast], EQUAL)
        traffic.has_full_cores = np.arange(4) == full
        assert capacity.observe(traffic) == (full != 0)
        assert capacity.estimate().up[0] == pytest.approx(2.5e6, rel=0.05)


def test_an_end_that_carries_less_because_its_senders_pause_has_not_become_slower():
    """With a window most connections wait for their turn now and then. The one that never waits is held back elsewhere."""
    capacity = CapacityEstimator(4)
    together = [one for source in (0, 1, 2) for one in stream(source, 3, 10e6, 0, 1)]
    alone = [one for source in (0, 1, 2) for one in stream(source, (source + 1) % 3, 40e6, 1, 1)]
    capacity.observe(traffic_of(together + alone))
    assert capacity.estimate().down[3] == pytest.approx(30e6, rel=0.02)
    pairs = ((1, 3), (2, 3), (0, 1), (0, 2))
    pausing = [one for k in range(40) for pair in pairs for one in stream(*pair, 11e6, 0.05 * k, 0.033)]
    assert not capacity.observe(traffic_of(stream(0, 3, 9e6, 0, 2) + pausing))
    assert capacity.estimate().down[3] == pytest.approx(30e6, rel=0.02)


def test_what_was_exceeded_is_planned_on_with_more_for_one_iteration():
    capacity = CapacityEstimator(4)
    capacity.observe(simulated([5e6] * 4, [5e6] * 4, [0, 0, 0.5, 0.5]))
    faster = simulated([20e6] * 4, [20e6] * 4, [0, 0, 0.5, 0.5])
    assert capacity.observe(faster)
    grown = capacity.estimate()
    assert grown.down[0] == pytest.approx(RULES.growth * grown.least[1, 0])
    assert not capacity.observe(faster)
    assert capacity.estimate().down[0] == pytest.approx(RULES.optimism * grown.least[1, 0], rel=0.01)


def test_what_comes_out_as_was_hoped_refutes_nothing():
    shares = [0, 0, 0.5, 0.5]
    capacity = CapacityEstimator(4)
    capacity.observe(simulated([5e6] * 4, [5e6] * 4, shares))
    assert capacity.observe(simulated([20e6] * 4, [20e6] * 4, shares))
    assert not capacity.observe(simulated([28e6] * 4, [28e6] * 4, shares))
    grown = capacity.estimate()
    assert grown.down[0] == pytest.approx(RULES.growth * grown.least[1, 0])


def test_growth_grows_where_even_more_came_than_was_hoped():
    shares = [0, 0, 0.5, 0.5]
    capacity = CapacityEstimator(4)
    for rate in (5e6, 20e6, 80e6):
        capacity.observe(simulated([rate] * 4, [rate] * 4, shares))
    grown = capacity.estimate()
    assert grown.down[0] == pytest.approx(RULES.growth**2 * grown.least[1, 0])


def test_growth_waits_for_the_first_plan_that_may_hope_for_it():
    """An iteration whose plan is older than the growth says nothing of it; what such a plan did not hope for is a surprise."""
    shares = [0, 0, 0.5, 0.5]
    capacity = CapacityEstimator(4)
    capacity.observe(simulated([5e6] * 4, [5e6] * 4, shares))
    faster = simulated([20e6] * 4, [20e6] * 4, shares)
    assert capacity.observe(faster)
    grown = capacity.estimate()
    assert not capacity.observe(Traffic(faster.samples, is_stale=True))
    assert capacity.estimate().down[0] == pytest.approx(grown.down[0], rel=0.01)
    even_faster = simulated([28e6] * 4, [28e6] * 4, shares)
    assert capacity.observe(Traffic(even_faster.samples, is_stale=True))
    twice = capacity.estimate()
    assert twice.down[0] == pytest.approx(RULES.growth * twice.least[1, 0])


def test_a_change_anywhere_makes_older_proofs_lower_bounds():
    """Node 0's limits are proven. Then it has nothing to carry while node 1 becomes slow."""
    capacity, idle = CapacityEstimator(4), [0, 1 / 3, 1 / 3, 1 / 3]
    capacity.observe(simulated([5e6, 20e6, 20e6, 20e6], [5e6, 20e6, 20e6, 20e6], EQUAL))
    known = capacity.estimate().up[0]
    slow = simulated([20e6, 4e6, 20e6, 20e6], [20e6, 4e6, 20e6, 20e6], idle).samples
    assert capacity.observe(Traffic(slow[(slow["source"] != 0) & (slow["target"] != 0)]))
    assert capacity.estimate().up[0] == pytest.approx(RULES.optimism * known)


def test_what_carries_nothing_is_not_held_back_by_rounding():
    rng = np.random.default_rng(5)
    start_s = rng.uniform(0, 1, 400)
    samples = [
        LinkSample(k % 3, 3, int(rng.integers(1, 90_000)), at, at + rng.uniform(0.01, 0.3))
        for k, at in enumerate(start_s)
    ]
    traffic = traffic_of(samples)
    assert (traffic.carried(traffic.source, 3, 20) >= 0).all()
    alone = traffic_of([*samples, LinkSample(3, 0, 1, 50.0, 50.1)])
    assert (alone.carried(alone.source, 4, 2000)[:3, 100:-10] == 0).all()


def test_what_is_not_proven_again_is_doubted_now_and_then():
    """Node 0's limits are proven once. Later it has nothing to carry, which proves nothing."""
    capacity, fast = CapacityEstimator(4), [20e6] * 3
    rest = simulated([20e6] * 4, [20e6] * 4, [0, 1 / 3, 1 / 3, 1 / 3]).samples
    rest = rest[(rest["source"] != 0) & (rest["target"] != 0)]
    capacity.observe(Traffic(rest))
    capacity.observe(simulated([5e6, *fast], [5e6, *fast], EQUAL))
    known = min(capacity.estimate().up[0], capacity.estimate().down[0])
    planned = []
    for _ in range(RULES.doubt_iterations - 2):  # two came before
        capacity.observe(Traffic(rest))
        planned.append(min(capacity.estimate().up[0], capacity.estimate().down[0]))
    assert planned[:-1] == [known] * (RULES.doubt_iterations - 3)
    assert planned[-1] == pytest.approx(RULES.optimism * known)


@pytest.mark.parametrize("inflight_bytes", [0.0, 400_000.0])
def test_a_cap_goes_when_the_pair_carries_more(inflight_bytes):
    capacity = CapacityEstimator(4)
    capacity.observe(simulated([10e6] * 4, [10e6] * 4, EQUAL, {(2, 3): 0.4e6}))
    assert list(capacity.estimate().pairs) == [(2, 3)]
    capacity.observe(simulated([10e6] * 4, [10e6] * 4, EQUAL, inflight_bytes=inflight_bytes))
    assert not capacity.estimate().pairs


def test_a_cap_that_holds_nothing_back_goes_before_it_is_infinite():
    """It grows now and then: in a long training beyond all numbers."""
    capacity = CapacityEstimator(4, rules=replace(RULES, optimism=1e200))
    capacity.observe(simulated([10e6] * 4, [10e6] * 4, EQUAL, {(2, 3): 0.4e6}))
    rest = simulated([10e6] * 4, [10e6] * 4, EQUAL).samples
    rest = Traffic(rest[(rest["source"] != 2) & (rest["target"] != 2)])
    seen = []
    for _ in range(2 * RULES.doubt_iterations):
        capacity.observe(rest)
        seen += [capacity.estimate().pairs.get((2, 3), np.nan)]
    assert max(one for one in seen if not np.isnan(one)) > 1e200
    assert not np.isinf(seen).any()
    assert np.isnan(seen[-1])


def test_a_burst_after_a_pause_does_not_lift_a_cap():
    """Messages go at twice the cap while a window keeps nodes in step: one for each three that the pair could carry."""
    capacity, cap = CapacityEstimator(4), 0.4e6
    capacity.observe(simulated([10e6] * 4, [10e6] * 4, EQUAL, {(2, 3): cap}))
    bursts = [LinkSample(2, 3, 50_000, t, t + 50_000 / (2 * cap)) for t in np.arange(0, 3, 3 * 50_000 / cap)]
    capacity.observe(traffic_of(bursts + stream(0, 1, 9e6, 0, 3) + stream(1, 0, 9e6, 0, 3)))
    assert list(capacity.estimate().pairs) == [(2, 3)]


def test_a_process_that_stood_still_does_not_read_as_a_fast_link():
    """A fifth of its messages seem to come at 1 Gbit/s and more, forecast and message read in one go."""
    samples = starved(0.0)
    elapsed_s = np.array([s.end_s - s.start_s for s in samples])
    full = np.array([s.size_bytes > 50_000 for s in samples])
    assert np.quantile((56_584 / elapsed_s)[full], 0.8) > 125e6
    capacity = CapacityEstimator(4)
    for iteration in range(6):
        capacity.observe(traffic_of(starved(shift_s=10.0 * iteration)))
    assert capacity.estimate().least[1, 3] < 160e6 / 8


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_messages_are_read_without_error(count):
    traffic = traffic_of([LinkSample(0, 1, 1000, k * 0.01, (k + 1) * 0.01) for k in range(count)])
    found = evidence(traffic, 3)
    assert found.least[0, 0] > 0
    assert (found.least[:, 2] == 0).all()
