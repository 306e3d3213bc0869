"""What the coordinator must know of a data plane: whether its servers keep slots, and what it sums without a plan. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from nalb.planning.distribution import Distribution
from nalb.planning.nodes import Floats
from nalb.planning.slices import Layout, Tensor, size_bytes, value_dtype
from nalb.services.exchange import messages as m
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.other_way import Loads


class PlacedSlices(NamedTuple):
    """The places of a plan's slices."""

    ranks: list[int]  # of each slice's server
    slots: list[int]  # on it
    leaders: list[m.SiteLeaders]  # by site; none where sums have one level
    new_slots: list[m.NewSlots]  # which must exist before the plan may go out


class Slots(Protocol):
    """Where servers keep the slices of plans."""

    @property
    def total(self) -> int:
        """How many slots plans have asked for, on all servers."""

    def reserve(self, layout: Layout) -> None:
        """Make sure that plans of this layout can be placed. Raises InputError."""

    def place(self, layout: Layout, plan: Distribution) -> PlacedSlices:
        """Where the plan's slices go."""


@dataclass(frozen=True)
class Plane:
    """A data plane as the coordinator knows it."""

    new_slots: Callable[[JobNodes], Slots]
    new_loads: Callable[[JobNodes], Loads] | None  # None: it sums nothing without a plan
    plans_early: bool = False  # samples tell their iteration, so the next plan may be made before it ends


class NoSlots:
    """Servers that keep sums by iteration and slice: nothing needs to exist before a plan goes out."""

    total = 0

    def __init__(self, nodes: JobNodes):
        self._nodes = nodes

    def reserve(self, layout: Layout) -> None:
        """Any layout can be placed."""

    def place(self, layout: Layout, plan: Distribution) -> PlacedSlices:
        """The servers' ranks alone."""
        del layout
        leaders = [] if plan.by_site is None else plan.by_site.leader_of_slice
        site_rank = self._nodes.site_rank_of_node
        by_site = [m.SiteLeaders(_ranks(site_rank, nodes), []) for nodes in leaders]
        return PlacedSlices(_ranks(self._nodes.rank_of_node, plan.server_of_slice), [], by_site, [])


def _ranks(rank_of_node: Mapping[int, int], nodes: Iterable[int]) -> list[int]:
    return [rank_of_node[node] for node in nodes]


class RingLoads:
    """A ring has every node sum an equal part, of values as they are."""

    def __init__(self, nodes: JobNodes):
        self._count = len(nodes.nodes)

    def shares(self, tensors: tuple[Tensor, ...]) -> Floats:
        """Bytes per node, shape (N,)."""
        sizes = (size_bytes(tensor.elements, value_dtype(tensor.dtype)) for tensor in tensors)
        return np.full(self._count, sum(sizes) / self._count)


AGENTS = Plane(NoSlots, RingLoads, plans_early=True)
AGENTS_WITHOUT_RING = Plane(NoSlots, None, plans_early=True)
