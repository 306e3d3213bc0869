"""How long a node's cores work for a synchronisation, from the CPU time that its processes took.

CPU time does not depend on other processes, so one iteration tells it, whether links or cores set the pace. How much CPU time a
node gets each second is another question: nalb/process/available_cores.py counts its cores.
"""

from typing import NamedTuple

import numpy as np

from nalb.measurement.samples import Floats, Mask
from nalb.planning.nodes import CoreTimes

BUSY_PART = 0.85  # part of the exchange: cores that work for longer count as full. Choice.


class Work(NamedTuple):
    """CPU time that one iteration took on each node, shape (N,) each; NaN for a node that did not report it."""

    # MXNet's from its last gradient to its last sum, an agent's of the whole exchange; 0 where there is no worker
    worker_s: Floats
    # of the iteration; 0 where there is no server, and for an agent, which tells all as a worker
    server_s: Floats
    cores: Floats  # the number of the node's cores

    def are_full(self, exchange_s: float) -> Mask:
        """Whether this work kept all cores of each node busy for BUSY_PART of the exchange, shape (N,); False if not reported."""
        return np.asarray((self.worker_s + self.server_s) / self.cores >= BUSY_PART * exchange_s)


MEMORY = 0.5  # part of the sums so far that stays with each iteration: sizes of batches and messages change. Choice.


class CoreEstimator:
    """Learns the CPU seconds of each worker, and of each server per byte of its share.

    A server with a tiny share says little of the cost of a byte: wakings and signs of life weigh as much. So one mean share, at the
    mean cost of a byte, is added to each server's own sums.
    """

    def __init__(self, num_nodes: int):
        self._worker_s, self._server_s, self._share_bytes = (np.zeros(num_nodes) for _ in range(3))
        self._weight = 0.0  # iterations in the sums, older ones counted for less
        self._cores = np.full(num_nodes, np.nan)

    def observe_work(self, work: Work, shares_bytes: Floats) -> None:
        """Take one iteration in, if all nodes reported it. shares_bytes: what each node summed, shape (N,)."""
        if not np.isfinite(work.worker_s + work.server_s + work.cores).all():
            return
        self._weight = MEMORY * self._weight + 1
        self._worker_s = MEMORY * self._worker_s + work.worker_s
        self._server_s = MEMORY * self._server_s + work.server_s
        self._share_bytes = MEMORY * self._share_bytes + shares_bytes
        self._cores = work.cores

    def times(self) -> CoreTimes | None:
        """How long the nodes' cores work, as learned; None before the first report."""
        if not self._weight:
            return None
        mean_bytes = self._share_bytes.sum() / (self._weight * np.count_nonzero(self._share_bytes))
        of_byte_s = self._server_s.sum() / self._share_bytes.sum()
        server_s = (self._server_s + mean_bytes * of_byte_s) / (self._share_bytes + mean_bytes)
        return CoreTimes(self._worker_s / self._weight / self._cores, server_s / self._cores)
