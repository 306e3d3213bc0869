"""Moves real TCP bytes over a network that is up, and compares the rates that arrive with the configured ones.

Each node's uplink is measured from the node to the bridge that its link leads to, and its downlink from the bridge to the node.
A bridge has no limit of its own, so no node limits another. Flows run together only while their sum stays within what a small
machine forwards. A capped pair is measured alone, between its two nodes.

A site's link is measured by all its machines at once, towards the hub and from it. Then every machine sends to the next one of
its site, and every site to the next site. These flows show whether the bridges connect and limit the right nodes.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nalb.errors import MachineError
from nalb.units import GOODPUT_PART, bytes_per_s_to_mbps, mbps_to_bytes_per_s
from netem import datagrams, namespaces
from netem.emulation import Emulation
from netem.shaping import FRAME_BYTES, Impairment

TOLERANCE = 0.10
TOGETHER_MBPS = 500.0  # most of all flows at once; two idle cores measure a flow of 1,000 correctly
WARM_S = 0.7  # left out: TCP's slow start, and the burst of a full bucket
MEASURE_S = 1.5  # 1,500 times the bucket's 1 ms
MEASURE_FRAMES = 200  # a slow link is measured for as long as these take
REPEATS = 3  # tries at what is off; a flow has these after its first measurement
LONGEST_S = 20.0  # most of one measurement
WAIT_S = 30.0  # deadline of every socket call
CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Flow:
    """A flow to measure, from one namespace to another."""

    label: str  # `n0 up`, `n0 down`, `n2 -> n5`
    source_namespace: str
    target_namespace: str
    target_address: str
    configured_mbps: float  # with headers, as tc counts
    impairment: Impairment | None = None  # of the whole way; a flow that has one is measured by datagrams


@dataclass(frozen=True)
class Together:
    """Flows to measure at once, since they share one link."""

    label: str  # `west up, 3 at once`
    flows: tuple[Flow, ...]
    configured_mbps: float  # of the flows together


@dataclass(frozen=True)
class Measurement:
    """The result of measuring a flow."""

    label: str
    configured_mbps: float
    goodput_mbps: float  # TCP payload that arrived

    @property
    def measured_mbps(self) -> float:
        """The goodput plus its headers, comparable to the configured rate, in Mbit/s."""
        return self.goodput_mbps / GOODPUT_PART

    @property
    def deviation(self) -> float:
        """The measured rate divided by the configured one, minus 1."""
        return self.measured_mbps / self.configured_mbps - 1

    @property
    def passed(self) -> bool:
        return abs(self.deviation) <= TOLERANCE


def flows_of(emulation: Emulation) -> list[list[Flow | Together]]:
    """List all flows, in batches that run one after another: uplinks, downlinks, capped pairs one by one, sites."""
    rates = emulation.rates()
    inside = {name: emulation.namespace(name) for name in rates}
    bridges = {name: emulation.bridge_of(name) for name in rates}
    does = {name: (up[None], down[None]) for name, (up, down) in emulation.impairments().items()}
    up = [Flow(f"{name} up", inside[name], *bridges[name], rates[name][0], does[name][0]) for name in rates]
    down = [
        Flow(f"{name} down", bridges[name][0], inside[name], emulation.address(name), rates[name][1], does[name][1])
        for name in rates
    ]
    capped: list[list[Flow | Together]] = [[_between(emulation, src, dst)] for src, dst in emulation.pair_caps()]
    return [*_batches(up), *_batches(down), *capped, *_flows_of_sites(emulation)]


def _flows_of_sites(emulation: Emulation) -> list[list[Flow | Together]]:
    network, rates, hub = emulation.network, emulation.rates(), emulation.hub_namespace()
    impairments = emulation.impairments()
    up, down, within = [], [], []
    for name, (up_mbps, down_mbps) in emulation.site_rates().items():
        inside = {node: emulation.namespace(node) for node in network.members(name)}
        does = {
            node: [_joined(impairments[node][way][None], impairments[name][way][None]) for way in (0, 1)]
            for node in inside
        }
        count, own = len(inside), [rates[node] for node in inside]
        outward = [
            Flow(node, inside[node], hub, emulation.hub_address, mbps, does[node][0])
            for node, mbps in zip(inside, shared_rates(up_mbps, [up for up, _ in own]), strict=True)
        ]
        inward = [
            Flow(node, hub, inside[node], emulation.address(node), mbps, does[node][1])
            for node, mbps in zip(inside, shared_rates(down_mbps, [down for _, down in own]), strict=True)
        ]
        most_up_mbps = min(up_mbps, sum(rates[node][0] for node in inside))
        most_down_mbps = min(down_mbps, sum(rates[node][1] for node in inside))
        up.append(Together(f"{name} up, {count} at once", tuple(outward), most_up_mbps))
        down.append(Together(f"{name} down, {count} at once", tuple(inward), most_down_mbps))
        within += [_between(emulation, *pair) for pair in _ring(list(inside))]
    if not up:
        return []
    nodes_of: dict[str, list[str]] = {}
    for site, node in zip(network.site_of_nodes(), rates, strict=True):
        nodes_of.setdefault(site, []).append(node)
    between = [_between(emulation, nodes_of[one][0], nodes_of[next_one][-1]) for one, next_one in _ring(list(nodes_of))]
    return [*_batches(up), *_batches(down), *_batches(within), *_batches(between)]


def shared_rates(mbps: float, most_mbps: Sequence[float]) -> list[float]:
    """What each of some machines gets of a rate, alike but for those whose own rate is lower. most_mbps: their own rates."""
    shares, left_mbps = [0.0] * len(most_mbps), mbps
    by_rate = sorted(range(len(most_mbps)), key=most_mbps.__getitem__)
    for place, one in enumerate(by_rate):
        shares[one] = min(most_mbps[one], left_mbps / (len(by_rate) - place))
        left_mbps -= shares[one]
    return shares


def _ring(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each name with the next one, and the last with the first. A single name has no pair."""
    return list(zip(names, [*names[1:], names[0]], strict=True)) if len(names) > 1 else []


