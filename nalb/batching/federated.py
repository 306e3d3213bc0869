"""LB-BSP for federated training between institutions (Chen et al., 3.5): FedAvg with batch sizes by speed.

A round: each client takes tau steps of its own with batches of B_i, then the models are averaged. What stays: tau (the
faster would otherwise walk further towards their own optimum), the learning rate (with it in proportion to B_i, fast
clients' data would count more), and equal weights of the clients. What changes: B_i, in proportion to its speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nalb.batching.decisions import Decision, Observation
from nalb.batching.lb_bsp import SpeedBalancer
from nalb.batching.sizes import Bounds
from nalb.batching.speed import Ema
from nalb.errors import InputError
from nalb.planning.nodes import Floats


@dataclass(frozen=True)
class FedAvg:
    """What every client does in a round. The defaults are the paper's (5.5)."""

    local_iterations: int = 500  # tau: steps between two averagings
    batch_size: int = 100  # B at the start
    learning_rate: float = 0.01  # the same on every client, whatever its batch size

    def __post_init__(self) -> None:
        if self.local_iterations < 1 or self.batch_size < 1 or not self.learning_rate > 0:
            raise InputError(f"{self}: need 1 local iteration or more, 1 sample or more, and a positive learning rate")

    def client_weights(self, clients: int) -> Floats:
        """What each client's model counts in the average, shape (N,): the same, so that each data set does."""
        return np.full(clients, 1.0 / clients)


class FederatedBalancer:
    """One decision per round: B_i in proportion to the client's EMA(0.2) speed; the sum of the B_i kept.

    An observation's `batch_size` is B_i and its `compute_s` the time of all tau steps. Cost: O(N log N).
    """

    def __init__(self, bounds: Bounds, rounds: FedAvg | None = None) -> None:
        self.rounds = rounds or FedAvg()
        self._by_speed = SpeedBalancer(bounds, [Ema() for _ in bounds.least])

    def begin(self) -> Decision:
        return self._by_speed.begin()

    def update(self, observations: Sequence[Observation]) -> Decision:
        tau = self.rounds.local_iterations
        return self._by_speed.update([replace(seen, compute_s=seen.compute_s / tau) for seen in observations])
