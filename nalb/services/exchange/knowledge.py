"""Collects what iterations and observers tell of a job's network and machines. Times in seconds, rates in bytes/s. Pure."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import NamedTuple

import numpy as np

from nalb.feedback.window import LinkPace, delay_s, usual_windows
from nalb.measurement.cores import CoreEstimator, Work
from nalb.measurement.estimates import Estimate
from nalb.measurement.estimators import Estimator, estimator_of
from nalb.measurement.rules import RULES, Rules
from nalb.measurement.samples import Samples
from nalb.measurement.shared_uplinks import SharedUplink, SharedUplinkSearch
from nalb.measurement.traffic import Traffic
from nalb.planning.distribution import Distribution
from nalb.planning.elastic import OBSERVATIONS_KEPT, ServerObservation
from nalb.planning.nodes import (
    Capacities,
    CoreTimes,
    Floats,
    Node,
    are_workers,
    capped_s,
    completion_s,
    pushed_while_served_bytes,
    server_indices,
)
from nalb.planning.precisions import EXPOSED, STEPS, IterationPace, Precisions, bytes_in
from nalb.planning.slices import Layout, Tensor
from nalb.protocol import wire
from nalb.services.exchange.job_nodes import JobNodes


@dataclass(frozen=True)
class FinishedIteration:
    """The figures of an iteration whose messages were timed."""

    samples: Samples
    took_s: float  # from first push to last pull
    # The part of took_s after all workers had computed. Before that links also waited for gradients, so the exchange alone would
    # have taken between exposed_s and took_s: a time between these limits does not count as late. 0: unknown.
    exposed_s: float = 0.0
    compute_spread_s: float = 0.0  # from the first worker that had computed to the last one
    work: Work | None = None  # of the nodes' cores; None: unknown
    iteration_s: float = 0.0  # with computing; 0: unknown
    plan_wait_s: float = 0.0  # what the median worker waited for the plan
    is_early: bool = False  # its plan was made before the iteration before had ended

    @property
    def pace(self) -> IterationPace:
        """How the iteration's time followed from its exchange's. An exchange that may have been hidden counts as hidden."""
        return IterationPace(max(0.0, self.iteration_s - self.took_s), self.took_s - self.exposed_s)

    @property
    def exchange_s(self) -> float:
        """The shortest time that the exchange alone can have taken."""
        return self.exposed_s or self.took_s


class ConfiguredRates(NamedTuple):
    """The rates of a network file."""

    capacities: Capacities  # with uplinks where sums have two levels
    for_bound: Capacities  # for sums by sites, where these nodes can do them


@dataclass(frozen=True)
class Known:
    """The knowledge of a job's network and machines at one moment."""

    nodes: JobNodes
    estimate: Estimate
    cores: CoreTimes | None  # None: unknown
    configured: ConfiguredRates | None  # None: nobody told them
    observations: Sequence[Sequence[ServerObservation]]  # per node, newest last
    round_trip_s: float  # to the farthest node, without queues
    is_bbr: bool  # TCP's congestion control is BBR to all nodes that are far
    compute_spread_s: float  # of the last iteration
    iteration: IterationPace = EXPOSED  # how the last few iterations' times followed from their exchanges'

    @property
    def capacities(self) -> Capacities | None:
        """The capacities to plan on; None while not all is measured."""
        estimate, nodes = self.estimate, self.nodes
        uplinks = None if estimate.uplinks is None else estimate.uplinks.rates
        return Capacities.from_estimates(
            nodes.nodes, estimate.up, estimate.down, estimate.pairs, self.cores, nodes.sites, uplinks
        )[0]

    def exchange_s(self, shares: Floats, model_bytes: float, is_planned: bool = True) -> float | None:
        """The time of an exchange of these shares by lower bounds of rates, and so the longest; None while not all is measured.

        is_planned: False: the data plane routes by itself. Then cores work less, so they do not count, and float32 values travel
        whole.
        """
        estimate, nodes, cores = self.estimate, self.nodes, self.cores if is_planned else None
        if not is_planned:
            nodes = replace(nodes, nodes=[replace(node, push_part=1.0) for node in nodes.nodes])
        least, uplinks = estimate.least, None if estimate.uplinks is None else estimate.uplinks.least
        capacities, _ = Capacities.from_estimates(
            nodes.nodes, least[0], least[1], estimate.pairs, cores, nodes.sites, uplinks
        )
        if capacities is None:
            return None
        return completion_s(nodes.nodes, shares, model_bytes, capacities) + delay_s(self.round_trip_s)

    def pace(self, plan: Distribution, layout: Layout) -> LinkPace | None:
        """The figures that windows depend on; None while not all is measured."""
        estimate, capacities, nodes = self.estimate, self.capacities, self.nodes.nodes
        if not (plan.predicted_s and estimate.complete and capacities):
            return None
        # A site's slices share its uplink.
        least = estimate.least[:, are_workers(nodes)] if estimate.uplinks is None else estimate.uplinks.least
        slices = slice_pace(plan, nodes, layout, capacities)
        return LinkPace(
            plan.predicted_s,
            slices.usual,
            layout.model_bytes,
            layout.wire_part,
            slices.uplinks,
            self.round_trip_s if self.round_trip_s >= wire.FAR_S else 0.0,
            slices.capped_s,
            self.is_bbr,
            float(least.min(axis=0).max()),
            self.compute_spread_s,
        )


