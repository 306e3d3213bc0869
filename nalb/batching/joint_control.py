"""`--scheme joint`: plans batch sizes and network shares together, anew in every iteration."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nalb.batching.decisions import Observation, SizeDecision, observed_sizes, settle
from nalb.batching.joint import JointPlan, overlapped_s, plan_overlapped
from nalb.batching.lb_bsp import SLACK, SpeedBalancer
from nalb.batching.sizes import Bounds, Sizes, apportion
from nalb.batching.speed import Predictor
from nalb.batching.time_models import Polynomial
from nalb.planning.nodes import Capacities, Floats, Node

MOST_OVER_SPEED = (
    2  # times a worker's size by speed alone: larger sizes are not searched, which would take seconds with 96 workers
)


@dataclass(frozen=True, eq=False)
class LinkKnowledge:
    """The nodes, the model's size, and the links' estimated capacities when sizes are chosen."""

    nodes: Sequence[Node]
    ranks: Sequence[int]  # ranks of the workers among the nodes, in node order
    model_bytes: float
    capacities: Capacities  # estimated


class JointBalancer:
    """A controller that uses joint.plan_overlapped on predicted speeds and estimated links; without estimate, LB-BSP's Algorithm 1.

    `network` must be set before each update. Present sizes that are at most SLACK slower by the same model stay. Cost: that of
    plan_overlapped.
    """

    def __init__(self, bounds: Bounds, predictors: Sequence[Predictor]) -> None:
        self._bounds = bounds
        self._by_speed = SpeedBalancer(bounds, predictors, SLACK)
        self.network: LinkKnowledge | None = None
        self._speeds: list[float] | None = None  # by rank, those of the last plan; None: it had no estimate

    def begin(self) -> SizeDecision:
        return self._by_speed.begin()

    def update(self, observations: Sequence[Observation]) -> SizeDecision:
        network = self.network
        if network is None:
            self._speeds = None
            return self._by_speed.update(observations)
        present = observed_sizes(observations, self._bounds)
        speeds, _ = self._by_speed.foresee(observations)
        self._speeds = speeds
        ranks = list(network.ranks)
        by_speed = apportion(speeds, self._bounds)
        bounds = Bounds(
            self._bounds.total,
            tuple(self._bounds.least[rank] for rank in ranks),
            tuple(min(self._bounds.most[rank], MOST_OVER_SPEED * by_speed[rank]) for rank in ranks),
        )
        plan = _plan(network, speeds, bounds)
        compute_s = np.zeros(len(network.nodes))
        workers = [i for i, node in enumerate(network.nodes) if node.is_worker]
        compute_s[workers] = [present[rank] / speeds[rank] for rank in ranks]
        as_now_s = overlapped_s(network.nodes, compute_s, plan.shares_bytes, network.model_bytes, network.capacities)
        if as_now_s <= (1 + SLACK) * plan.predicted_s:
            return SizeDecision(None, "as fast as other sizes would be, links included")
        sizes = list(present)
        for rank, size in zip(ranks, plan.sizes, strict=True):
            sizes[rank] = size
        return settle(present, tuple(sizes), "least time of machines and links together")

    def shares_bytes(self, sizes: Sizes, network: LinkKnowledge | None) -> Floats | None:
        """The shares of the joint plan for these sizes, bytes per node, shape (N,).

        None where there is no estimate of the links, or was none at the last update.
        """
        if network is None or self._speeds is None:
            return None
        fixed = tuple(sizes[rank] for rank in network.ranks)
        return _plan(network, self._speeds, Bounds(sum(fixed), fixed, fixed)).shares_bytes


def _plan(network: LinkKnowledge, speeds: Sequence[float], bounds: Bounds) -> JointPlan:
    curves = [Polynomial((0.0, 1 / speeds[rank])) for rank in network.ranks]
    return plan_overlapped(network.nodes, curves, bounds, network.model_bytes, network.capacities)