def _between(emulation: Emulation, source: str, target: str) -> Flow:
    """A flow from one node to another, whose configured rate is the lowest limit on its way."""
    network, rates, site_rates = emulation.network, emulation.rates(), emulation.site_rates()
    limits = [rates[source][0], rates[target][1], emulation.pair_caps().get((source, target), math.inf)]
    sites = dict(zip(rates, network.site_of_nodes(), strict=True))
    if sites[source] != sites[target]:
        limits += [
            site_rates[sites[node]][way] for way, node in enumerate((source, target)) if sites[node] in site_rates
        ]
    inside = emulation.namespace(source), emulation.namespace(target)
    does = impairment_between(emulation, source, target)
    return Flow(f"{source} -> {target}", *inside, emulation.address(target), min(limits), does)


def impairment_between(emulation: Emulation, source: str, target: str) -> Impairment | None:
    """The impairment of the way from one node to another now: of both nodes' links, and of the sites' links between them."""
    impairments, sites = emulation.impairments(), {node.name: node.site for node in emulation.network.nodes}
    up = impairments[source][0]
    parts = [up.get(target, up[None]), impairments[target][1][None]]
    one, other = sites[source], sites[target]
    if one != other:
        parts += [impairments[one][0][None]] if one is not None else []
        parts += [impairments[other][1][None]] if other is not None else []
    return _joined(*parts)


def _joined(*parts: Impairment | None) -> Impairment | None:
    return Impairment.of(*filter(None, parts))


def verify(emulation: Emulation, on_measurement: Callable[[Measurement], None]) -> list[Measurement]:
    """Measure all flows, and call on_measurement with each result. Raises MachineError where nothing arrives.

    A flow that is off is measured again alone, up to REPEATS times, since a busy machine does not make the network wrong. If it
    is off each time, the last result counts.
    """
    measurements: list[Measurement] = []
    for batch in flows_of(emulation):
        with ThreadPoolExecutor(len(batch)) as pool:
            found = list(pool.map(measure, batch))
        for flow, first in zip(batch, found, strict=True):
            measurement = first if first.passed else measure_patiently(flow)
            measurements.append(measurement)
            on_measurement(measurement)
    return measurements


def measure_patiently(flow: Flow | Together) -> Measurement:
    """Measure a flow up to REPEATS times; return the first result that passes, or the last."""
    for _ in range(REPEATS - 1):
        measurement = measure(flow)
        if measurement.passed:
            return measurement
    return measure(flow)


