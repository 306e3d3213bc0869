"""Simulates a recorded run with the same slices, servers, windows and rates, and compares times and receivers' samples.

The events come from samples.jsonl (docs/run-files.md). Stock's iterations are routed as MXNet does; p3's and those of gloo's
ring are left out. Networks of several sites and gradients that are rounded on their way are refused: events do not tell all that
they need. An iteration is simulated at the rates that held when it ended: changes within it are not seen.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeVar

import msgspec
import numpy as np

from nalb.errors import InputError
from nalb.events import AnyEvent, IterationEvent, LayoutEvent, PlanEvent, Rates, ReadyEvent, SamplesEvent
from nalb.measurement.samples import Samples, samples_of
from nalb.measurement.traffic import Traffic
from nalb.planning.nodes import Capacities, Floats, Node, Pair
from nalb.planning.slices import NUM_PROBE, Ints, Tensor, build_layout
from nalb.planning.stock import OwnKeys, route
from nalb.schemes import SCHEMES
from nalb.simulation.exchange import WITH_HEADERS, MessageWeight, SimulatedExchange, exchange
from nalb.simulation.noise import LEAST_S, Noise

T = TypeVar("T")

OTHERS = (*(name for name, scheme in SCHEMES.items() if scheme.ps_lite_kind), "gloo")  # with routing of their own
CONNECTION = ("source", "target", "is_push")  # fields of a sample that name its connection
LATE_SPEED = 0.5  # part of the exact fluid's speed: a slower message is late
AT_ONCE_S = 0.5e-3  # longest time between reading two frames that had both come, on a machine whose cores are busy


@dataclass(frozen=True)
class Seen:
    """One iteration's messages as receivers saw them. Speeds are those of full-sized messages, divided by the exact fluid's."""

    slow: float  # speed that a tenth of the messages stays below
    usual: float  # median speed
    fast: float  # speed that a tenth of the messages exceeds
    late_part: float  # part of the full-sized messages that is slower than LATE_SPEED
    at_once_part: float  # part of all messages that is read within AT_ONCE_S of the forecast
    pause_s: float  # time between two readings of a process that one in 100 exceeds


@dataclass(frozen=True)
class Compared:
    """One iteration, measured and simulated."""

    scheme: str
    iteration: int
    measured_s: float
    simulated_s: float
    measured: Seen | None = None  # None where messages were not timed, or some are missing
    simulated: Seen | None = None  # None as `measured`, and without noise

    @property
    def error(self) -> float:
        """The error of the simulated time as a part of the measured one; NaN where none was measured."""
        return abs(self.simulated_s / self.measured_s - 1) if self.measured_s > 0 else math.nan


@dataclass(frozen=True)
class Medians:
    """The median times of several iterations."""

    measured_s: float
    simulated_s: float

    @classmethod
    def of(cls, compared: Sequence[Compared]) -> "Medians":
        """The medians of these iterations, of which there must be one at least."""
        return cls(median(one.measured_s for one in compared), median(one.simulated_s for one in compared))


def median_error(compared: Iterable[Compared]) -> float:
    """The median of the iterations' errors; there must be one iteration at least."""
    return median(one.error for one in compared)


