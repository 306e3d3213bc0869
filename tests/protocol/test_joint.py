"""Scheme joint at the coordinator: one job whose links and machines are both measured, driven by hand."""

import numpy as np

from nalb.batching.schemes import PREDICTORS
from nalb.planning.nodes import Capacities
from nalb.protocol import messages as m
from nalb.protocol.batching import WARM_UP
from nalb.protocol.state import Coordinator
from nalb.settings import from_environment

NODES = 3
ENVIRONMENT = {
    "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "NALB_SCHEME": "joint",
    "DMLC_NUM_WORKER": str(NODES), "DMLC_NUM_SERVER": str(NODES),
}  # fmt: skip


def test_sizes_and_shares_follow_links_and_machines(monkeypatch):
    """Node n2 has a slow link, and its worker, of rank 0, the fastest machine."""
    state = Coordinator(from_environment(ENVIRONMENT, "host"), 0.0, PREDICTORS["memoryless"])
    rank_of_node = (1, 2, 0)

    def say(peer, message):
        state.receive(peer.encode(), message, 0.0)

    for node, rank in enumerate(rank_of_node):
        say(f"s{node}", m.Hello(m.VERSION, "server", f"n{node}", 8 + 2 * node, 1))
        say(f"w{rank}", m.Hello(m.VERSION, "worker", f"n{node}", 9 + 2 * rank, 1))
    for rank in range(NODES):
        say(f"w{rank}", m.JoinBatching(32, None))
        say(f"w{rank}", m.Register([m.TensorSpec("w", 3_000_000, "float32", 0)]))
    planner = state._iterations.planner
    rates = [5e6, 5e6, 1e6]
    sizes, orders = [32] * NODES, 0
    for iteration in range(WARM_UP + 2):
        if iteration == WARM_UP:  # the links are measured from here on
            monkeypatch.setattr(planner, "_capacities", lambda: Capacities.from_lists(rates, rates))
        for rank in range(NODES):
            say(
                f"w{rank}",
                m.Computed(iteration, sizes[rank], sizes[rank] * (0.01, 0.02, 0.04)[rank], 0.5, 0.2, 1.0, 0.0),
            )
        for order in [x for _, x in state.outbox if isinstance(x, m.PrepareSlots)][orders:]:
            orders += 1
            for rank in range(NODES):
                say(f"w{rank}", m.SlotsReady(order.iteration, order.layout_version))
        for rank in range(NODES):
            say(f"w{rank}", m.Done(iteration, 1.0, 2.0, 0.0, 0.0, 1.0))
        for node in range(NODES):
            say(f"s{node}", m.Collected(iteration))
        sizes = [x for _, x in state.outbox if isinstance(x, m.BatchSizes)][-1].sizes
    assert state.verdict is None
    assert sizes == [55, 28, 13]  # 55 ms: as long as [55, 27, 14], ties to the first node
    shares = np.array(planner.present.target_bytes)
    assert planner.present.reason == "least time of machines and links together"
    assert shares[2] < min(shares[0], shares[1])
