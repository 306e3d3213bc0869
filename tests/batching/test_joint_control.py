"""Sizes and shares from one plan: what the controller asks for, by rank and by node."""

import numpy as np
import pytest

from nalb.batching.joint_control import JointBalancer, LinkKnowledge
from nalb.batching.schemes import BatchJob, build
from nalb.batching.sizes import Bounds
from nalb.batching.speed import Memoryless
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import exact

from .workers import observe

NODES = [Node("n0"), Node("n1"), Node("n2")]
EVEN = (40, 40, 40)


def balancer():
    return JointBalancer(Bounds.of(120, 3), [Memoryless() for _ in range(3)])


def network(up, down, ranks=(0, 1, 2)):
    return LinkKnowledge(NODES, ranks, 1e6, Capacities.from_lists(up, down))


def test_without_an_estimate_it_is_lb_bsp():
    joint, (lb_bsp, _) = balancer(), build("lb-bsp", BatchJob(EVEN, predictors=tuple(Memoryless() for _ in range(3))))
    seen = observe(EVEN, (1.0, 2.0, 4.0))
    assert joint.update(seen) == lb_bsp.update(seen)
    assert joint.shares_bytes(EVEN, joint.network) is None


def test_equal_directions_give_best_sizes_beside_best_shares():
    joint, rates = balancer(), [1e6, 5e6, 3e6]
    joint.network = network(rates, rates)
    decision = joint.update(observe(EVEN, (1.0, 2.0, 4.0)))
    assert decision.sizes == (69, 34, 17)
    best, _ = exact(NODES, 1e6, joint.network.capacities)
    assert joint.shares_bytes(decision.sizes, joint.network) == pytest.approx(best)
    assert joint.update(observe((69, 34, 17), (1.7, 1.7, 1.7))).sizes is None


def test_a_slow_uplink_costs_its_worker_samples_whatever_its_rank():
    """Node n2 has the slow uplink; its worker has rank 0."""
    joint = balancer()
    joint.network = network([1e8, 1e8, 1e6], [1e8] * 3, ranks=(1, 2, 0))
    sizes = joint.update(observe(EVEN, (1.0, 1.0, 1.0))).sizes
    assert sum(sizes) == 120
    assert sizes[0] < 30 < min(sizes[1:])


def test_sizes_that_links_and_machines_want_are_kept_against_noise():
    joint = balancer()
    joint.network = network([1e6] * 3, [1e6] * 3)
    noise = np.random.default_rng(1).uniform(0.97, 1.03, (20, 3))
    assert all(joint.update(observe(EVEN, times)).sizes is None for times in noise)


def test_shares_follow_links_that_have_changed_since_the_sizes_were_planned():
    joint, rates = balancer(), [1e6, 5e6, 3e6]
    joint.network = network(rates, rates)
    sizes = joint.update(observe(EVEN, (1.0, 2.0, 4.0))).sizes
    joint.network = network(rates[::-1], rates[::-1])
    assert joint.shares_bytes(sizes, joint.network) == pytest.approx(exact(NODES, 1e6, joint.network.capacities)[0])
