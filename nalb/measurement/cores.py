"""What a node's cores need for a synchronisation, from the CPU time that its processes took.

CPU time does not depend on who else runs, so that one iteration tells it, whatever set its pace. How much of it a node gets each
second is another matter: its cores (nalb/process/available_cores.py).
"""

from typing import NamedTuple

import numpy as np

from nalb.measurement.evidence import FULL
from nalb.measurement.samples import Floats, Mask
from nalb.planning.nodes import CoreTimes

MEMORY = 0.5  # of what is known stays with each iteration: sizes of batches and messages change


class Work(NamedTuple):
    """What one iteration took of each node's CPUs, shape (N,) each; NaN for what was not reported."""

    worker_s: Floats  # CPU time, from its last gradient to its last sum; 0 where there is no worker
    server_s: Floats  # CPU time; 0 where there is no server
    cores: Floats  # how many cores the node has

    def are_full(self, exchange_s: float) -> Mask:
        """Whether this kept all cores of each node busy for FULL of the exchange, shape (N,); no where it was not reported."""
        return np.asarray((self.worker_s + self.server_s) / self.cores >= FULL * exchange_s)


class CoreEstimator:
    """CPU seconds of a worker, and of a server per byte of its share.

    A server that hardly had a share says little of what a byte costs it: wakings and signs of life weigh as much. So each is
    taken together with one mean share at what a byte costs all servers.
    """

    def __init__(self, num_nodes: int):
        self._worker_s, self._server_s, self._share_bytes = (np.zeros(num_nodes) for _ in range(3))
        self._weight = 0.0  # of what is known
        self._cores = np.full(num_nodes, np.nan)

    def observe(self, work: Work, shares_bytes: Floats) -> None:
        """Take one iteration in; shares_bytes: what each node summed, shape (N,). Not all reported: nothing is learned."""
        if not np.isfinite(work.worker_s + work.server_s + work.cores).all():
            return
        self._weight = MEMORY * self._weight + 1
        self._worker_s = MEMORY * self._worker_s + work.worker_s
        self._server_s = MEMORY * self._server_s + work.server_s
        self._share_bytes = MEMORY * self._share_bytes + shares_bytes
        self._cores = work.cores

    def times(self) -> CoreTimes | None:
        """How long the nodes' cores work by what is known; None while nothing is."""
        if not self._weight:
            return None
        mean_bytes = self._share_bytes.sum() / (self._weight * np.count_nonzero(self._share_bytes))
        of_byte_s = self._server_s.sum() / self._share_bytes.sum()
        server_s = (self._server_s + mean_bytes * of_byte_s) / (self._share_bytes + mean_bytes)
        return CoreTimes(self._worker_s / self._weight / self._cores, server_s / self._cores)
