"""A data plane's own way of summing, without a plan: what it has each node sum, and what its links need for it. Pure."""

import math
from typing import Protocol

from nalb.feedback.routing import Routing
from nalb.planning.nodes import Floats
from nalb.planning.slices import Layout, Tensor
from nalb.services.exchange.knowledge import Known


class Loads(Protocol):
    """What a data plane has each node sum where no plan distributes slices."""

    def shares(self, tensors: tuple[Tensor, ...]) -> Floats | None:
        """Bytes per node, shape (N,); None where the plane cannot sum these tensors without a plan."""


class OwnRouting:
    """A data plane's own routing as the other way to exchange gradients: when it is taken, and what links need for it."""

    def __init__(self, loads: Loads, routing: Routing):
        """loads: what each node sums, in a job whose nodes are all workers. routing: decides when it is taken."""
        self.routing = routing
        self._loads = loads
        self._shares: Floats | None = None  # of the present tensors; None: they cannot be summed without a plan

    def begin(self, layout: Layout) -> None:
        """Take in the layout of the tensors from here on."""
        self._shares = self._loads.shares(layout.tensors)

    def links_s(self, known: Known) -> float:
        """Seconds that links need, by lower bounds of rates; infinite where these are not known, or a plan is needed."""
        shares = self._shares
        needed_s = None if shares is None else known.exchange_s(shares, float(shares.sum()), is_planned=False)
        return math.inf if needed_s is None else needed_s
