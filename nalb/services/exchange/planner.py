"""Makes a job's plans, one after the other, from knowledge, trust, decision and slots. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from nalb.batching.joint_control import LinkKnowledge
from nalb.feedback.early_plans import EarlyPlans
from nalb.feedback.routing import Routing
from nalb.feedback.trust import Outcome, Trust
from nalb.feedback.window import choose_windows, delay_counts
from nalb.measurement.estimators import Estimator
from nalb.measurement.rules import RULES, Rules
from nalb.measurement.shared_uplinks import SharedUplink
from nalb.planning.distribution import DecisionKind, Distribution
from nalb.planning.precisions import STEPS
from nalb.planning.slices import NUM_PROBE, Layout, Tensor, build_layout, wire_dtype
from nalb.services.exchange import messages as m
from nalb.services.exchange.decision import Decision, PlanContext, PlanOptions, decide
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.knowledge import FinishedIteration, Known, NetworkKnowledge
from nalb.services.exchange.other_way import OtherWay
from nalb.services.exchange.planes import AGENTS, Plane, Slots
from nalb.services.exchange.precision import PrecisionChoice


@dataclass(frozen=True)
class Planned:
    """A decision as workers are told it, and the slots that must exist before."""

    decision: Decision
    message: m.Plan  # without windows
    new_slots: list[m.NewSlots]
    windows: Sequence[int] = ()  # the bytes that each node's worker may have under way; empty: no limit
    may_have_window: bool = True  # see Trust.has_window
    is_early: bool = False  # made before the iteration before it ended
    is_first: bool = False  # of a block: workers also waited for what ran before


class Planner:
    """Plans a job's iterations one after the other, and judges what came of each plan."""

    def __init__(
        self,
        nodes: JobNodes,
        knowledge: NetworkKnowledge,
        slots: Slots,
        other: OtherWay,
        rules: Rules = RULES,
        precision: str = STEPS[0],
        plans_early: bool = False,
    ):
        """precision: what the job's options ask for. plans_early: as of Plane."""
        self.knowledge, self.precisions = knowledge, PrecisionChoice(nodes.nodes, precision)
        self.chosen = self.precisions.wanted  # of the present layout's plans
        self.present: Planned | None = None  # the last plan since tensors were cut
        self._last: dict[str, Distribution] = {}  # each scheme's last plan, by its name
        self._slots, self._other = slots, other
        self._trust, self._early = Trust(rules), EarlyPlans(rules)
        self._begins_block, self._plans_early = False, plans_early
        self._is_far = False  # delay counted when the last plan was made
        # Whether an iteration by plan has been judged since the last one that was not, and since the block began.
        self._is_fresh = False
        self._layout: Layout | None = None

    @property
    def nodes(self) -> JobNodes:
        """The job's nodes."""
        return self.knowledge.nodes

    @property
    def layout(self) -> Layout:
        """The layout of the registered tensors."""
        assert self._layout is not None
        return self._layout

    @property
    def slot_count(self) -> int:
        """The number of slots that plans have asked for, on all servers."""
        return self._slots.total

    def register(
        self,
        tensors: Sequence[m.TensorSpec],
        alpha_bytes: float,
        fixed_slice_bytes: float | None = None,
        num_probe: int = NUM_PROBE,
        precision: str = STEPS[0],
    ) -> Layout:
        """Cut the tensors that workers push. Raises InputError where they cannot be cut, or keys may run out.

        precision: of answers.
        """
        layout = build_layout(
            [Tensor(t.name, t.elements, wire_dtype(t.dtype, precision), t.group) for t in tensors],
            num_nodes=len(self.nodes.nodes),
            num_servers=len(self.nodes.rank_of_node),
            alpha_bytes=alpha_bytes,
            fixed_slice_bytes=fixed_slice_bytes,
            num_probe=num_probe,
        )
        self._slots.reserve(layout)
        if has_others := self._layout is not None and layout.tensors != self._layout.tensors:
            self._trust.begin()
            self._early.begin()
            self.knowledge.forget_tensors()
        self._other.begin(layout, has_others)
        self._layout, self.present = layout, None
        self._push_in_wanted()
        return layout

    def _push_in_wanted(self) -> None:
        """Have plans of the present layout push in the precisions that are wanted."""
        self.chosen = self.precisions.wanted
        self.knowledge.note_precisions(self.chosen.precisions, self.layout.tensors)

    def consider_precisions(self) -> None:
        """Choose the precisions of later plans, by what is known. Cost: that of `PrecisionModel.choose`."""
        present = self.present
        if present is not None and present.decision.kind is DecisionKind.PLANNED:
            known = self.knowledge.now
            self.precisions.consider(known, self.layout.tensors, known.iteration)

    def begin_block(self) -> None:
        """Take in that the next iteration is the first of a block: another job or scheme may have run since the last one."""
        self._begins_block, self._is_fresh = True, False

    def is_settled(self, options: PlanOptions) -> bool:
        """Whether the present iteration cannot change the next plan, so that `plan` may be called at once."""
        scheme = options.scheme
        if self.precisions.wanted is not self.chosen:  # the next plan needs tensors that are cut anew
            return False
        if scheme.may_leave_routing:
            return self._is_left and self._other.is_settled
        return (scheme.routes_itself or scheme.is_equal) and not (scheme.measures or options.forecasts)

    @property
    def _is_left(self) -> bool:
        """Whether the present iteration goes the other way."""
        return self.present is not None and self.present.decision.kind is DecisionKind.LEFT

    def should_plan_early(self, options: PlanOptions) -> bool:
        """Whether `plan` should be called before the present iteration has ended, though that may change the next plan."""
        scheme, present = options.scheme, self.present
        return (
            self._plans_early
            and present is not None
            and present.decision.kind is DecisionKind.PLANNED
            and present.decision.scheme == scheme
            and scheme.follows_estimates
            and not scheme.sizes_batches  # its plan also decides the batches of the iteration that it is made for
            and options.measures
            and self.precisions.wanted is self.chosen
            and not self._trust.needs_equal_shares
            and not self._trust.looks_next(self._ignores_late)  # then the wait is measured anew as well
            and self._is_fresh
            and self._early.pay
        )

    def plan(
        self, iteration: int, layout_version: int, options: PlanOptions, most: int = 1, is_early: bool = False
    ) -> Planned:
        """Make the plan of an iteration, or of up to `most` iterations from it on. Raises InputError.

        is_early: the iteration before has not ended.
        """
        if self.precisions.wanted is not self.chosen:
            self._push_in_wanted()
        known, other = self.knowledge.now, self._other
        others = other.choose(most) if options.scheme.may_leave_routing else 0
        present = None if self.present is None else self.present.decision
        last = self._last.get(options.scheme.name)
        now = PlanContext(iteration, self.layout, present, self._trust.needs_equal_shares, others, other.is_equal, last)
        decision = decide(now, known, options)
        if decision.plan is not None:
            self._last[decision.scheme.name] = decision.plan
        planned = self._planned(decision, known, iteration, layout_version, options.inflight_bytes)
        self.present = replace(planned, is_early=is_early, is_first=self._begins_block)
        self._begins_block = False
        if decision.kind is not DecisionKind.PLANNED:
            self._is_fresh = False
        return self.present

    def _planned(
        self, decision: Decision, known: Known, iteration: int, layout_version: int, inflight_bytes: int | None
    ) -> Planned:
        """Add slots to the decision, and windows."""
        plan, until, name = decision.plan, iteration + decision.iterations - 1, decision.scheme.name
        if plan is None:
            message = m.Plan(iteration, until, layout_version, name, decision.is_measured, [], [], [])
            return Planned(decision, message, [])
        ranks, slots, leaders, new_slots = self._slots.place(self.layout, plan)
        if inflight_bytes is None:
            windows = self._windows(decision, plan, known)
        else:
            windows = [inflight_bytes] * len(self.nodes.nodes) if inflight_bytes else []
        measure = decision.is_measured
        pushes = self._pushes_by_rank()
        message = m.Plan(iteration, until, layout_version, name, measure, [], ranks, slots, leaders, pushes)
        return Planned(decision, message, new_slots, windows, self._trust.has_window and not self._is_far)

    def _pushes_by_rank(self) -> list[str]:
        """The precision in which each rank pushes; none where all push in that of the answers."""
        precisions, rank_of_node = self.chosen.precisions, self.nodes.rank_of_node
        if set(precisions.pushes) == {precisions.answers}:
            return []
        return [precisions.pushes[node] for node in sorted(rank_of_node, key=rank_of_node.__getitem__)]

    def _windows(self, decision: Decision, plan: Distribution, known: Known) -> list[int]:
        """The windows of a decision's plan where no block asks for one."""
        if decision.scheme.learns_from_times:
            return []
        pace = known.pace(plan, self.layout)
        self._is_far = pace is not None and delay_counts(pace.round_trip_s, pace.links_s)
        if decision.kind is DecisionKind.LEFT:  # nothing is timed, so no look at links without a window is due
            return choose_windows(pace, lambda: True)
        # asked also where windows do not depend on it: it counts iterations
        may_have = self._trust.allow_window(self._ignores_late)
        return choose_windows(pace, lambda: may_have)

    @property
    def _ignores_late(self) -> bool:
        """Whether a late iteration asks for none without a window: estimates do not explain delay, and see Trust.allow_window."""
        return self.nodes.sites is not None or self._is_far

    def judge(self, finished: FinishedIteration, planned: Planned) -> list[SharedUplink]:
        """Learn from a timed iteration of this plan; returns the uplinks that it shows to be shared."""
        decision, plan = planned.decision, planned.decision.plan
        shows_servers = not planned.windows or decision.scheme.learns_from_times
        learned = self.knowledge.learn(finished, plan, shows_servers)
        if plan is None or not len(finished.samples):
            return learned.shared_uplinks
        known, model_bytes = self.knowledge.now, self.layout.model_bytes
        explained_s = known.exchange_s(plan.held_shares, model_bytes)
        outcome = outcome_of(planned, finished, explained_s, learned.is_refuted, self.nodes.are_all_workers)
        self._trust.judge(outcome)
        if decision.scheme.follows_estimates and decision.kind is DecisionKind.PLANNED:
            wait_s = None if planned.is_early or planned.is_first else finished.plan_wait_s
            self._early.judge(finished.took_s, wait_s, learned.is_refuted)
            self._is_fresh = self.present is not None and self.present.decision.kind is DecisionKind.PLANNED
        if decision.scheme.may_leave_routing:  # else another scheme's plans are compared
            iteration_s = finished.iteration_s or finished.took_s
            early_saves_s = finished.plan_wait_s if self._plans_early else 0.0
            self._other.judge_plan(iteration_s, finished.took_s, known, early_saves_s)
        return learned.shared_uplinks

    def note_unmeasured(self, iteration_s: float) -> None:
        """Learn from an iteration whose messages were not timed."""
        if self._is_left:
            self._other.judge(iteration_s)

    def note_direct(self, iteration_s: float) -> None:
        """Learn how long the iteration before the tensors were registered took, which the framework's own routing summed."""
        self._other.note_direct(iteration_s)

    def link_knowledge(self, rank_of_node: Mapping[str, int]) -> LinkKnowledge | None:
        """The links for a joint plan; None while they are not measured or do not set the pace."""
        capacities = self.knowledge.now.capacities
        if capacities is None or self._layout is None or self._trust.needs_equal_shares:
            return None
        ranks = [rank_of_node[node.name] for node in self.nodes.nodes if node.is_worker]
        return LinkKnowledge(self.nodes.nodes, ranks, self._layout.model_bytes, capacities)


