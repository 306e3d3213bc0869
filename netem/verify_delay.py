"""Compares measured round trips and losses with the configured ones, by datagrams over a network that is up.

The link of each node and site is measured alone, between its own end and the bridge that it leads to. A capped pair with a delay
or loss of its own is measured between its two nodes. Links stay far from full, so that no queue delays or drops anything.
"""

import math
import select
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from nalb.errors import MachineError
from nalb.units import MBPS
from netem import namespaces
from netem.emulation import Emulation
from netem.shaping import Impairment
from netem.verify import LONGEST_S, REPEATS, impairment_between

TOLERANCE_MS = 1.0  # a round trip may be off by this, or by
TOLERANCE_PART = 0.02  # this part of it, whichever is more
LOSS_TOLERANCE = 0.10  # a loss may be off by this part of it
DEVIATIONS = 3.0  # how far chance may move a result, in standard deviations
PROBES = 60
PROBE_GAP_S = 0.005
LOSS_PACKETS = 100_000
PACKET_BYTES = 60  # with headers, as tc counts; 18 of them are data
PACKETS_PER_S = 25_000  # what one thread of Python sends and receives beside other work
FILLED_PART = 0.5  # of the link's rate, at most
BATCH_S = 0.002
ARRIVAL_S = 1.0  # the last packet arrives within its delay and this
JITTER_SPREAD = math.sqrt(2 / 9)  # standard deviation of a direction's delay, in parts of jitter_ms: see delay_line.h
MEDIAN_SPREAD = 1.25  # standard error of a median over that of a mean
SO_TIMESTAMPNS = 35
PROBE = struct.Struct("qq")  # in ns: when it was sent, by the clock of the kernel's stamps; how long its way there took
NS_PER_S = 1_000_000_000
SO_RCVBUFFORCE = 33
RECEIVE_BYTES = 1 << 26


@dataclass(frozen=True)
class Ends:
    """Two places, and the impairments of the ways between them."""

    label: str
    first: tuple[str, str]  # namespace, address
    second: tuple[str, str]
    there: Impairment
    back: Impairment
    mbps: float  # rate of the slower direction


@dataclass(frozen=True)
class DelayMeasurement:
    """A measured round trip in ms, or a loss in percent; `unit` says which."""

    label: str
    configured: float
    measured: float
    tolerance: float
    unit: str

    @property
    def passed(self) -> bool:
        return abs(self.measured - self.configured) <= self.tolerance


def verify_delay(emulation: Emulation, on_measurement: Callable[[DelayMeasurement], None]) -> list[DelayMeasurement]:
    """Measure each link that delays or loses packets, and call on_measurement with each result.

    A measurement that is off is repeated, up to REPEATS times in all. Raises MachineError where no packet comes back.
    """
    found: list[DelayMeasurement] = []
    for ends in ends_of(emulation):
        tries = [partial(round_trip, ends)]
        tries += [partial(loss, ends, True)] if ends.there.loss_percent else []
        tries += [partial(loss, ends, False)] if ends.back.loss_percent else []
        for attempt in tries:
            for _ in range(REPEATS):
                measurement = attempt()
                if measurement.passed:
                    break
            found.append(measurement)
            on_measurement(measurement)
    return found


def ends_of(emulation: Emulation) -> list[Ends]:
    """List the pairs of places to measure: the ends of each impaired link, and the nodes of each impaired pair."""
    found = []
    impairments, rates = emulation.impairments(), emulation.rates() | emulation.site_rates()
    none, site_of = Impairment(0, 0, 0), dict(zip(emulation.rates(), emulation.network.site_of_nodes(), strict=True))
    for name, (up, down) in impairments.items():
        there, back = up[None] or none, down[None] or none
        if there != none or back != none:
            own, above = emulation.ends(name)
            found.append(Ends(name, own, above, there, back, min(rates[name])))
    for link in emulation.network.links:
        if not (link.delay_ms or link.loss_percent):
            continue
        sites = {site_of[link.src], site_of[link.dst]}
        crossed = [rates[site] for site in sites if len(sites) > 1 and site in rates]
        mbps = min(emulation.pair_caps()[link.src, link.dst], *rates[link.src], *rates[link.dst], *sum(crossed, ()))
        one, other = (emulation.ends(name)[0] for name in (link.src, link.dst))
        pairs = (link.src, link.dst), (link.dst, link.src)
        there, back = (impairment_between(emulation, *pair) or none for pair in pairs)
        found.append(Ends(f"{link.src} -> {link.dst}", one, other, there, back, mbps))
    return found


