"""Decides the next iterations, as a function of where the job is, of what is known, and of what is asked for. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from nalb.errors import InputError
from nalb.planning.distribution import DecisionKind, Distribution, Situation
from nalb.planning.nodes import Floats
from nalb.planning.slices import Layout
from nalb.schemes import AVERAGE, STOCK, Scheme
from nalb.services.exchange.knowledge import Known


@dataclass(frozen=True)
class PlanOptions:
    """The options of the next plan."""

    scheme: Scheme
    forecasts: bool | None = None  # whether messages are timed; None: as the scheme needs
    inflight_bytes: int | None = None  # the window; None: chosen by what is known
    joint_shares: Floats | None = None  # per node, bytes: what scheme joint asks for

    @property
    def measures(self) -> bool:
        """Whether the iteration's messages are timed."""
        return self.scheme.measures if self.forecasts is None else self.forecasts


@dataclass(frozen=True)
class Decision:
    """Who distributes the slices of some iterations, and how."""

    scheme: Scheme  # STOCK where iterations are left to the framework, AVERAGE where delay sets the pace
    plan: Distribution | None  # None: MXNet routes by itself
    kind: DecisionKind
    reason: str  # for people
    is_measured: bool  # messages are timed
    iterations: int = 1  # how many iterations in a row it holds for

    @property
    def has_equal_shares(self) -> bool:
        """Whether shares are equal, by choice or by need."""
        return self.scheme.is_equal or self.kind in (DecisionKind.UNMEASURED, DecisionKind.DISTRUSTED)


@dataclass(frozen=True)
class PlanContext:
    """Where a job is when it decides."""

    iteration: int  # the first one to be decided on
    layout: Layout
    present: Decision | None  # None: nothing was decided since tensors were cut
    needs_equal_shares: bool  # the estimates are not trusted
    other_iterations: int = 0  # how many iterations go the other way (other_way.py)
    other_is_equal: bool = False  # that way is equal shares
    last: Distribution | None = None  # the last plan of the scheme that is asked; tensors may have been cut anew since


def decide(now: PlanContext, known: Known, options: PlanOptions) -> Decision:
    """Decide the next iterations. Raises InputError for what cannot be planned."""
    scheme, measures = options.scheme, options.measures
    if known.nodes.sites is not None and scheme.routes_itself:
        raise InputError(f"scheme {scheme.name} has one level, and this job sums by sites: start it with --one-level")
    if now.other_iterations and not now.other_is_equal:
        reason = "the framework's own routing: plans take no less"
        return Decision(STOCK, None, DecisionKind.LEFT, reason, False, now.other_iterations)
    if scheme.routes_itself:
        return Decision(scheme, None, DecisionKind.ROUTED, f"{scheme.name}: the framework's own routing", measures)
    present = now.present.plan if now.present is not None and now.present.scheme == scheme else None
    kept = None
    if (last := present or now.last) is not None:
        shares = np.array(last.shares_bytes, dtype=np.float64)
        kept = shares * (now.layout.model_bytes / shares.sum())
    situation = Situation(
        now.iteration,
        known.nodes.nodes,
        now.layout,
        known.capacities,
        None if known.configured is None else known.configured.capacities,
        known.observations,
        None if kept is None else kept.tolist(),
        not now.needs_equal_shares,
        options.joint_shares,
        known.nodes.sites,
    )
    if now.other_iterations:
        plan, _ = AVERAGE.plan(situation)
        reason = "equal shares: delay sets the pace, and plans take no less"
        return Decision(AVERAGE, plan, DecisionKind.LEFT, reason, False, now.other_iterations)
    plan, reason = scheme.plan(situation)
    if plan is None and present is None:  # slices are other ones than those of the plan that it keeps
        plan, reason = replace(scheme, decide=lambda _: (kept, reason)).plan(situation)
    if plan is not None:
        return Decision(scheme, plan, plan.kind, reason, measures)
    assert present is not None
    kind = present.kind
    if kind is not DecisionKind.PLANNED:  # equal shares stay, by another need or by choice
        kind = situation.equal_need or DecisionKind.PLANNED
    return Decision(scheme, present, kind, reason, measures)
