"""What other services may know of the network: the exchange measures it, joint plans and tokens use it. Pure."""

import numpy as np

from nalb.batching.joint_control import LinkKnowledge
from nalb.protocol.members import Members
from nalb.services.exchange.planner import Planner

Rates = tuple[list[float], list[float]]  # bytes/s out of and into each worker, by rank


class Links:
    """The links between a job's workers, as its planner knows them."""

    def __init__(self, members: Members):
        self._members = members
        self._planner: Planner | None = None

    def begin(self, planner: Planner) -> None:
        """All processes are there, and this planner will plan for them."""
        self._planner = planner

    def knowledge(self) -> LinkKnowledge | None:
        """What a joint plan may know; None while the links are not measured or do not set the pace."""
        rank_of_node = {worker.hello.node: worker.rank for worker in self._members.workers}
        return None if self._planner is None else self._planner.link_knowledge(rank_of_node)

    def rates(self) -> Rates | None:
        """The rates of the workers' links; None like knowledge()."""
        network = self.knowledge()
        if network is None:
            return None
        place_of_rank = dict(
            zip(network.ranks, [i for i, node in enumerate(network.nodes) if node.is_worker], strict=True)
        )
        places = [place_of_rank[rank] for rank in sorted(place_of_rank)]
        rates = network.capacities.rates
        if network.capacities.uplinks is not None:  # outputs and gradients of tokens go from machine to machine
            rates = np.minimum(rates, network.capacities.uplinks.parts())
        return rates[0, places].tolist(), rates[1, places].tolist()
