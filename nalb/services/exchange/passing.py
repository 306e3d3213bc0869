"""Bounds the bytes that may have passed between two nodes by the plans. A process that reports more is not believed. Pure."""

from collections import deque

import numpy as np

from nalb.measurement.samples import Ints
from nalb.planning.distribution import Distribution
from nalb.planning.nodes import Floats

REMEMBERED = 4096  # plans: more than there are iterations within a deadline
HEADER_BYTES = 1000  # of a slice's message, at most


class PassingBytes:
    """The bytes that the plans of the last iterations let one node send to the servers on another, or have from them."""

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        self._shares: deque[Ints] = deque(maxlen=REMEMBERED)  # of each plan, shape (N,), the last one's last
        self._slices = 0  # of the last plan

    def note(self, plan: Distribution | None, whole_part: float = 1.0) -> None:
        """Take in the plan of the next iteration; None: MXNet routes it.

        whole_part: the bytes of values that travel as they are, per planned byte: pushes may, and slices that no codec takes.
        """
        self._slices = 0 if plan is None else len(plan.server_of_slice)
        if plan is not None:
            shares = np.array(plan.shares_bytes, dtype=np.int64)
            led = 0 if plan.by_site is None else 2 * np.array(plan.by_site.led_bytes, dtype=np.int64)
            self._shares.append(np.ceil((shares + led) * whole_part).astype(np.int64))

    def most(self, iterations: int) -> Floats:
        """The most bytes over the last iterations, for the servers on each node, shape (N,); infinite where MXNet routes.

        It includes the iteration before these, of which messages may have been left, and room for headers.
        """
        if not self._slices:
            return np.full(self._num_nodes, np.inf)
        lately = [self._shares[-k] for k in range(1, min(iterations + 1, len(self._shares)) + 1)]
        if len(lately) == 1:  # a broadcast and a sum come before it, and MXNet may send all of both to one server
            lately += 2 * [np.full(self._num_nodes, lately[0].sum())]
        return np.asarray(np.sum(lately, axis=0, dtype=np.float64) + HEADER_BYTES * self._slices * len(lately))
