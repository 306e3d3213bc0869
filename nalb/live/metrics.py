"""Serves a run's figures as Prometheus text. A scrape reads what the run has appended to its files since the last one.

So between scrapes nothing is done, and the job has nothing to do with it. Names end in their unit, as Prometheus has it.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from nalb.errors import InputError
from nalb.live.state import FAILED, LiveState
from nalb.live.tail import RunTail
from nalb.reporting.record import rate
from nalb.reporting.step_costs import exposed_s

PREFIX = "nalb_"


class RunCollector(Collector):
    """The figures of one run. Scrapes come on threads of their own, one at a time here."""

    def __init__(self, tail: RunTail):
        self._tail, self.state = tail, LiveState()
        self._lock = threading.Lock()
        self.damage: InputError | None = None  # of the run's files, if a scrape has met one

    def read(self) -> None:
        """Take in what the run has appended. Raises InputError for a damaged file."""
        with self._lock:
            for event in self._tail.fresh():
                self.state.restarted(self._tail.restarts)
                self.state.take(event)
            self.state.restarted(self._tail.restarts)  # the newest attempt may have no event so far

    def collect(self) -> Iterable[Metric]:
        """The metrics of a scrape; none where the run's files are damaged."""
        try:
            self.read()
            with self._lock:
                return list(metrics_of(self.state, self._tail.is_running if self._tail.sees_end else None))
        except InputError as error:
            self.damage = error
            return []


def metrics_of(state: LiveState, is_running: bool | None) -> Iterator[Metric]:
    """The metrics of a state. What is not known is left out, as is_running None."""
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    if is_running is not None:
        yield gauge(PREFIX + "running", "Whether the job runs: 1 or 0.", float(is_running))
    yield gauge(PREFIX + "failed", "Whether the present attempt has failed: 1 or 0.", float(state.phase == FAILED))
    yield counter(PREFIX + "iterations", "Iterations that are complete.", state.iterations)
    yield counter(PREFIX + "token_iterations", "Iterations of tokens that are complete.", state.tokens)
    yield counter(PREFIX + "restarts", "How often the job was started again.", state.restarts)
    yield counter(
        PREFIX + "plan_changes", "How often the planner gave another reason for its plan.", state.plan_changes
    )
    yield gauge(PREFIX + "model_bytes", "Gradients of one iteration, as they travel.", state.model_bytes)
    carried = counter(PREFIX + "carried_bytes", "Bytes that each node had to carry, each way.", labels=["node"])
    for node, size_bytes in state.carried_bytes.items():
        carried.add_metric([node], size_bytes)
    yield carried
    resent = counter(
        PREFIX + "resent_packets", "Packets that TCP sent again, by the node that sent them.", labels=["node"]
    )
    for node in state.nodes:
        resent.add_metric([node], state.resent[node])
    yield resent
    yield from _of_batches(state)
    yield from _of_iteration(state)


def _of_batches(state: LiveState) -> Iterator[Metric]:
    if state.batch_sizes:
        sizes = GaugeMetricFamily(PREFIX + "batch_samples", "Samples of each worker's next batch.", labels=["node"])
        for node, size in state.batch_sizes.items():
            sizes.add_metric([node], size)
        yield sizes


def _of_iteration(state: LiveState) -> Iterator[Metric]:
    step, pace = state.last, state.pace()
    if step is None or pace is None:
        return
    event = step.event
    yield InfoMetricFamily(
        PREFIX + "plan", "The plan of the last iteration.", {"scheme": event.scheme, "reason": event.reason or ""}
    )
    yield GaugeMetricFamily(
        PREFIX + "plan_shares", "Whether nalb routed the last iteration, 1, or MXNet, 0.", float(bool(event.shares))
    )
    for name, meaning, value in (
        ("iteration_seconds", "Time of the last iteration.", step.iteration_s),
        (
            "exchange_seconds",
            "The slowest worker's time from first push to last pull in the last iteration.",
            step.communication_s,
        ),
        (
            "exposed_seconds",
            "The part of the last iteration's exchange that computing does not hide.",
            exposed_s(step),
        ),
        ("least_exchange_seconds", "The least time of an exchange by what is known of the links.", state.least_s()),
        ("round_trip_seconds", "Round trip to the farthest node, without queues.", event.round_trip_s or None),
        ("lost_samples", "Timed messages that were lost since the job began, for lack of room.", event.drops),
        (
            "rejected_samples",
            "Timed messages that were refused since the job began.",
            sum((event.rejected or {}).values()),
        ),
    ):
        if value is not None:
            yield GaugeMetricFamily(PREFIX + name, meaning, value)
    limits = GaugeMetricFamily(
        PREFIX + "limit_seconds",
        "What each thing alone needs in an iteration, median of the recent ones.",
        labels=["kind", "where", "direction"],
    )
    for limit in pace.limits:
        limits.add_metric([limit.thing.kind.value, limit.thing.where, limit.thing.direction], limit.takes_s)
    limits.add_metric(["not explained", "", ""], pace.unexplained_s)
    yield limits
    for name, meaning, rates in (
        ("link_rate_bytes_per_second", "Rate of each node's link by the estimates.", event.estimate),
        ("link_least_rate_bytes_per_second", "Lower bound of each node's rate.", event.least),
    ):
        family = GaugeMetricFamily(PREFIX + name, meaning, labels=["node", "direction"])
        for node in state.nodes:
            for direction in ("up", "down"):
                if (value := rate(rates, direction, node)) is not None:
                    family.add_metric([node, direction], value)
        yield family
    for name, meaning, by_node in (
        ("share_ratio", "The part of the model that each node's server sums.", state.shares()),
        ("worker_exchange_seconds", "Each worker's time from first push to last pull.", event.communication_s),
        ("worker_iteration_seconds", "Each worker's time from one last sum to the next.", step.worker_iteration_s),
        ("worker_plan_wait_seconds", "Each worker's wait for its plan.", event.plan_wait_s),
        (
            "queued_bytes",
            "The most that a node's processes reported to wait on their connections, in the last iteration.",
            {node: event.queued_bytes.get(node, 0) for node in state.nodes},
        ),
    ):
        family = GaugeMetricFamily(PREFIX + name, meaning, labels=["node"])
        for node, value in by_node.items():
            family.add_metric([node], value)
        yield family


@contextmanager
def serving(tail: RunTail, address: str, port: int) -> Iterator[tuple[int, RunCollector]]:
    """Serve a run's metrics on http://address:port/metrics meanwhile; gives the port, which the system chooses for 0.

    Raises InputError where the port is taken, or the address is not this machine's.
    """
    registry, collector = CollectorRegistry(), RunCollector(tail)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise InputError(f"--port {port} on {address}: {error.strerror}: choose another") from None
    try:
        yield server.server_port, collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
