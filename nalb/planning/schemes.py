"""The schemes that plan: each looks at a Situation and answers (Distribution | None, reason). None keeps the present plan.

    average   equal shares
    elastic   shares of equal predicted time, from observed loads and times (elastic.py)
    aware     pairwise equalisation on estimated capacities (Cai et al., Algorithm 1); caps of pairs are not seen
    exact     the optimum on estimated capacities, caps of pairs included where they are given
    oracle    the optimum on configured capacities
    joint     the shares of a plan that sets batch sizes too (batching/joint_control.py); as exact until there is one

Reasons carry names, not measured numbers, so that they change only when the kind of decision does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nalb.errors import InputError, listed
from nalb.planning import shares as shares_of
from nalb.planning.assignment import assign, whole_bytes
from nalb.planning.elastic import FIXED_SLICE_BYTES, ServerObservation, elastic
from nalb.planning.nodes import Capacities, Floats, Node, completion_s, server_indices
from nalb.planning.slices import Layout


@dataclass(frozen=True)
class Distribution:
    """Where each slice of one iteration goes."""

    scheme: str
    iteration: int
    server_of_slice: tuple[int, ...]  # per slice, the index of its server among the nodes
    slot_of_slice: tuple[int, ...]  # per slice, its slot on that server, from 0 for each slot class
    target_bytes: tuple[int, ...]  # per node, what the scheme asked for; adds up to the model
    shares_bytes: tuple[int, ...]  # per node, what whole slices made of it; adds up to the model
    predicted_s: float | None  # completion time of shares_bytes by the scheme's capacities; None where unknown
    bound_s: float | None  # the least time of any shares by the same capacities
    reason: str


@dataclass(frozen=True)
class Situation:
    """What a scheme may know when it decides."""

    iteration: int  # the one to be planned
    nodes: Sequence[Node]  # in planning order
    layout: Layout
    estimated: Capacities | None = None  # None: not measured yet
    configured: Capacities | None = None  # None: nobody said
    observations: Sequence[Sequence[ServerObservation]] = ()  # per node, newest last
    present: Distribution | None = None  # what runs now
    links_set_pace: bool = True  # False: equal shares are needed, whatever is known (feedback/trust.py)
    joint_shares: Floats | None = None  # per node, bytes, adding up to the model: the network's half of a joint plan


ChosenDistribution = tuple[Distribution | None, str]
NOT_MEASURED = "equal shares until every node is measured"
NOT_THE_LINKS = "equal shares: plans do not take what the links need"
FULL_PART = 0.95  # of the plan's time: a slice is a few hundredths of a share
EQUAL_BY_NEED = (NOT_MEASURED, NOT_THE_LINKS)  # reasons of equal shares that were not asked for


def fixed_slice_bytes(scheme: str) -> float | None:
    """The slice size of a scheme that does not ask alpha for it."""
    return FIXED_SLICE_BYTES if scheme == "elastic" else None


def decide(scheme: str, situation: Situation) -> ChosenDistribution:
    """The named scheme's decision. Raises InputError for an unknown scheme, and what the scheme itself raises."""
    if scheme not in SCHEMES:
        raise InputError(f"unknown scheme {scheme!r}: choose one of {', '.join(SCHEMES)}")
    return SCHEMES[scheme](situation)


def build_plan(
    scheme: str, situation: Situation, shares: Floats, capacities: Capacities | None, reason: str
) -> Distribution:
    """Shares in bytes per node made whole: slices assigned, slots numbered, times predicted. Cost: see assign.

    Probes count against a server's share; where they exceed it, the server has just its probes.
    """
    nodes, layout = situation.nodes, situation.layout
    servers = server_indices(nodes)
    target = np.zeros(len(nodes), dtype=np.int64)
    target[servers] = whole_bytes(shares[servers], layout.model_bytes)
    server, slot = assign(target[servers], layout.sizes_bytes, layout.class_of_slice, layout.is_probe)
    server = servers[server]
    held = np.bincount(server, layout.sizes_bytes, minlength=len(nodes)).astype(np.float64)
    predicted = bound = None
    if capacities is not None:
        predicted = completion_s(nodes, held, layout.model_bytes, capacities)
        bound = shares_of.bound_s(nodes, layout.model_bytes, capacities)
    return Distribution(
        scheme, situation.iteration, tuple(server.tolist()), tuple(slot.tolist()), tuple(target.tolist()),
        tuple(held.astype(np.int64).tolist()), predicted, bound, reason,
    )  # fmt: skip


