"""Simulates one synchronisation, slice by slice, as fluid through links that TCP connections share by max-min fairness.

A directed pair of nodes has two connections: the worker's pushes and the server's answers. Each carries its messages one after
another in the order in which they came. A worker hands slice k over at once, or, with a window, when the slice that lies a window
before it is back (the gate that kvstore_patch's exchange sets). A server answers a slice to all workers when the last worker's push
of it has arrived. Messages to a node's own server arrive at once, over loopback. Sums of two levels take the journey that levels.py
describes. Connections between two sites also share the sites' uplinks.

Between two arrivals, or a change of the network, rates do not change, so time jumps from one to the next. Not modelled: delay, slow
start, loss, queues, and the time that copies and sums take. Deterministic; ties go to the lower index. noise.py blurs what
receivers see.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from nalb.errors import InputError
from nalb.measurement.samples import Samples, samples_of
from nalb.planning.leaders import SitePlan
from nalb.planning.nodes import Capacities, Floats, Node, check_two_roles
from nalb.planning.slices import Ints
from nalb.simulation.noise import Noise, Readers, SavedBytes
from nalb.simulation.sharing import SharedLinks
from nalb.units import GOODPUT_PART

ARRIVED_PART = 1e-9  # part of a message: a smaller rest is rounding
_SUM, _TOTAL, _BACK = range(3)  # stages by sites: pushes to the leader; to the owner and back; zeros and results
MAX_KEPT = 10_000  # solutions of max-min sharing that are remembered: the same connections are often busy again


@dataclass(frozen=True)
class MessageWeight:
    """The bytes that messages have beside their payload."""

    goodput_part: float = 1.0  # payload's part of the links' bytes; GOODPUT_PART with TCP's and Ethernet's headers
    message_bytes: float = 0.0  # added to each message, whatever its size

    def bytes_of(self, payload_bytes: Ints) -> Floats:
        """The bytes that links carry for messages of these payloads."""
        return np.asarray((payload_bytes + self.message_bytes) / self.goodput_part, dtype=np.float64)


WITH_HEADERS = MessageWeight(GOODPUT_PART)


@dataclass(frozen=True, eq=False)
class SimulatedExchange:
    """The result of one simulated synchronisation."""

    finish_s: Floats  # per node, when its worker had its last slice back; 0 for a node without worker; shape (N,)
    link_bytes: Floats  # bytes that each directed pair carried, headers included, shape (N, N)
    busy_s: Floats  # for how long each directed pair carried bytes, shape (N, N)
    samples: Samples  # each message as its receiver would time it; payload bytes, in the order of arrival

    @property
    def time_s(self) -> float:
        """Seconds from the first push to the slowest worker's last answer."""
        return float(self.finish_s.max())


def exchange(
    nodes: Sequence[Node],
    capacities: Capacities,
    sizes_bytes: Ints,
    server_of_slice: Ints,
    inflight_bytes: float | Sequence[float] = 0.0,
    wire: MessageWeight = WITH_HEADERS,
    noise: Noise | None = None,
    cores: Floats | None = None,
    by_site: SitePlan | None = None,
    change: tuple[float, Capacities] | None = None,
) -> SimulatedExchange:
    """Simulate one synchronisation of slices in the order in which workers hand them over.

    sizes_bytes: payload per slice, shape (n,), positive. server_of_slice: the index of each slice's server among the nodes, shape
    (n,). inflight_bytes: payload of a worker under way at a time, for all or by node; 0: no limit. noise: None: times are exact.
    cores: bytes per second, in and out together, that each node's cores handle, shape (N,); None: any number. by_site: the
    leaders, where sums have two levels; servers are then the owners. change: (seconds, the capacities from then on). Cost: O(C)
    numpy operations per arrival for C connections, 2 n (N - 1) arrivals, and one max-min solution per set of busy connections.
    Raises InputError for a slice without bytes, or one that goes to a node that is no server.
    """
    given = _Given(nodes, capacities, sizes_bytes, server_of_slice, inflight_bytes, wire, noise, cores, change)
    return (_Run(given) if by_site is None else _RunBySites(given, by_site)).run()


