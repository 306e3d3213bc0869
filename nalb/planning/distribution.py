"""The situation in which a scheme decides, and the plan that its shares become: whole slices on servers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from nalb.planning import shares as shares_of
from nalb.planning.assignment import assign, whole_bytes
from nalb.planning.elastic import ServerObservation
from nalb.planning.leaders import SitePlan, choose_leaders
from nalb.planning.levels import lan_load_bytes
from nalb.planning.nodes import (
    Capacities,
    Floats,
    Node,
    check_two_roles,
    completion_s,
    levels_s,
    load_bytes,
    server_indices,
)
from nalb.planning.sites import Sites
from nalb.planning.slices import Layout


class DecisionKind(Enum):
    """The kind of a decision, for code. The decision's reason tells people more, in words that may change."""

    PLANNED = "the scheme chose the shares"
    UNMEASURED = "equal shares, since not every node is measured"
    DISTRUSTED = "equal shares, since plans did not take what the links need"
    LEFT = "MXNet routes, or shares are equal, since plans take no less"
    ROUTED = "MXNet routes, since the scheme makes no plans"


@dataclass(frozen=True)
class Distribution:
    """A plan: where each slice of one iteration goes."""

    scheme: str  # its name
    iteration: int  # counted from 0
    server_of_slice: tuple[int, ...]  # per slice, the index of its server among the nodes
    slot_of_slice: tuple[int, ...]  # per slice, its slot on that server, from 0 for each slot class
    target_bytes: tuple[int, ...]  # per node, the share that the scheme asked for; adds up to the model
    shares_bytes: tuple[int, ...]  # per node, the share in whole slices; adds up to the model
    predicted_s: float | None  # completion time of shares_bytes by the scheme's capacities; None: these are unknown
    bound_s: float | None  # the least time of any shares by the same capacities; None: these are unknown
    reason: str  # for people
    by_site: SitePlan | None = None  # the leaders within the sites; None: sums have one level
    kind: DecisionKind = DecisionKind.PLANNED  # PLANNED, UNMEASURED or DISTRUSTED

    @property
    def target_shares(self) -> Floats:
        """target_bytes as floats, as the cost model takes shares, shape (N,)."""
        return np.array(self.target_bytes, dtype=np.float64)

    @property
    def held_shares(self) -> Floats:
        """shares_bytes as floats, as the cost model takes shares, shape (N,)."""
        return np.array(self.shares_bytes, dtype=np.float64)

    def load_bytes(self, nodes: Sequence[Node]) -> Floats:
        """Bytes that each of the nodes carries, in the direction in which it carries more, shape (N,)."""
        shares, model_bytes = self.held_shares, sum(self.shares_bytes)
        if self.by_site is None:
            return load_bytes(nodes, shares, model_bytes)
        return np.asarray(lan_load_bytes(self.by_site.sites, shares, self.by_site.led_shares, model_bytes).max(axis=0))


@dataclass(frozen=True)
class Situation:
    """All that a scheme may know when it decides."""

    iteration: int  # the one to be planned
    nodes: Sequence[Node]  # in planning order
    layout: Layout  # how the model is cut into slices
    estimated: Capacities | None = None  # measured; None: some are not measured yet
    configured: Capacities | None = None  # of a network file; None: there is none
    observations: Sequence[Sequence[ServerObservation]] = ()  # per node, newest last
    present_bytes: Sequence[float] | None = (
        None  # per node, by this scheme's own last plan, in proportion where tensors were cut anew since; None: it has made none
    )
    links_set_pace: bool = True  # False: plans are distrusted, so shares must be equal (feedback/trust.py)
    joint_shares: Floats | None = None  # shares of a joint plan, bytes per node, adding up to the model
    sites: Sites | None = None  # of the nodes; None: each node is a site of its own

    @property
    def equal_need(self) -> DecisionKind | None:
        """Why a scheme that follows the estimates cannot follow them, UNMEASURED or DISTRUSTED; None where it can."""
        if self.estimated is None:
            return DecisionKind.UNMEASURED
        return None if self.links_set_pace else DecisionKind.DISTRUSTED


def build_plan(
    scheme: str,
    situation: Situation,
    shares: Floats,
    capacities: Capacities | None,
    reason: str,
    kind: DecisionKind = DecisionKind.PLANNED,
) -> Distribution:
    """The plan for these shares: slices assigned, slots numbered, times predicted. Cost: that of `assign`.

    shares: bytes per node, shape (N,). capacities: for the predictions; None: not known. Probes count as part of a server's share;
    a server whose probes exceed it has its probes alone. By sites: leaders are chosen too, and capacities must have the uplinks of
    the same sites.
    """
    nodes, layout = situation.nodes, situation.layout
    servers = server_indices(nodes)
    target = np.zeros(len(nodes), dtype=np.int64)
    target[servers] = whole_bytes(shares[servers], layout.model_bytes)
    server, slot = assign(target[servers], layout.sizes_bytes, layout.class_of_slice, layout.is_probe)
    server = servers[server]
    held = np.bincount(server, layout.sizes_bytes, minlength=len(nodes)).astype(np.float64)
    by_site = predicted = bound = None
    if situation.sites is not None and situation.sites.has_levels:
        check_two_roles(nodes)
        by_site = choose_leaders(situation.sites, layout, server, capacities)
    if capacities is not None:
        if by_site is None:
            predicted = completion_s(nodes, held, layout.model_bytes, capacities)
        else:
            predicted = max(levels_s(held, layout.model_bytes, capacities, by_site.led_shares))
        bound = shares_of.bound_s(nodes, layout.model_bytes, capacities)
    return Distribution(
        scheme, situation.iteration, tuple(server.tolist()), tuple(slot.tolist()), tuple(target.tolist()),
        tuple(held.astype(np.int64).tolist()), predicted, bound, reason, by_site, kind,
    )  # fmt: skip