def simulate_events(
    events: Iterable[AnyEvent], wire: MessageWeight = WITH_HEADERS, noise: Noise | None = None
) -> list[Compared]:
    """Each iteration of a run, measured and simulated. Raises InputError for events that lack values that a simulation needs.

    noise: None: exact times. Without noise equal iterations are simulated once. A node that reports the time of its communication
    is a worker; nodes in `servers` are servers.
    """
    ready: ReadyEvent | None = None
    sizes, stock = np.zeros(0, dtype=np.int64), (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    sent: dict[int, PlanEvent] = {}
    timed: dict[int, Samples] = {}
    known: dict[bytes, SimulatedExchange] = {}
    compared = []
    for number, event in enumerate(events, 1):
        where = f"samples.jsonl, event {number}"
        _check_kind(event, where)
        if isinstance(event, ReadyEvent):
            ready, sent = event, {}
            timed.clear()
        elif isinstance(event, LayoutEvent) and ready is not None:
            sizes, stock = _cut(event, ready, where)
        elif isinstance(event, PlanEvent):
            sent[event.iteration] = event
        elif isinstance(event, SamplesEvent):
            timed[event.iteration] = samples_of(
                (source, target, size_bytes, start_us * 1e-6, end_us * 1e-6, bool(is_push))
                for source, target, is_push, size_bytes, start_us, end_us in event.rows
            )
        elif isinstance(event, IterationEvent) and event.scheme not in OTHERS:
            if ready is None or event.iteration not in sent:
                raise InputError(f"{where}: iteration {event.iteration} without its plan: restore the file")
            plan = sent[event.iteration]
            routed = _told(plan.server_of_slice, "server_of_slice", where)
            if not routed and ready.has_agents:
                continue
            windows = plan.windows
            if windows is None:
                raise _lacks("inflight_bytes", where)
            configured = _told(event.configured, "configured", where)
            rates, caps = _rates(configured, ready, where), configured.pairs or []
            size, rank = (sizes, np.array(routed, dtype=np.int64)) if routed else stock
            workers = sorted(event.communication_s)
            key = msgspec.json.encode((windows, routed, workers, rates, caps))
            run = _exchange(ready, workers, rates, caps, size, rank, windows, wire)
            if key not in known:
                known[key] = run(noise=None)
            exact, measured_s = known[key], max(event.communication_s.values(), default=0.0)
            blurred = run(noise=noise.at(event.iteration)) if noise else exact
            both = [seen(samples, exact.samples) for samples in (timed.pop(event.iteration, None), blurred.samples)]
            compared.append(
                Compared(plan.scheme, event.iteration, measured_s, blurred.time_s, both[0], both[1] if noise else None)
            )
    return compared


def seen(samples: Samples | None, exact: Samples) -> Seen | None:
    """Compare messages with the same messages of an exact simulation; None where their numbers differ on some connection.

    The first message that ended on a connection is compared with the first one of the simulation, and so on.
    """
    if samples is None or len(samples) != len(exact) or not len(exact):
        return None
    samples, exact = (one[np.lexsort([one[name] for name in ("end_s", *CONNECTION)])] for one in (samples, exact))
    if any((samples[name] != exact[name]).any() for name in CONNECTION):
        return None
    traffic = Traffic(samples)
    took_s, exact_s = traffic.end_s - traffic.start_s, exact["end_s"] - exact["start_s"]
    is_full_sized = traffic.size_bytes >= 0.5 * np.quantile(traffic.size_bytes, 0.9)  # no probe, no ramp
    speed = (exact_s / np.maximum(took_s, LEAST_S))[is_full_sized]
    slow, usual, fast = np.quantile(speed, [0.1, 0.5, 0.9]).tolist()
    at_once_part = float((took_s < AT_ONCE_S).mean())
    return Seen(
        slow,
        usual,
        fast,
        float((speed < LATE_SPEED).mean()),
        at_once_part,
        float(np.quantile(_pauses_s(traffic), 0.99)),
    )


def _pauses_s(traffic: Traffic) -> Floats:
    """The times between any two successive readings of a process, in seconds."""
    process = np.tile(2 * traffic.target + traffic.is_push, 2)  # a node's server gets pushes, its worker answers
    read_s = np.concatenate([traffic.start_s, traffic.end_s])
    order = np.lexsort((read_s, process))
    is_same = np.diff(process[order]) == 0
    return np.asarray(np.diff(read_s[order])[is_same])


def _check_kind(event: AnyEvent, where: str) -> None:
    """Raise InputError for the events of a job on several sites, or one that rounds gradients.

    On one level `configured` has each machine's part of its site's uplink, and not its rate within the site.
    """
    what = None
    if isinstance(event, ReadyEvent) and event.sites:
        what = "a job that sums by sites"
    elif isinstance(event, IterationEvent) and event.configured is not None and event.configured.uplinks:
        what = "a job on one level in a network of sites"
    elif (isinstance(event, LayoutEvent) and event.precision) or (isinstance(event, IterationEvent) and event.rounded):
        what = "gradients that are rounded on their way"
    if what is not None:
        raise InputError(f"{where}: {what}: simulate a run without sites whose gradients travel as they are")


def _cut(cut: LayoutEvent, ready: ReadyEvent, where: str) -> tuple[Ints, tuple[Ints, Ints]]:
    """The sizes of the slices, and stock's messages with their servers' ranks."""
    tensors = [Tensor(*row) for row in _told(cut.tensors, "tensors", where)]
    if not ready.servers:
        raise _lacks("servers", where)
    layout = build_layout(
        tensors,
        num_nodes=len(ready.nodes),
        num_servers=len(ready.servers),
        alpha_bytes=_told(cut.alpha_bytes, "alpha_bytes", where),
        fixed_slice_bytes=cut.fixed_slice_bytes,
        num_probe=NUM_PROBE if cut.num_probe is None else cut.num_probe,
    )
    return layout.sizes_bytes, route(tensors, len(ready.servers), OwnKeys().of(tensors))


def _exchange(
    ready: ReadyEvent,
    workers: Collection[str],
    rates: tuple[list[float], list[float]],
    caps: Iterable[tuple[str, str, float]],
    size: Ints,
    rank: Ints,
    windows: int | list[int],
    wire: MessageWeight,
) -> "partial[SimulatedExchange]":
    index = {name: i for i, name in enumerate(ready.nodes)}
    nodes = [Node(name, name in workers, name in ready.servers) for name in ready.nodes]
    pairs: dict[Pair, float] = {(index[a], index[b]): rate for a, b, rate in caps}
    server = np.array([index[name] for name in ready.servers], dtype=np.int64)[rank]
    return partial(exchange, nodes, Capacities.from_lists(*rates, pairs), size, server, windows, wire)


def _rates(configured: Rates, ready: ReadyEvent, where: str) -> tuple[list[float], list[float]]:
    """The rates up and down of every node, bytes per second. Raises InputError where one is missing."""
    up, down = (
        [_told(one.get(name), f"configured rates of {name}", where) for name in ready.nodes]
        for one in (configured.up, configured.down)
    )
    return up, down


def _told(value: T | None, name: str, where: str) -> T:
    """The value; raises InputError where the file lacks it."""
    if value is None:
        raise _lacks(name, where)
    return value


def _lacks(name: str, where: str) -> InputError:
    return InputError(f"{where}: no {name}; simulate runs that `nalb compare --network` of this version wrote")