def measure(flow: Flow | Together, warm_s: float = WARM_S, measure_s: float | None = None) -> Measurement:
    """Send as fast as TCP can, and measure the rate that arrives for measure_s after the first warm_s.

    Without measure_s, slow links are measured for longer.
    """
    if isinstance(flow, Together):
        with ThreadPoolExecutor(len(flow.flows)) as pool:
            shares = list(pool.map(lambda one: measure(one, warm_s, measure_s), flow.flows))
        right_part = sum(share.configured_mbps for share in shares) / sum(one.configured_mbps for one in flow.flows)
        return Measurement(flow.label, flow.configured_mbps * right_part, sum(share.goodput_mbps for share in shares))
    if measure_s is None:
        frames_s = MEASURE_FRAMES * FRAME_BYTES / mbps_to_bytes_per_s(flow.configured_mbps)
        measure_s = min(max(MEASURE_S, frames_s), LONGEST_S)
    if flow.impairment is not None:
        return _measure_by_datagrams(flow, flow.impairment, warm_s, measure_s)
    try:
        with namespaces.inside(flow.target_namespace, lambda: socket.create_server((flow.target_address, 0))) as server:
            server.settimeout(WAIT_S)
            with namespaces.connect(flow.source_namespace, server.getsockname(), WAIT_S) as sender:
                sender.settimeout(WAIT_S)
                receiver, _ = server.accept()
                with receiver:
                    receiver.settimeout(WAIT_S)
                    sending = threading.Thread(
                        target=keep_sending, args=(sender,), name=f"send {flow.label}", daemon=True
                    )
                    sending.start()
                    arrived_bytes, elapsed_s = count_arrived(receiver, warm_s, measure_s)
                sending.join(WAIT_S)
    except OSError as error:
        raise _unreachable(flow, error) from error
    return Measurement(flow.label, flow.configured_mbps, bytes_per_s_to_mbps(arrived_bytes / elapsed_s))


def _measure_by_datagrams(flow: Flow, impairment: Impairment, warm_s: float, measure_s: float) -> Measurement:
    """Measure a flow by datagrams.

    Losses behind the slowest link of the way lower the rate that arrives; losses before it do not. So every rate from the
    configured one less the losses up to the configured one counts as right. The goodput is what TCP would carry in as many full
    frames.
    """
    rate = mbps_to_bytes_per_s(flow.configured_mbps)
    place = flow.source_namespace, flow.target_namespace, flow.target_address
    try:
        arriving = datagrams.arriving_bytes_per_s(*place, rate, warm_s, measure_s, WAIT_S)
    except OSError as error:
        raise _unreachable(flow, error) from error
    arriving_mbps = bytes_per_s_to_mbps(arriving)
    kept_mbps = flow.configured_mbps * (1 - impairment.loss_percent / 100)
    right_mbps = min(max(arriving_mbps, kept_mbps), flow.configured_mbps)
    return Measurement(flow.label, right_mbps, arriving_mbps * GOODPUT_PART)


def _unreachable(flow: Flow, error: OSError) -> MachineError:
    return MachineError(f"{flow.label}: nothing arrives ({error}): run `nalb net down`, then `nalb doctor`")


def keep_sending(connection: socket.socket) -> None:
    """Send until the receiver hangs up."""
    chunk = bytes(CHUNK_BYTES)
    try:
        while True:
            connection.sendall(chunk)
    except OSError:
        return


def count_arrived(connection: socket.socket, warm_s: float, measure_s: float) -> tuple[int, float]:
    """Count (bytes, seconds) between two arrivals: the first one after warm_s, and the first one after measure_s more."""
    buffer = bytearray(CHUNK_BYTES)
    started_s = time.monotonic()
    first_s, arrived_bytes = None, 0
    while True:
        count = connection.recv_into(buffer)
        if count == 0:
            raise ConnectionError("the sender hung up")
        now_s = time.monotonic()
        if first_s is None:
            first_s = now_s if now_s - started_s >= warm_s else None
            continue
        arrived_bytes += count
        if now_s - first_s >= measure_s:
            return arrived_bytes, now_s - first_s


def _batches(flows: Sequence[Flow | Together]) -> list[list[Flow | Together]]:
    """Cut the flows, in order, into batches of at most TOGETHER_MBPS; a larger flow is a batch of its own."""
    batches: list[list[Flow | Together]] = []
    total_mbps = TOGETHER_MBPS
    for flow in flows:
        total_mbps += flow.configured_mbps
        if total_mbps > TOGETHER_MBPS or not batches:
            batches.append([])
            total_mbps = flow.configured_mbps
        batches[-1].append(flow)
    return batches