class _Given(NamedTuple):
    """The arguments of `exchange`."""

    nodes: Sequence[Node]
    capacities: Capacities
    sizes_bytes: Ints
    server_of_slice: Ints
    inflight_bytes: float | Sequence[float]
    wire: MessageWeight
    noise: Noise | None
    cores: Floats | None
    change: tuple[float, Capacities] | None


class _Flows(NamedTuple):
    """The rates of a set of busy connections."""

    busy: Ints  # the connections
    pairs: Ints  # the pairs that they are on, each once
    rate: Floats  # of each connection, bytes/s
    spare: Floats  # gain of each bucket, bytes/s; empty without noise


class _Run:
    """One synchronisation under way. Connection k: pushes of pair k for k < P, answers of pair k - P above."""

    def __init__(self, given: _Given):
        nodes, capacities, sizes_bytes, server_of_slice, inflight_bytes, wire, noise, cores, change = given
        _check(nodes, sizes_bytes, server_of_slice)
        count = len(nodes)
        self._count, self._change, self._cores, self._noise = count, change, cores, noise
        self._workers = [i for i, node in enumerate(nodes) if node.is_worker]
        self._payload, self._server = sizes_bytes.tolist(), server_of_slice.tolist()
        self._size = wire.bytes_of(sizes_bytes).tolist()
        self._push_part = [node.push_part for node in nodes]
        pushed = {part: np.ceil(part * sizes_bytes) for part in set(self._push_part)}
        self._pushed = {part: (sizes.tolist(), wire.bytes_of(sizes).tolist()) for part, sizes in pushed.items()}
        windows = np.broadcast_to(np.asarray(inflight_bytes, dtype=np.float64), count).tolist()
        gates = {window: _gated(sizes_bytes, window) for window in set(windows)}
        self._gates = [gates[window] for window in windows]  # by worker
        self._missing = [len(self._workers)] * len(self._size)  # pushes of each slice still to arrive
        connections = 2 * count * count  # pushes, then answers, by source * N + target
        self._pair = np.tile(np.arange(count * count), 2)
        self._queue: list[deque[int]] = [deque() for _ in range(connections)]
        self._left = np.zeros(connections)  # bytes of the first message in the queue
        self._rounding = np.zeros(connections)  # bytes of it that may be missing when it has arrived
        self._busy = np.zeros(connections, dtype=np.bool_)
        self._started_s = np.zeros(connections)  # when the first message in the queue began to travel
        self._carry(capacities)
        self._readers = Readers(2 * count, noise) if noise else None
        self._read_s = [0.0] * connections  # when the last message was read: messages are read in order
        self._unread: list[tuple[float, int, int, bool]] = []  # a heap of (when it is read, slice, worker, pushed)
        self._now_s = 0.0
        self._finish_s = np.zeros(count)
        self._link_bytes, self._busy_s = np.zeros(count * count), np.zeros(count * count)
        self._samples: list[tuple[int, int, int, float, float, bool]] = []
        self._steps: deque[tuple[int, int, bool]] = deque()  # (slice, worker, pushed or answered) over loopback

    def run(self) -> SimulatedExchange:
        for worker in self._workers:
            for index in self._gates[worker][-1]:
                self._push(index, worker)
        self._settle()
        while True:
            flows = self._flows()
            if not (len(flows.busy) or self._unread):
                break
            left = self._left[flows.busy]
            step_s = float((left / flows.rate).min(initial=np.inf))
            if self._unread:
                step_s = min(step_s, self._unread[0][0] - self._now_s)
            if self._change is not None:
                step_s = min(step_s, self._change[0] - self._now_s)
            self._now_s += step_s
            left -= flows.rate * step_s
            self._left[flows.busy] = left
            self._busy_s[flows.pairs] += step_s
            if self._buckets:
                self._buckets.rest(flows.spare, step_s)
            for connection in flows.busy[left <= self._rounding[flows.busy]].tolist():
                self._arrive(connection)
            while self._unread and self._unread[0][0] <= self._now_s:
                self._steps.append(heappop(self._unread)[1:])
            self._settle()
            if self._change is not None and self._now_s >= self._change[0]:
                self._carry(self._change[1])
                self._change = None
        assert not any(self._missing), "a slice never arrived"
        shape = (self._count, self._count)
        return SimulatedExchange(
            self._finish_s, self._link_bytes.reshape(shape), self._busy_s.reshape(shape), samples_of(self._samples)
        )

    def _carry(self, capacities: Capacities) -> None:
        """Let bytes travel at these rates from now on."""
        self._links = SharedLinks(capacities, self._cores)
        self._buckets = SavedBytes(capacities, self._noise.burst_s) if self._noise else None
        self._known: dict[bytes, _Flows] = {}  # per set of busy connections

    def _flows(self) -> _Flows:
        key = self._busy.tobytes()
        if key not in self._known:
            if len(self._known) == MAX_KEPT:
                self._known.clear()
            busy = np.flatnonzero(self._busy)
            connections = np.bincount(self._pair[busy], minlength=self._count**2)
            shape = (self._count, self._count)
            of_pair = connections.reshape(shape).astype(np.float64)
            rates = self._links.max_min(of_pair)
            spare = self._buckets.spare(rates * of_pair) if self._buckets else np.zeros(0)
            self._known[key] = _Flows(busy, np.flatnonzero(connections), rates.ravel()[self._pair[busy]], spare)
        return self._known[key]

    def _push(self, index: int, worker: int) -> None:
        self._send(index, worker, self._server[index], is_answer=False)

    def _answer(self, index: int) -> None:
        for worker in self._workers:
            self._send(index, self._server[index], worker, is_answer=True)

    def _send(self, index: int, source: int, target: int, is_answer: bool) -> None:
        if source == target:
            self._steps.append((index, target, not is_answer))
        else:
            self._enqueue(is_answer * self._count**2 + source * self._count + target, index)

    def _enqueue(self, connection: int, index: int) -> None:
        self._queue[connection].append(index)
        if len(self._queue[connection]) == 1:
            self._begin(connection)

    def _begin(self, connection: int) -> None:
        """Let the first message of a connection's queue begin to travel."""
        size = self._bytes(connection, self._queue[connection][0])[1]
        at_once = 0.0
        if self._buckets:
            at_once = self._buckets.take_saved(*divmod(connection % self._count**2, self._count), size)
        self._left[connection], self._rounding[connection] = size - at_once, size * ARRIVED_PART
        self._started_s[connection], self._busy[connection] = self._now_s, True

    def _bytes(self, connection: int, index: int) -> tuple[int, float]:
        """The bytes of a message on a connection: its payload, and what links carry."""
        is_answer, pair = divmod(connection, self._count**2)
        part = 1.0 if is_answer else self._push_part[pair // self._count]
        if part == 1:
            return self._payload[index], self._size[index]
        payload, size = self._pushed[part]
        return int(payload[index]), size[index]

    def _arrive(self, connection: int) -> None:
        index = self._queue[connection].popleft()
        is_answer, pair = divmod(connection, self._count**2)
        (source, target), is_push = divmod(pair, self._count), not is_answer
        payload, size = self._bytes(connection, index)
        self._link_bytes[pair] += size
        start_s, end_s, worker = float(self._started_s[connection]), self._now_s, source if is_push else target
        if self._readers:
            alone = float(self._links.alone[source, target])
            start_s, end_s = self._readers.stamps_s(2 * target + is_push, size, start_s, end_s, alone)
            end_s = self._read_s[connection] = max(end_s, self._read_s[connection])
            heappush(self._unread, (end_s, index, worker, is_push))
        else:
            self._steps.append((index, worker, is_push))
        self._samples.append((source, target, payload, start_s, end_s, is_push))
        self._busy[connection] = False
        if self._queue[connection]:
            self._begin(connection)

    def _settle(self) -> None:
        """Do all that follows at once from arrivals: send answers, note slices that are back, send those that may leave."""
        while self._steps:
            index, worker, pushed = self._steps.popleft()
            if pushed:
                self._missing[index] -= 1
                if self._missing[index] == 0:
                    self._answer(index)
            else:
                self._end(index, worker)

    def _end(self, index: int, worker: int) -> None:
        """Note that a worker has a slice back, and push the slices that waited for it."""
        self._finish_s[worker] = self._now_s
        for later in self._gates[worker][index]:
            self._push(later, worker)


class _RunBySites(_Run):
    """One synchronisation of two levels under way. With n slices, message k is slice k mod n at stage k div n."""

    def __init__(self, given: _Given, by_site: SitePlan):
        super().__init__(given)
        check_two_roles(given.nodes)
        self._slices, sites = len(self._size), by_site.sites
        self._payload, self._size = self._payload * 3, self._size * 3
        self._site, self._members, self._leader = sites.of_node, sites.members, by_site.leader_of_slice
        self._missing = [sites.count] * self._slices  # sums of sites
        self._pushes_zeros = sites.pushes_zeros
        self._missing_in_site = {  # messages to the leader
            _SUM: [[len(members)] * self._slices for members in sites.members],
            _BACK: [[len(members) if sites.pushes_zeros else 1] * self._slices for members in sites.members],
        }

    def _push(self, index: int, worker: int) -> None:
        self._to_leader(_SUM, index, worker)

    def _settle(self) -> None:
        while self._steps:
            message, worker, pushed = self._steps.popleft()
            stage, index = divmod(message, self._slices)
            site = self._site[worker]
            if stage == _TOTAL:
                self._settle_total(index, worker, pushed)
            elif pushed:
                missing = self._missing_in_site[stage][site]
                missing[index] -= 1
                if not missing[index]:
                    (self._end_sum if stage == _SUM else self._hand_out)(index, site)
            else:
                self._end(index, worker)

    def _settle_total(self, index: int, leader: int, pushed: bool) -> None:
        """Go on after a site's sum has come to the owner, or the sum over all sites to a leader."""
        if not pushed:
            self._to_leader(_BACK, index, leader)
            return
        self._missing[index] -= 1
        if not self._missing[index]:
            owner = self._server[index]
            for leaders in self._leader:
                self._send_at(_TOTAL, index, owner, leaders[index], is_answer=True)

    def _end_sum(self, index: int, site: int) -> None:
        """Send a site's sum to the owner, and members' zeros to the leader: they follow the answers to pushes, made now."""
        leader = self._leader[site][index]
        for member in self._members[site]:
            if member != leader and self._pushes_zeros:
                self._to_leader(_BACK, index, member)
        self._send_at(_TOTAL, index, leader, self._server[index], is_answer=False)

    def _hand_out(self, index: int, site: int) -> None:
        """Send the result to the members, once the leader has it, and zeros from all that push them."""
        for member in self._members[site]:
            self._send_at(_BACK, index, self._leader[site][index], member, is_answer=True)

    def _to_leader(self, stage: int, index: int, worker: int) -> None:
        self._send_at(stage, index, worker, self._leader[self._site[worker]][index], is_answer=False)

    def _send_at(self, stage: int, index: int, source: int, target: int, is_answer: bool) -> None:
        self._send(stage * self._slices + index, source, target, is_answer)


def _gated(sizes_bytes: Ints, inflight_bytes: float) -> list[list[int]]:
    """Per slice, the slices that leave when it is back; the last entry has those that need not wait."""
    gated: list[list[int]] = [[] for _ in range(len(sizes_bytes) + 1)]
    ends = np.cumsum(sizes_bytes)
    gates = np.searchsorted(ends, ends - inflight_bytes, side="right") - 1 if inflight_bytes else np.full(len(ends), -1)
    for index, gate in enumerate(gates.tolist()):
        gated[gate].append(index)
    return gated


def _check(nodes: Sequence[Node], sizes_bytes: Ints, server_of_slice: Ints) -> None:
    if len(sizes_bytes) != len(server_of_slice) or not len(sizes_bytes):
        raise InputError(
            f"{len(sizes_bytes)} slices and {len(server_of_slice)} servers of slices: give one of each per slice"
        )
    if int(sizes_bytes.min()) < 1:
        raise InputError(f"slice {int(np.argmin(sizes_bytes))} has {int(sizes_bytes.min())} bytes: give at least 1")
    for server in np.unique(server_of_slice).tolist():
        if not (0 <= server < len(nodes) and nodes[server].is_server):
            raise InputError(f"a slice goes to node {server}, which is no server: plan for these nodes")
    if not any(node.is_worker for node in nodes):
        raise InputError("no node is a worker: give at least one")
