"""From samples to plans: what the coordinator knows of the job's nodes, slices, slots and rates."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from nalb.batching.joint_control import LinkKnowledge
from nalb.errors import InputError
from nalb.feedback.routing import Routing
from nalb.feedback.trust import Outcome, Trust
from nalb.feedback.window import delay_counts, delay_s, window_with_delay, window_without_delay
from nalb.measurement.cores import CoreEstimator, Work
from nalb.measurement.estimates import Estimate
from nalb.measurement.estimators import Estimator, estimator_of
from nalb.measurement.rules import RULES, Rules
from nalb.measurement.samples import Ints, Samples
from nalb.measurement.shared_uplinks import SharedUplink, SharedUplinkSearch
from nalb.measurement.traffic import Traffic
from nalb.planning.distribution import DecisionKind, Distribution, Situation
from nalb.planning.elastic import OBSERVATIONS_KEPT, ServerObservation
from nalb.planning.leaders import SitePlan
from nalb.planning.levels import lan_load_bytes
from nalb.planning.nodes import Capacities, CoreTimes, Floats, Node, completion_s, load_bytes
from nalb.planning.sites import Sites
from nalb.planning.slices import NUM_PROBE, Layout, Tensor, build_layout
from nalb.planning.slots import STOCK_KEYS
from nalb.planning.stock import route
from nalb.protocol import messages as m
from nalb.protocol.messages import FAR_S
from nalb.protocol.slot_numbers import PlanSlots
from nalb.schemes import SCHEMES, STOCK, Scheme, find_scheme

NOBODY: Mapping[str, int] = MappingProxyType({})
REMEMBERED = 4096  # plans: more than there are iterations within a deadline
HEADER_BYTES = 1000  # of a slice's message, at most


@dataclass(frozen=True)
class PlanDecision:
    """A plan and the slots that must exist before it may go out."""

    plan: m.Plan
    new_slots: list[m.NewSlots]


def _passing_bytes(plan: Distribution) -> Ints:
    """The most that one node has to send to the servers on each node, or to have from them, in an iteration, shape (N,)."""
    shares = np.array(plan.shares_bytes, dtype=np.int64)
    return shares if plan.by_site is None else shares + 2 * np.array(plan.by_site.led_bytes, dtype=np.int64)


class Planner:
    """One job's planner; pure apart from what it has been told."""

    def __init__(
        self,
        names: list[str],
        workers: set[str],
        servers: dict[str, int],
        new_estimator: Callable[[int], Estimator],
        inflight_bytes: int | None,
        schemes: Mapping[str, Scheme] = SCHEMES,
        sites: Sites | None = None,
        site_servers: Mapping[str, int] = NOBODY,
        rules: Rules = RULES,
    ):
        """new_estimator: from the number of nodes. schemes: by the names that `decide` is asked for.

        sites: of the nodes; None: sums have one level. site_servers: their ranks, as `servers` are those of the global ones.
        """
        self.sites = sites
        self.names = names
        self.nodes = [Node(name, name in workers, name in servers) for name in names]
        self._is_bounded = all(
            node.is_worker for node in self.nodes
        )  # else other shares may take far longer than a plan
        self._rank_of_node = {i: servers[name] for i, name in enumerate(names) if name in servers}
        self.inflight_bytes = inflight_bytes
        self.round_trip_s = 0.0  # to the farthest node, without queues
        self.is_bbr = False  # TCP's congestion control is BBR to all nodes that are far
        self.compute_spread_s = 0.0  # of the last iteration: from the first worker that had computed to the last one
        self.may_leave_routing = sites is None  # to MXNet: nor where sums of slices are checked
        self._schemes = schemes
        self._rules = rules
        self._estimator = estimator_of(new_estimator, len(names), sites, rules)
        self._search = None if sites is not None else SharedUplinkSearch(len(names), rules)
        self._shared_uplinks: list[SharedUplink] = []  # not told yet
        self._cores = CoreEstimator(len(names))
        self._observations: list[deque[ServerObservation]] = [deque(maxlen=OBSERVATIONS_KEPT) for _ in names]
        self.configured: Capacities | None = None
        self.for_bound: Capacities | None = None  # for sums by sites, where these nodes can do them
        self._layout: Layout | None = None
        site_rank_of_node = {i: site_servers[name] for i, name in enumerate(names) if name in site_servers}
        self._slots = PlanSlots(self._rank_of_node, site_rank_of_node, sites)
        self.joint_shares: Floats | None = None  # per node, bytes: what scheme joint asks for
        self.present: Distribution | None = None  # None while MXNet routes by itself
        self._present_scheme = STOCK
        self._shares: deque[Ints] = deque(maxlen=REMEMBERED)  # of each iteration, the last one's last
        self.is_measured = False
        self._trust = Trust(rules)
        self._routing = Routing(rules)
        self._first_key: dict[tuple[Tensor, ...], int] = {}  # of MXNet's own, by registered tensors
        self._own_shares: Floats | None = None  # per node, bytes, by MXNet's own routing; None: not to be used
        self._sent_window = 0  # bytes, with the last plan
        self.reason = ""  # of the last decision, for people
        self._kind = DecisionKind.ROUTED  # of the last decision

    @property
    def server_count(self) -> int:
        """How many servers sum for all workers."""
        return len(self._rank_of_node)

    @property
    def layout(self) -> Layout:
        """What the registered tensors were cut into."""
        assert self._layout is not None
        return self._layout

    def configure(self, message: m.Configured) -> None:
        """Learn the configured rates, for the oracle and the bound. Uplinks count where sums have two levels."""
        self.configured = message.capacities(self.names, self.sites)
        self.for_bound = message.for_bound(self.nodes)

    def register(
        self,
        tensors: Sequence[m.TensorSpec],
        alpha_bytes: float,
        fixed_slice_bytes: float | None = None,
        num_probe: int = NUM_PROBE,
    ) -> str:
        """Cut what the workers push; returns the layout's digest. InputError where it cannot be cut, or keys may run out."""
        layout = build_layout(
            [Tensor(t.name, t.elements, t.dtype, t.group) for t in tensors],
            num_nodes=len(self.nodes),
            num_servers=len(self._rank_of_node),
            alpha_bytes=alpha_bytes,
            fixed_slice_bytes=fixed_slice_bytes,
            num_probe=num_probe,
        )
        self._slots.reserve(layout)
        if self._layout is not None and layout.tensors != self._layout.tensors:
            self._trust.begin()
            self._routing.begin()
            for window in self._observations:
                window.clear()
        self._layout, self.present = layout, None
        first = self._first_key.setdefault(layout.tensors, sum(map(len, self._first_key)))
        keys = range(first, first + len(layout.tensors))
        self._own_shares = None
        if keys.stop <= STOCK_KEYS and self.may_leave_routing and self._is_bounded:
            node_of_rank = {rank: node for node, rank in self._rank_of_node.items()}
            sizes_bytes, ranks = route(layout.tensors, len(node_of_rank), keys)
            on_node = np.array([node_of_rank[rank] for rank in ranks.tolist()])
            self._own_shares = np.bincount(on_node, sizes_bytes, len(self.nodes)).astype(np.float64)
        return layout.digest()

    @property
    def by_site(self) -> SitePlan | None:
        """Who leads, by the present plan; None where sums have one level."""
        return None if self.present is None else self.present.by_site

    @property
    def mean_load_bytes(self) -> float:
        """What a node carries each way by the present plan, on average; 0 where MXNet routes by itself."""
        if self.present is None:
            return 0.0
        return float(self.load_bytes(self.present).mean())

    @property
    def estimate(self) -> Estimate:
        """What is known of the links."""
        return self._estimator.estimate()

    @property
    def slot_count(self) -> int:
        """How many slots plans have asked for, on all servers."""
        return self._slots.total

    def new_shared_uplinks(self) -> list[SharedUplink]:
        """What was noticed since the last call."""
        found, self._shared_uplinks = self._shared_uplinks, []
        return found

    def load_bytes(self, plan: Distribution) -> Floats:
        """What each node carries, in the direction in which it carries more: bytes, shape (N,)."""
        shares, model_bytes = plan.held_shares, self.layout.model_bytes
        if plan.by_site is None:
            return load_bytes(self.nodes, shares, model_bytes)
        return np.asarray(lan_load_bytes(plan.by_site.sites, shares, plan.by_site.led_shares, model_bytes).max(axis=0))

    def observe(
        self,
        samples: Samples,
        took_s: float,
        exposed_s: float = 0.0,
        work: Work | None = None,
        iteration_s: float = 0.0,
    ) -> None:
        """One iteration's samples, how long it took from first push to last pull, and its work for the nodes' cores.

        exposed_s: of it, after all had computed. Before, links also waited for gradients: so the exchange alone would have
        taken something between the two, and only what lies outside is held against the estimates.
        """
        if not len(samples):
            return
        exchange_s = exposed_s or took_s
        traffic = Traffic(samples, False if work is None else work.are_full(exchange_s))
        is_free, present = not self._sent_window, self.present
        is_refuted = self._estimator.observe(traffic)
        if self._search is not None:
            self._shared_uplinks += self._search.observe(traffic)
        if present is None:
            return
        if work is not None:
            self._cores.observe(work, present.held_shares)
        outcome = self._outcome(present, took_s, exchange_s, is_refuted)
        self._trust.judge(outcome)
        is_explained = not (outcome.is_late(self._rules) or is_refuted)
        self._routing.judge_plan(iteration_s or took_s, outcome.took_s, is_explained, self._own_links_s())
        if is_free or self._present_scheme.learns_from_times:
            served_s = traffic.served_s(len(self.nodes))
            for one in np.flatnonzero(served_s > traffic.first_s).tolist():
                self._observations[one].append(
                    ServerObservation(present.shares_bytes[one], served_s[one] - traffic.first_s)
                )

    def note_unmeasured(self, iteration_s: float) -> None:
        """Take in an iteration that was not timed message by message."""
        if self._kind is DecisionKind.LEFT:
            self._routing.judge_own(iteration_s)

    def _own_links_s(self) -> float:
        """What the links need for MXNet's own loads, by what is known for sure; infinite where that, or they, are not known."""
        known = self._known(self.estimate, None)
        if known is None or self._own_shares is None:
            return math.inf
        return completion_s(self.nodes, self._own_shares, self.layout.model_bytes, known) + delay_s(self.round_trip_s)

    def is_settled(self, scheme: str, forecasts: bool | None = None) -> bool:
        """Whether the present iteration cannot change the next plan, which `decide` may then be asked for at once."""
        chosen = find_scheme(scheme, self._schemes)
        if chosen.may_leave_routing:
            return self._kind is DecisionKind.LEFT and self._routing.is_settled
        return (chosen.routes_itself or chosen.is_equal) and not (chosen.measures or forecasts)

    def most_bytes(self, iterations: int) -> Floats:
        """What plans have let one node send to the server on each node, or have from it, over so many iterations, shape (N,).

        The one before them is included, of which some may have been left, and room for headers.
        """
        if self.present is None:
            return np.full(len(self.nodes), np.inf)
        room = HEADER_BYTES * len(self.present.server_of_slice)
        lately = [self._shares[-k] for k in range(1, min(iterations + 1, len(self._shares)) + 1)]
        lately *= 1 + (len(lately) == 1)  # the first iteration may bring what came before it, without a plan
        return np.asarray(np.sum(lately, axis=0, dtype=np.float64) + room * len(lately))

    def _outcome(self, present: Distribution, took_s: float, exchange_s: float, is_refuted: bool) -> Outcome:
        """The exchange alone took something between the two."""
        explained_s = None
        known = self._known(self.estimate, self.core_times())
        if known is not None:
            links_s = completion_s(self.nodes, present.held_shares, self.layout.model_bytes, known)
            explained_s = links_s + delay_s(self.round_trip_s)
            exchange_s = min(max(explained_s, exchange_s), took_s)
        scheme = self._present_scheme
        has_equal_shares = scheme.is_equal or self._kind in (DecisionKind.UNMEASURED, DecisionKind.DISTRUSTED)
        return Outcome(
            exchange_s, explained_s, is_refuted, has_equal_shares, scheme.follows_estimates, self._is_bounded
        )

    def _known(self, estimate: Estimate, cores: CoreTimes | None) -> Capacities | None:
        """What is known for sure; None while not all is measured."""
        least, uplinks = estimate.least, None if estimate.uplinks is None else estimate.uplinks.least
        return Capacities.from_estimates(self.nodes, least[0], least[1], estimate.pairs, cores, self.sites, uplinks)[0]

    def _capacities(self) -> Capacities | None:
        estimate, cores = self.estimate, self.core_times()
        uplinks = None if estimate.uplinks is None else estimate.uplinks.rates
        return Capacities.from_estimates(
            self.nodes, estimate.up, estimate.down, estimate.pairs, cores, self.sites, uplinks
        )[0]

    def core_times(self) -> CoreTimes | None:
        """By shares, as far as measured; none by sites: there a node also works for what it leads, which no share tells."""
        return self._cores.times() if self.sites is None else None

    def network(self, rank_of_node: Mapping[str, int]) -> LinkKnowledge | None:
        """What a joint plan may know; None while the links are not measured or do not set the pace."""
        capacities = self._capacities()
        if capacities is None or self._layout is None or self._trust.needs_equal_shares:
            return None
        ranks = [rank_of_node[node.name] for node in self.nodes if node.is_worker]
        return LinkKnowledge(self.nodes, ranks, self._layout.model_bytes, capacities)

    def decide(
        self, iteration: int, layout_version: int, scheme: str, forecasts: bool | None = None, most: int = 1
    ) -> PlanDecision:
        """The plan of an iteration, or of some from it on. Empty where MXNet routes. Raises InputError.

        forecasts: whether messages are timed; None: as the scheme needs. most: iterations.
        """
        assert self._layout is not None
        chosen = find_scheme(scheme, self._schemes)
        self.is_measured = chosen.measures if forecasts is None else forecasts
        if self.sites is not None and chosen.routes_itself:
            raise InputError(f"scheme {scheme} has one level, and this job sums by sites: start it with --one-level")
        own = self._routing.choose_own(most) if chosen.may_leave_routing else 0
        if own or chosen.routes_itself:
            self.is_measured &= not own
            self.present, self._sent_window = None, 0
            self._kind = DecisionKind.LEFT if own else DecisionKind.ROUTED
            self.reason = "MXNet's own routing: plans take no less" if own else f"{scheme}: MXNet's own routing"
            until = iteration + (own or 1) - 1
            return PlanDecision(
                m.Plan(iteration, until, layout_version, STOCK.name if own else scheme, self.is_measured, 0, [], []), []
            )
        situation = Situation(
            iteration,
            self.nodes,
            self._layout,
            self._capacities(),
            self.configured,
            [tuple(window) for window in self._observations],
            self.present.shares_bytes if self.present and self._present_scheme == chosen else None,
            not self._trust.needs_equal_shares,
            self.joint_shares,
            self.sites,
        )
        plan, self.reason = chosen.plan(situation)
        if plan is not None:
            self.present, self._present_scheme = plan, chosen
        assert self.present is not None
        self._kind = self.present.kind
        if plan is None and self._kind is not DecisionKind.PLANNED:  # equal shares stay, by another need or by choice
            self._kind = situation.equal_need or DecisionKind.PLANNED
        self._shares.append(_passing_bytes(self.present))
        ranks, slots, leaders, new_slots = self._slots.place(self._layout, self.present)
        self._sent_window = self._window()
        told = m.Plan(
            iteration, iteration, layout_version, scheme, self.is_measured, self._sent_window, ranks, slots, leaders
        )
        return PlanDecision(told, new_slots)

    def _window(self) -> int:
        """Bytes of a worker under way at a time; 0: any."""
        assert self.present is not None
        if self.inflight_bytes is not None:
            return self.inflight_bytes
        if self._present_scheme.learns_from_times:
            return 0
        estimate, links_s, model_bytes = self.estimate, self.present.predicted_s, self.layout.model_bytes
        links_s = links_s if estimate.complete else None
        if links_s and self.round_trip_s >= FAR_S and delay_counts(self.round_trip_s, links_s):
            shared = estimate if estimate.uplinks is None else estimate.uplinks  # a site's slices share its uplink
            fastest = shared.least.min(axis=0).max()
            return window_with_delay(model_bytes, self.round_trip_s, fastest, self.is_bbr)
        if not (self._trust.allow_window(self.sites is not None) and links_s):
            return 0
        return window_without_delay(model_bytes, links_s, estimate.least.min(), self.compute_spread_s)