def _by_estimates(scheme: str, situation: Situation, shares: Floats, reason: str) -> ChosenDistribution:
    """The plan, and in its reason the nodes whose cores take as long as any link."""
    plan, known = build_plan(scheme, situation, shares, situation.estimated, reason), situation.estimated
    if known is not None and known.cores is not None and plan.predicted_s is not None:
        cores_s = known.cores.of_shares(np.array(plan.shares_bytes, dtype=np.float64))
        full = [situation.nodes[i].name for i in np.flatnonzero(cores_s >= FULL_PART * plan.predicted_s).tolist()]
        if full:
            plan = replace(plan, reason=f"{reason}; at their cores' limit: {listed(full)}")
    return plan, plan.reason


def _average(situation: Situation, scheme: str = "average", reason: str = "equal shares") -> ChosenDistribution:
    shares = shares_of.average(situation.nodes, situation.layout.model_bytes)
    return build_plan(scheme, situation, shares, situation.estimated, reason), reason


def _elastic(situation: Situation) -> ChosenDistribution:
    observations = situation.observations or [()] * len(situation.nodes)
    shares, reason = elastic(situation.nodes, situation.layout.model_bytes, observations)
    if shares is not None:
        return build_plan("elastic", situation, shares, situation.estimated, reason), reason
    present = situation.present
    if (
        present is not None
        and present.scheme == "elastic"
        and len(present.server_of_slice) == len(situation.layout.slices)
    ):
        return None, reason
    return _average(situation, "elastic", f"equal shares to begin with ({reason})")


def _aware(situation: Situation) -> ChosenDistribution:
    if situation.estimated is None or not situation.links_set_pace:
        return _average(situation, "aware", NOT_MEASURED if situation.estimated is None else NOT_THE_LINKS)
    shares = shares_of.pairwise(situation.nodes, situation.layout.model_bytes, situation.estimated)
    return _by_estimates("aware", situation, shares, "estimated times brought together pair by pair")


def _exact(situation: Situation) -> ChosenDistribution:
    if situation.estimated is None or not situation.links_set_pace:
        return _average(situation, "exact", NOT_MEASURED if situation.estimated is None else NOT_THE_LINKS)
    shares, _ = shares_of.exact(situation.nodes, situation.layout.model_bytes, situation.estimated)
    return _by_estimates("exact", situation, shares, "least time by estimated capacities")


def _joint(situation: Situation) -> ChosenDistribution:
    shares = situation.joint_shares
    if shares is None or situation.estimated is None or not situation.links_set_pace:
        plan, reason = _exact(situation)
        return plan and replace(plan, scheme="joint"), reason
    return _by_estimates("joint", situation, shares, "least time of machines and links together")


def _oracle(situation: Situation) -> ChosenDistribution:
    if situation.configured is None:
        raise InputError("scheme 'oracle' needs configured rates: run it in a network file's network (--network)")
    shares, _ = shares_of.exact(situation.nodes, situation.layout.model_bytes, situation.configured)
    reason = "least time by configured capacities"
    return build_plan("oracle", situation, shares, situation.configured, reason), reason


SCHEMES: dict[str, Callable[[Situation], ChosenDistribution]] = {
    "average": _average,
    "elastic": _elastic,
    "aware": _aware,
    "exact": _exact,
    "auto": _exact,  # the best of those that measure: docs/results/networks.md
    "oracle": _oracle,
    "joint": _joint,
}