class SlicePace(NamedTuple):
    """What a plan's slices mean for windows. The fields are as in LinkPace."""

    uplinks: list[float]
    usual: list[int]
    capped_s: float


def slice_pace(plan: Distribution, nodes: Sequence[Node], layout: Layout, capacities: Capacities) -> SlicePace:
    """What a plan's slices mean for windows with these capacities, by which the plan's time was predicted."""
    uplinks = (capacities.up * are_workers(nodes)).tolist()
    shares, slice_bytes = plan.held_shares, layout.common_bytes
    pushed_bytes = pushed_while_served_bytes(nodes, shares, capacities, slice_bytes, plan.predicted_s or 0.0)
    usual = usual_windows(slice_bytes, len(server_indices(nodes)), uplinks, pushed_bytes)
    return SlicePace(uplinks, usual, capped_s(nodes, shares, capacities, slice_bytes))


class Learned(NamedTuple):
    """The new knowledge from one iteration."""

    is_refuted: bool  # an estimate was wrong
    shared_uplinks: list[SharedUplink]  # noticed for the first time


class NetworkKnowledge:
    """Learns what a job's network and machines can do, from its iterations and from what observers and processes tell."""

    def __init__(self, nodes: JobNodes, new_estimator: Callable[[int], Estimator], rules: Rules = RULES):
        """new_estimator: makes one from the number of nodes."""
        count, sites = len(nodes.nodes), nodes.sites
        self.nodes = nodes  # with what their workers push, by the present plan's precisions
        self._estimator = estimator_of(new_estimator, count, sites, rules)
        self._search = None if sites is not None else SharedUplinkSearch(count, rules)
        self._cores = CoreEstimator(count)
        self._observations: list[deque[ServerObservation]] = [deque(maxlen=OBSERVATIONS_KEPT) for _ in nodes.nodes]
        self._configured: ConfiguredRates | None = None
        self._round_trip_s, self._is_bbr, self._compute_spread_s = 0.0, False, 0.0
        self._paces: deque[IterationPace] = deque(maxlen=rules.look_iterations)  # one may be the first after a pause
        self._wire_part = 1.0  # bytes on the wire per byte of values

    @property
    def now(self) -> Known:
        """The knowledge so far.

        Cores are not known in a job by sites: there a node also works for the slices that it leads, which no share tells.
        """
        return Known(
            self.nodes,
            self._estimator.estimate(),
            self._core_times() if self.nodes.sites is None else None,
            self._configured,
            [tuple(window) for window in self._observations],
            self._round_trip_s,
            self._is_bbr,
            self._compute_spread_s,
            self._pace()._replace(delay_s=delay_s(self._round_trip_s)),
        )

    def _pace(self) -> IterationPace:
        """How the last few iterations' times followed from their exchanges'."""
        return IterationPace(*map(median_low, zip(*self._paces, strict=True))) if self._paces else EXPOSED

    def _core_times(self) -> CoreTimes | None:
        times = self._cores.times()
        return times and CoreTimes(times.fixed_s, times.s_per_byte / self._wire_part)

    def note_configured(self, message: wire.Configured) -> None:
        """Learn the configured rates, for the oracle and the bound. Uplinks count where sums have two levels. Raises InputError."""
        nodes = self.nodes
        self._configured = ConfiguredRates(
            message.capacities(nodes.names, nodes.sites), message.for_bound(list(nodes.nodes), nodes.pushes_zeros)
        )

    def note_delay(self, round_trip_s: float, is_bbr: bool) -> None:
        """Learn the round trip to the farthest node, and whether TCP's congestion control is BBR to all nodes that are far."""
        self._round_trip_s, self._is_bbr = round_trip_s, is_bbr

    def note_precisions(self, precisions: Precisions, tensors: Sequence[Tensor]) -> None:
        """Learn in which precisions the next iterations' tensors travel. Cores handle values, however many bytes these have."""
        values_bytes = bytes_in(tensors, STEPS[0])
        self._wire_part = bytes_in(tensors, precisions.answers) / values_bytes
        self.nodes = replace(self.nodes, nodes=tuple(precisions.on(self.nodes.nodes, tensors)))

    def forget_tensors(self) -> None:
        """Forget the times that servers took for the tensors so far: other ones are pushed from here on."""
        for window in self._observations:
            window.clear()

    def learn(self, finished: FinishedIteration, plan: Distribution | None, shows_servers: bool) -> Learned:
        """Learn from one iteration. plan: None where MXNet routed it. shows_servers: the time of each server shows its rate."""
        self._compute_spread_s = finished.compute_spread_s
        self._paces.append(finished.pace)
        if not len(finished.samples):
            return Learned(False, [])
        work = finished.work
        has_full_cores = False if work is None else work.are_full(finished.exchange_s)
        traffic = Traffic(finished.samples, has_full_cores, finished.is_early)
        is_refuted = self._estimator.observe(traffic)
        found = [] if self._search is None else self._search.search(traffic)
        if plan is not None and work is not None:
            self._cores.observe_work(work, plan.held_shares / self._wire_part)
        if plan is not None and shows_servers:
            self._observe_servers(traffic, plan)
        return Learned(is_refuted, found)

    def _observe_servers(self, traffic: Traffic, plan: Distribution) -> None:
        served_s = traffic.served_s(len(self.nodes.nodes))
        for one in np.flatnonzero(served_s > traffic.first_s).tolist():
            seen = ServerObservation(plan.shares_bytes[one], served_s[one] - traffic.first_s)
            self._observations[one].append(seen)
