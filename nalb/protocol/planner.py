"""From samples to plans: what the coordinator knows of the job's nodes, slices, slots and rates."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from nalb.batching.joint_control import LinkKnowledge
from nalb.errors import InputError
from nalb.events import ByNode, IterationEvent, LayoutEvent, PlanEvent, Rates, SharedUplinkEvent
from nalb.feedback.routing import Routing
from nalb.feedback.trust import Outcome, Trust
from nalb.feedback.window import delay_counts, delay_s, window_with_delay, window_without_delay
from nalb.measurement.cores import CoreEstimator, Work
from nalb.measurement.estimates import Estimate
from nalb.measurement.estimators import Estimator, with_sites
from nalb.measurement.samples import Ints, Samples
from nalb.measurement.shared_uplinks import SharedUplink, SharedUplinkSearch
from nalb.measurement.traffic import Traffic
from nalb.planning.distribution import Distribution, Situation
from nalb.planning.elastic import WINDOW, ServerObservation
from nalb.planning.leaders import SitePlan
from nalb.planning.levels import lan_load_bytes
from nalb.planning.nodes import Capacities, CoreTimes, Floats, Node, completion_s, load_bytes
from nalb.planning.shares import bound_s, level_bounds_s
from nalb.planning.sites import Sites
from nalb.planning.slices import NUM_PROBE, Layout, Tensor, build_layout
from nalb.planning.slots import STOCK_KEYS, most_plan_slots, most_site_slots
from nalb.planning.stock import route
from nalb.protocol import messages as m
from nalb.protocol.messages import FAR_S
from nalb.protocol.slot_numbers import SlotClass, SlotNumbers
from nalb.schemes import EQUAL_BY_NEED, SCHEMES, STOCK, Scheme, find_scheme

NOBODY: Mapping[str, int] = MappingProxyType({})
REMEMBERED = 4096  # plans: more than there are iterations within a deadline
HEADER_BYTES = 1000  # of a slice's message, at most
NOT_NEEDED = "MXNet's own routing: plans take no less"


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
    ):
        """new_estimator: from the number of nodes. schemes: by the names that `decide` is asked for.

        sites: of the nodes; None: sums have one level. site_servers: their ranks, as `servers` are those of the global ones.
        """
        self.sites = sites
        self._names = names
        self._nodes = [Node(name, name in workers, name in servers) for name in names]
        self._is_bounded = all(
            node.is_worker for node in self._nodes
        )  # else other shares may take far longer than a plan
        self._rank_of_node = {i: servers[name] for i, name in enumerate(names) if name in servers}
        self.inflight_bytes = inflight_bytes
        self.round_trip_s = 0.0  # to the farthest node, without queues
        self.is_bbr = False  # TCP's congestion control is BBR to all nodes that are far
        self.compute_spread_s = 0.0  # of the last iteration: from the first worker that had computed to the last one
        self.may_leave_routing = sites is None  # to MXNet: nor where sums of slices are checked
        self._schemes = schemes
        self._estimator = new_estimator(len(names)) if sites is None else with_sites(new_estimator, sites)
        self._search = None if sites is not None else SharedUplinkSearch(len(names))
        self._shared_uplinks: list[SharedUplink] = []  # not told yet
        self._told_shared: set[tuple[int, ...]] = set()
        self._cores = CoreEstimator(len(names))
        self._observations: list[deque[ServerObservation]] = [deque(maxlen=WINDOW) for _ in names]
        self._configured: Capacities | None = None
        self._for_bound: Capacities | None = (
            None  # those of the bound, which sums by sites need where nodes share uplinks
        )
        self._layout: Layout | None = None
        self._slots = SlotNumbers(self._rank_of_node)
        self._site_slots = SlotNumbers({i: site_servers[name] for i, name in enumerate(names) if name in site_servers})
        self._num_servers = len(servers) + len(site_servers)
        self._most_of_class: Counter[SlotClass] = Counter()  # slices of a class, in the layout that has most of it
        self.joint_shares: Floats | None = None  # per node, bytes: what scheme joint asks for
        self._present: Distribution | None = None  # None while MXNet routes by itself
        self._present_scheme = STOCK
        self._shares: deque[Ints] = deque(maxlen=REMEMBERED)  # of each iteration, the last one's last
        self._measured = False
        self._trust = Trust()
        self._routing = Routing()
        self._first_key: dict[tuple[Tensor, ...], int] = {}  # of MXNet's own, by registered tensors
        self._own_shares: Floats | None = None  # per node, bytes, by MXNet's own routing; None: not to be used
        self._sent_window = 0  # bytes, with the last plan
        self._reason = ""

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
        self._configured = message.capacities(self._names, self.sites)
        self._for_bound = message.for_bound(self._nodes)

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
            num_nodes=len(self._nodes),
            num_servers=len(self._rank_of_node),
            alpha_bytes=alpha_bytes,
            fixed_slice_bytes=fixed_slice_bytes,
            num_probe=num_probe,
        )
        self._reserve_slots(layout)
        if self._layout is not None and layout.tensors != self._layout.tensors:
            self._trust.begin()
            self._routing.begin()
            for window in self._observations:
                window.clear()
        self._layout, self._present = layout, None
        first = self._first_key.setdefault(layout.tensors, sum(map(len, self._first_key)))
        keys = range(first, first + len(layout.tensors))
        self._own_shares = None
        if keys.stop <= STOCK_KEYS and self.may_leave_routing and self._is_bounded:
            node_of_rank = {rank: node for node, rank in self._rank_of_node.items()}
            sizes_bytes, ranks = route(layout.tensors, len(node_of_rank), keys)
            on_node = np.array([node_of_rank[rank] for rank in ranks.tolist()])
            self._own_shares = np.bincount(on_node, sizes_bytes, len(self._nodes)).astype(np.float64)
        return layout.digest()

    def _reserve_slots(self, layout: Layout) -> None:
        """InputError where plans of this layout and of those before it might need more slots on a server than have keys.

        A server gets a new slot of a class only when a plan gives it more slices of that class than it has slots. So it never
        has more slots of a class than some layout has slices of it. Summed over all classes that is the most slots that a
        server can come to have, whatever the rates and in whatever order plans and layouts come. That sum is checked here.
        """
        for slot_class, count in Counter((s.dtype, s.elements) for s in layout.slices).items():
            self._most_of_class[slot_class] = max(self._most_of_class[slot_class], count)
        needed, servers = self._most_of_class.total(), self._num_servers
        most = most_plan_slots(servers) if self.sites is None else most_site_slots(len(self._nodes), servers)
        if needed > most:
            raise InputError(
                f"one server may come to hold {needed} slices, counting those of earlier layouts, and MXNet's key hash allows "
                f"{most} on each of {servers} servers: use larger slices (--alpha-bytes), or push the same keys each time"
            )

    @property
    def by_site(self) -> SitePlan | None:
        """Who leads, by the present plan; None where sums have one level."""
        return None if self._present is None else self._present.by_site

    @property
    def mean_load_bytes(self) -> float:
        """What a node carries each way by the present plan, on average; 0 where MXNet routes by itself."""
        if self._present is None:
            return 0.0
        return float(self._load_bytes(self._present).mean())

    def _load_bytes(self, plan: Distribution) -> Floats:
        """What each node carries, in the direction in which it carries more: bytes, shape (N,)."""
        shares, model_bytes = plan.held_shares, self.layout.model_bytes
        if plan.by_site is None:
            return load_bytes(self._nodes, shares, model_bytes)
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
        is_free, present = not self._sent_window, self._present
        is_refuted = self._estimator.observe(traffic)
        if self._search is not None:
            self._shared_uplinks += self._search.observe(traffic)
        if present is None:
            return
        if work is not None:
            self._cores.observe(work, np.array(present.shares_bytes, dtype=np.float64))
        outcome = self._outcome(present, took_s, exchange_s, is_refuted)
        self._trust.judge(outcome)
        is_explained = not (outcome.is_late or is_refuted)
        self._routing.judge_plan(iteration_s or took_s, outcome.took_s, is_explained, self._own_links_s())
        if is_free or self._present_scheme.learns_from_times:
            served_s = traffic.served_s(len(self._nodes))
            for one in np.flatnonzero(served_s > traffic.first_s).tolist():
                self._observations[one].append(
                    ServerObservation(present.shares_bytes[one], served_s[one] - traffic.first_s)
                )

    def note_unmeasured(self, iteration_s: float) -> None:
        """Take in an iteration that was not timed message by message."""
        if self._reason == NOT_NEEDED:
            self._routing.judge_own(iteration_s)

    def _own_links_s(self) -> float:
        """What the links need for MXNet's own loads, by what is known for sure; infinite where that, or they, are not known."""
        known = self._known(self._estimator.estimate(), None)
        if known is None or self._own_shares is None:
            return math.inf
        return completion_s(self._nodes, self._own_shares, self.layout.model_bytes, known) + delay_s(self.round_trip_s)

    def is_settled(self, scheme: str, forecasts: bool | None = None) -> bool:
        """Whether the present iteration cannot change the next plan, which `decide` may then be asked for at once."""
        chosen = find_scheme(scheme, self._schemes)
        if chosen.may_leave_routing:
            return self._reason == NOT_NEEDED and self._routing.is_settled
        return (chosen.routes_itself or chosen.is_equal) and not (chosen.measures or forecasts)

    def most_bytes(self, iterations: int) -> Floats:
        """What plans have let one node send to the server on each node, or have from it, over so many iterations, shape (N,).

        The one before them is included, of which some may have been left, and room for headers.
        """
        if self._present is None:
            return np.full(len(self._nodes), np.inf)
        room = HEADER_BYTES * len(self._present.server_of_slice)
        lately = [self._shares[-k] for k in range(1, min(iterations + 1, len(self._shares)) + 1)]
        lately *= 1 + (len(lately) == 1)  # the first iteration may bring what came before it, without a plan
        return np.asarray(np.sum(lately, axis=0, dtype=np.float64) + room * len(lately))

    def _outcome(self, present: Distribution, took_s: float, exchange_s: float, is_refuted: bool) -> Outcome:
        """The exchange alone took something between the two."""
        explained_s = None
        known = self._known(self._estimator.estimate(), self._core_times())
        if known is not None:
            shares = np.array(present.shares_bytes, dtype=np.float64)
            links_s = completion_s(self._nodes, shares, self.layout.model_bytes, known)
            explained_s = links_s + delay_s(self.round_trip_s)
            exchange_s = min(max(explained_s, exchange_s), took_s)
        scheme = self._present_scheme
        has_equal_shares = scheme.is_equal or self._reason in EQUAL_BY_NEED
        return Outcome(
            exchange_s, explained_s, is_refuted, has_equal_shares, scheme.follows_estimates, self._is_bounded
        )

    def _known(self, estimate: Estimate, cores: CoreTimes | None) -> Capacities | None:
        """What is known for sure; None while not all is measured."""
        least, uplinks = estimate.least, None if estimate.uplinks is None else estimate.uplinks.least
        return Capacities.from_estimates(self._nodes, least[0], least[1], estimate.pairs, cores, self.sites, uplinks)[0]

    def _capacities(self) -> Capacities | None:
        estimate, cores = self._estimator.estimate(), self._core_times()
        uplinks = None if estimate.uplinks is None else estimate.uplinks.rates
        return Capacities.from_estimates(
            self._nodes, estimate.up, estimate.down, estimate.pairs, cores, self.sites, uplinks
        )[0]

    def _core_times(self) -> CoreTimes | None:
        """By shares; by sites a node also works for what it leads, which no share tells."""
        return self._cores.times() if self.sites is None else None

    def network(self, rank_of_node: Mapping[str, int]) -> LinkKnowledge | None:
        """What a joint plan may know; None while the links are not measured or do not set the pace."""
        capacities = self._capacities()
        if capacities is None or self._layout is None or self._trust.needs_equal_shares:
            return None
        ranks = [rank_of_node[node.name] for node in self._nodes if node.is_worker]
        return LinkKnowledge(self._nodes, ranks, self._layout.model_bytes, capacities)

    def decide(
        self, iteration: int, layout_version: int, scheme: str, forecasts: bool | None = None, most: int = 1
    ) -> PlanDecision:
        """The plan of an iteration, or of some from it on. Empty where MXNet routes. Raises InputError.

        forecasts: whether messages are timed; None: as the scheme needs. most: iterations.
        """
        assert self._layout is not None
        chosen = find_scheme(scheme, self._schemes)
        self._measured = chosen.measures if forecasts is None else forecasts
        if self.sites is not None and chosen.routes_itself:
            raise InputError(f"scheme {scheme} has one level, and this job sums by sites: start it with --one-level")
        own = self._routing.choose_own(most) if chosen.may_leave_routing else 0
        if own or chosen.routes_itself:
            self._measured &= not own
            self._present, self._sent_window = None, 0
            self._reason = NOT_NEEDED if own else f"{scheme}: MXNet's own routing"
            until = iteration + (own or 1) - 1
            return PlanDecision(
                m.Plan(iteration, until, layout_version, STOCK.name if own else scheme, self._measured, 0, [], []), []
            )
        situation = Situation(
            iteration,
            self._nodes,
            self._layout,
            self._capacities(),
            self._configured,
            [tuple(window) for window in self._observations],
            self._present.shares_bytes if self._present and self._present_scheme == chosen else None,
            not self._trust.needs_equal_shares,
            self.joint_shares,
            self.sites,
        )
        plan, self._reason = chosen.plan(situation)
        if plan is not None:
            self._present, self._present_scheme = plan, chosen
        assert self._present is not None
        self._shares.append(_passing_bytes(self._present))
        plan, most_of = self._present, self._most_of_class
        slots, new_slots = self._slots.place(self._layout, plan.server_of_slice, plan.slot_of_slice, most_of)
        ranks = self._slots.ranks(plan.server_of_slice)
        leaders, new_site_slots = self._lead(plan)
        self._sent_window = self._window()
        plan_of = m.Plan(
            iteration, iteration, layout_version, scheme, self._measured, self._sent_window, ranks, slots, leaders
        )
        return PlanDecision(plan_of, new_slots + new_site_slots)

    def _window(self) -> int:
        """Bytes of a worker under way at a time; 0: any."""
        assert self._present is not None
        if self.inflight_bytes is not None:
            return self.inflight_bytes
        if self._present_scheme.learns_from_times:
            return 0
        estimate, links_s, model_bytes = self._estimator.estimate(), self._present.predicted_s, self.layout.model_bytes
        links_s = links_s if estimate.complete else None
        if links_s and self.round_trip_s >= FAR_S and delay_counts(self.round_trip_s, links_s):
            shared = estimate if estimate.uplinks is None else estimate.uplinks  # a site's slices share its uplink
            fastest = shared.least.min(axis=0).max()
            return window_with_delay(model_bytes, self.round_trip_s, fastest, self.is_bbr)
        if not (self._trust.allow_window(self.sites is not None) and links_s):
            return 0
        return window_without_delay(model_bytes, links_s, estimate.least.min(), self.compute_spread_s)

    def _lead(self, plan: Distribution) -> tuple[list[m.SiteLeaders], list[m.NewSlots]]:
        """Who sums each slice within each site, and the slots that this needs."""
        if plan.by_site is None:
            return [], []
        leaders, new_slots = [], []
        for nodes, slots in zip(plan.by_site.leader_of_slice, plan.by_site.slot_of_slice, strict=True):
            if not slots:  # a site of one machine
                leaders.append(m.SiteLeaders([], []))
                continue
            numbers, new = self._site_slots.place(self.layout, nodes, slots, self._most_of_class)
            leaders.append(m.SiteLeaders(self._site_slots.ranks(nodes), numbers))
            new_slots += new
        return leaders, new_slots

    # ---- what observers are told

    def layout_event(
        self, now_s: float, iteration: int, alpha_bytes: float, fixed_slice_bytes: float | None, num_probe: int
    ) -> LayoutEvent:
        """How the registered tensors are cut from this iteration on; the last three are what `register` was given."""
        layout = self.layout
        return LayoutEvent(
            at_s=now_s,
            model_bytes=layout.model_bytes,
            slices=len(layout.slices),
            probes=sum(s.is_probe for s in layout.slices),
            slice_bytes=max(s.size_bytes for s in layout.slices),
            iteration=iteration,
            alpha_bytes=alpha_bytes,
            fixed_slice_bytes=fixed_slice_bytes,
            num_probe=num_probe,
            tensors=[(one.name, one.elements, one.dtype, one.group) for one in layout.tensors],
        )

    def explain_plan(self, event: PlanEvent) -> PlanEvent:
        """Add who holds how much, and why."""
        return replace(event, reason=self._reason, shares=self._shares_by_name(), predicted_s=self._predicted_s)

    def explain_iteration(self, event: IterationEvent, samples: Samples) -> IterationEvent:
        """Add what the iteration was planned on and what it measured; rates in bytes per second."""
        model = self.layout.model_bytes
        shares = None if self._present is None else np.array(self._present.shares_bytes, dtype=float)
        estimate = self._estimator.estimate()
        told = replace(
            event,
            measured=self._measured,
            round_trip_s=self.round_trip_s,
            slots=self._slots.total + self._site_slots.total,
            reason=self._reason,
            shares=self._shares_by_name(),
            predicted_s=self._predicted_s,
            estimate=Rates(
                up=self._by_name(estimate.up),
                down=self._by_name(estimate.down),
                pairs=[(self._names[i], self._names[j], rate) for (i, j), rate in estimate.pairs.items()],
                uplinks=self._by_site(None if estimate.uplinks is None else estimate.uplinks.rates),
            ),
        )
        if self._present is not None:
            told = replace(told, load_bytes=self._by_name(self._load_bytes(self._present)))
        if shares is not None and (cores := self._core_times()) is not None:
            told = replace(told, cores_s=self._by_name(cores.of_shares(shares)))
        if (rates := self._configured) is not None:
            shared = None if rates.uplinks is None else np.array([rates.uplinks.up, rates.uplinks.down])
            configured = Rates(
                up=self._by_name(rates.up), down=self._by_name(rates.down), uplinks=self._by_site(shared)
            )
            told = replace(told, configured=configured)
            if rates.uplinks is None:
                assert self._for_bound is not None
                told = replace(told, bound_s=bound_s(self._nodes, model, self._for_bound))
            else:
                wan_s, lan_s = level_bounds_s(self._nodes, model, rates)
                told = replace(told, bound_s=max(wan_s, lan_s), wan_bound_s=wan_s, lan_bound_s=lan_s)
            if shares is not None:
                told = replace(told, planned_s=completion_s(self._nodes, shares, model, rates))
        if len(samples):
            told = replace(told, span_s=float(samples["end_s"].max() - samples["start_s"].min()))
        return told

    def shared_uplink_events(self, now_s: float, iteration: int) -> list[SharedUplinkEvent]:
        """What was noticed since the last call, and had not been before."""
        events = []
        for one in self._shared_uplinks:
            if one.nodes in self._told_shared:
                continue
            self._told_shared.add(one.nodes)
            events.append(
                SharedUplinkEvent(
                    at_s=now_s,
                    iteration=iteration,
                    nodes=[self._names[node] for node in one.nodes],
                    others=[name for node, name in enumerate(self._names) if node not in one.nodes],
                    up_bytes_per_s=one.up,
                    down_bytes_per_s=one.down,
                )
            )
        self._shared_uplinks.clear()
        return events

    def _shares_by_name(self) -> ByNode:
        """Of the present plan, bytes per server by node; none where MXNet places."""
        return {} if self._present is None else self._by_name(np.array(self._present.shares_bytes, dtype=float))

    @property
    def _predicted_s(self) -> float | UnsetType | None:
        return UNSET if self._present is None else self._present.predicted_s

    def _by_site(self, rates: Floats | None) -> dict[str, tuple[float | None, float | None]]:
        """Rates up and down by site; none where sums have one level."""
        if self.sites is None or rates is None:
            return {}
        ups, downs = ([value if math.isfinite(value) else None for value in row] for row in rates.tolist())
        return dict(zip(self.sites.names, zip(ups, downs, strict=True), strict=True))

    def _by_name(self, values: Floats) -> ByNode:
        told = (value if math.isfinite(value) else None for value in values.tolist())
        return dict(zip(self._names, told, strict=True))