def round_trip(ends: Ends) -> DelayMeasurement:
    """Measure the median round trip of PROBES probes, which do not wait for earlier ones to come back.

    Of probes that may have been reordered, and so not delayed in one direction, the slowest count: as many as are delayed in both.
    Each direction is timed from the sending call to the kernel's stamp of the arrival, so a process that reads late adds no delay.
    """
    configured_ms = ends.there.delay_ms + ends.back.delay_ms
    jitters_ms = ends.there.jitter_ms, ends.back.jitter_ms
    gap_s = max(PROBE_GAP_S, 2 * max(jitters_ms) / 1000)
    took_s: list[float] = []
    with _sockets(ends) as (near, far):
        poll, begin_s = select.poll(), time.monotonic()
        poll.register(near, select.POLLIN)
        poll.register(far, select.POLLIN)
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        sent, end_s = 0, begin_s + PROBES * gap_s + configured_ms / 1000 + sum(jitters_ms) / 1000 + ARRIVAL_S
        while (now_s := time.monotonic()) < end_s and len(took_s) < PROBES:
            if sent < PROBES and now_s >= begin_s + sent * gap_s:
                near.send(PROBE.pack(time.time_ns(), 0))
                sent += 1
            next_s = begin_s + sent * gap_s if sent < PROBES else end_s
            for descriptor, _ in poll.poll(max(next_s - time.monotonic(), 0) * 1000):
                (sent_ns, there_ns), came_ns = _receive_probe(near if descriptor == near.fileno() else far)
                if descriptor == far.fileno():
                    far.send(PROBE.pack(time.time_ns(), came_ns - sent_ns))
                else:
                    took_s.append((there_ns + came_ns - sent_ns) / NS_PER_S)
    if not took_s:
        raise MachineError(f"{ends.label}: no packet comes back: run `nalb net down`, then `nalb doctor`")
    delayed_part = (1 - ends.there.reorder_percent / 100) * (1 - ends.back.reorder_percent / 100)
    slowest = sorted(took_s)[-max(1, round(delayed_part * len(took_s))) :]
    chance_ms = DEVIATIONS * MEDIAN_SPREAD * JITTER_SPREAD * math.hypot(*jitters_ms) / math.sqrt(len(slowest))
    tolerance_ms = max(TOLERANCE_MS, TOLERANCE_PART * configured_ms) + chance_ms
    return DelayMeasurement(
        f"{ends.label} round trip", configured_ms, statistics.median(slowest) * 1000, tolerance_ms, "ms"
    )


def loss(ends: Ends, there: bool) -> DelayMeasurement:
    """Measure which part of up to LOSS_PACKETS small packets does not arrive, in one direction: `there`, or back."""
    impairment = ends.there if there else ends.back
    per_s = min(PACKETS_PER_S, FILLED_PART * ends.mbps * MBPS / (8 * PACKET_BYTES))
    packets, data = int(min(LOSS_PACKETS, per_s * LONGEST_S)), bytes(PACKET_BYTES - 42)
    last_s = (impairment.delay_ms + impairment.jitter_ms) / 1000 + ARRIVAL_S
    sent = arrived = 0
    with _sockets(ends) as (near, far):
        source, target = (near, far) if there else (far, near)
        begin_s = time.monotonic()
        while sent < packets:
            for _ in range(min(int((time.monotonic() - begin_s) * per_s), packets) - sent):
                source.send(data)
                sent += 1
            arrived += _drain(target)
            time.sleep(BATCH_S)
        end_s = time.monotonic() + last_s
        while time.monotonic() < end_s and arrived < packets:
            time.sleep(BATCH_S)
            arrived += _drain(target)
    part, lost = impairment.loss_percent / 100, 1 - arrived / packets
    tolerance = max(LOSS_TOLERANCE * part, DEVIATIONS * math.sqrt(part * (1 - part) / packets))
    way = "" if " -> " in ends.label else (" up" if there else " down")
    return DelayMeasurement(f"{ends.label}{way} loss", 100 * part, 100 * lost, 100 * tolerance, "%")


def _receive_probe(end: socket.socket) -> tuple[tuple[int, int], int]:
    """Receive a probe: its two numbers, and when the kernel got it, in ns."""
    data, ancillary, _, _ = end.recvmsg(100, 100)
    stamp_s, rest_ns = next(struct.unpack("qq", value) for _, kind, value in ancillary if kind == SO_TIMESTAMPNS)
    return PROBE.unpack(data), stamp_s * NS_PER_S + rest_ns


@contextmanager
def _sockets(ends: Ends) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Open two datagram sockets that are connected to each other, and see that packets pass."""
    with ExitStack() as stack:
        near, far = (
            stack.enter_context(namespaces.inside(namespace, lambda: socket.socket(type=socket.SOCK_DGRAM)))
            for namespace, _ in (ends.first, ends.second)
        )
        for end, (_, address) in ((near, ends.first), (far, ends.second)):
            end.bind((address, 0))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            with suppress(PermissionError):  # only root may ask for so much
                end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
        near.connect(far.getsockname())
        far.connect(near.getsockname())
        round_s = (ends.there.delay_ms + ends.there.jitter_ms + ends.back.delay_ms + ends.back.jitter_ms) / 1000
        for one, other in ((near, far), (far, near)):
            other.settimeout(2 * round_s + ARRIVAL_S)
            for _ in range(REPEATS * 4):  # any of them may be lost
                one.send(b"?")
                try:
                    other.recv(100)
                    break
                except TimeoutError:
                    continue
        time.sleep(round_s)  # repeated packets have come by then
        for end in (near, far):
            end.settimeout(None)
            _drain(end)
        yield near, far


def _drain(end: socket.socket) -> int:
    """Read all packets that have come, and count them."""
    count = 0
    try:
        while True:
            end.recv(100, socket.MSG_DONTWAIT)
            count += 1
    except BlockingIOError:
        return count
