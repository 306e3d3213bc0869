"""Scheme joint at the coordinator: one job whose links and machines are both measured, driven by hand."""

import numpy as np

from kvstore_patch.keys.plane import PS_LITE
from nalb.batching.schemes import PREDICTORS
from nalb.events import PlanEvent
from nalb.measurement.capacity import CapacityEstimator
from nalb.measurement.estimates import Estimate
from nalb.protocol import wire
from nalb.services.batching.messages import BatchSizes, Computed, JoinBatching
from nalb.services.batching.sizer import WARM_UP
from nalb.services.composition import new_coordinator
from nalb.services.exchange import messages as m
from nalb.settings import from_environment

NODES = 3
ENVIRONMENT = {
    "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "NALB_SCHEME": "joint",
    "DMLC_NUM_WORKER": str(NODES), "DMLC_NUM_SERVER": str(NODES),
}  # fmt: skip


class LearntLater(CapacityEstimator):
    """Knows the rates from the moment when somebody tells them."""

    rates = None  # up and down, per node

    def estimate(self):
        if self.rates is None:
            return super().estimate()
        both = np.array(self.rates)
        return Estimate(both[0], both[1], both)


def test_sizes_and_shares_follow_links_and_machines():
    """Node n2 has a slow link, and its worker, of rank 0, the fastest machine."""
    links = LearntLater(NODES)
    settings = from_environment(ENVIRONMENT, "host")
    estimators = {settings.estimator: lambda _: links}
    state = new_coordinator(settings, 0.0, PREDICTORS["memoryless"], estimators=estimators, plane=PS_LITE)
    rank_of_node = (1, 2, 0)

    def say(peer, message):
        state.receive(peer.encode(), message, 0.0)

    for node, rank in enumerate(rank_of_node):
        say(f"s{node}", wire.Hello(wire.VERSION, "server", f"n{node}", node, 1))
        say(f"w{rank}", wire.Hello(wire.VERSION, "worker", f"n{node}", rank, 1))
    for rank in range(NODES):
        say(f"w{rank}", JoinBatching(32, None))
        say(f"w{rank}", m.Register([m.TensorSpec("w", 3_000_000, "float32", 0)]))
    sizes, orders = [32] * NODES, 0
    for iteration in range(WARM_UP + 2):
        if iteration == WARM_UP:  # the links are measured from here on
            links.rates = 2 * ([5e6, 5e6, 1e6],)
        for rank in range(NODES):
            say(
                f"w{rank}",
                Computed(iteration, sizes[rank], sizes[rank] * (0.01, 0.02, 0.04)[rank], 0.5, 0.2, 1.0, 0.0),
            )
        for order in [x for _, x in state.outbox if isinstance(x, m.PrepareSlots)][orders:]:
            orders += 1
            for rank in range(NODES):
                say(f"w{rank}", m.SlotsReady(order.iteration, order.layout_version))
        for rank in range(NODES):
            say(f"w{rank}", m.Done(iteration, 1.0, 2.0, 0.0, 0.0, 1.0))
        for node in range(NODES):
            say(f"s{node}", m.Collected(iteration))
        sizes = [x for _, x in state.outbox if isinstance(x, BatchSizes)][-1].sizes
    assert state.verdict is None
    assert sizes == [55, 28, 13]  # 55 ms: as long as [55, 27, 14], ties to the first node
    plan = [event for event in state.events if isinstance(event, PlanEvent)][-1]
    assert plan.reason == "least time of machines and links together"
    assert plan.shares["n2"] < min(plan.shares["n0"], plan.shares["n1"])