def outcome_of(
    planned: Planned, finished: FinishedIteration, explained_s: float | None, is_refuted: bool, is_bounded: bool
) -> Outcome:
    """The outcome of an iteration of this plan. explained_s: the time by lower bounds of rates; None: not all is measured."""
    exchange_s, decision = finished.exchange_s, planned.decision
    if explained_s is not None:
        exchange_s = min(max(explained_s, exchange_s), finished.took_s)
    follows = decision.scheme.follows_estimates
    equal, may_have_window = decision.has_equal_shares, planned.may_have_window
    return Outcome(exchange_s, explained_s, is_refuted, equal, follows, is_bounded, may_have_window)


def new_planner(
    nodes: JobNodes,
    new_estimator: Callable[[int], Estimator],
    routing: Routing | None = None,
    rules: Rules = RULES,
    plane: Plane = AGENTS,
    precision: str = STEPS[0],
) -> Planner:
    """Make a job's planner, which knows nothing yet. new_estimator: makes an estimator from the number of nodes.

    routing: decides when iterations go the other way; None: by the rules. That way is never the plane's own routing where some node
    is no worker, or where sums have two levels. precision: what the job's options ask for.
    """
    new_loads = plane.new_loads if nodes.sites is None and nodes.are_all_workers else None
    return Planner(
        nodes,
        NetworkKnowledge(nodes, new_estimator, rules),
        plane.new_slots(nodes),
        OtherWay(None if new_loads is None else new_loads(nodes), routing or Routing(rules), rules),
        rules,
        precision,
        plane.plans_early,
    )
