"""A run that took place, simulated: the same slices, servers, windows and rates, and the times side by side.

Reads the events of samples.jsonl (docs/run-files.md). Stock's iterations are routed as MXNet does; p3's are left out.
An iteration is simulated at the rates that held when it ended: changes within it are not seen.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Node, Pair
from nalb.planning.slices import NUM_PROBE, Ints, Tensor, build_layout
from nalb.planning.stock import route
from nalb.simulation.exchange import WITH_HEADERS, Wire, exchange

E = TypeVar("E", bound=msgspec.Struct)

OTHERS = ("p3", "gloo")  # route by ways of their own


class Ready(msgspec.Struct, frozen=True):
    """Who takes part."""

    nodes: list[str]
    servers: list[str]  # by rank


class Cut(msgspec.Struct, frozen=True):
    """What the workers push, and how it was cut."""

    tensors: list[tuple[str, int, str, int]]
    alpha_bytes: float
    fixed_slice_bytes: float | None = None  # in place of what alpha gives
    num_probe: int = NUM_PROBE


class Sent(msgspec.Struct, frozen=True):
    """The plan of one iteration."""

    iteration: int
    scheme: str
    window_bytes: int
    server_of_slice: list[int]  # ranks


class Rates(msgspec.Struct, frozen=True):
    """Bytes per second, by node."""

    up: dict[str, float]
    down: dict[str, float]


class Done(msgspec.Struct, frozen=True):
    """What one iteration took."""

    iteration: int
    communication_s: dict[str, float]
    configured: Rates


@dataclass(frozen=True)
class Compared:
    """One iteration."""

    scheme: str
    iteration: int
    measured_s: float
    simulated_s: float


def simulate_events(
    events: Iterable[Mapping[str, Any]], pairs: Mapping[tuple[str, str], float], wire: Wire = WITH_HEADERS
) -> list[Compared]:
    """Each iteration of a run, measured and simulated. InputError for events that lack what a simulation needs.

    pairs: caps of directed pairs in bytes per second, by names. Equal iterations are simulated once. A node that tells how long
    its communication took is a worker; those in `servers` are servers.
    """
    ready: Ready | None = None
    sizes, stock = np.zeros(0, dtype=np.int64), (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    sent: dict[int, Sent] = {}
    known: dict[bytes, float] = {}
    compared = []
    for number, event in enumerate(events, 1):
        kind, where = event.get("event"), f"samples.jsonl, event {number}"
        if kind == "ready":
            ready, sent = _convert(event, Ready, where), {}
        elif kind == "layout" and ready is not None:
            sizes, stock = _cut(_convert(event, Cut, where), ready)
        elif kind == "plan":
            plan = _convert(event, Sent, where)
            sent[plan.iteration] = plan
        elif kind == "iteration" and event.get("scheme") not in OTHERS:
            done = _convert(event, Done, where)
            if ready is None or done.iteration not in sent:
                raise InputError(f"{where}: iteration {done.iteration} without its plan: restore the file")
            plan = sent[done.iteration]
            is_stock = not plan.server_of_slice
            size, rank = stock if is_stock else (sizes, np.array(plan.server_of_slice, dtype=np.int64))
            workers, rates = sorted(done.communication_s), done.configured
            key = msgspec.json.encode((is_stock, plan.window_bytes, plan.server_of_slice, workers, rates))
            if key not in known:
                known[key] = _time_s(ready, workers, rates, pairs, size, rank, plan.window_bytes, wire)
            measured_s = max(done.communication_s.values(), default=0.0)
            compared.append(Compared(plan.scheme, done.iteration, measured_s, known[key]))
    return compared


def _cut(cut: Cut, ready: Ready) -> tuple[Ints, tuple[Ints, Ints]]:
    """The sizes of the slices, and stock's messages with their servers' ranks."""
    tensors = [Tensor(*row) for row in cut.tensors]
    layout = build_layout(
        tensors,
        num_nodes=len(ready.nodes),
        num_servers=len(ready.servers),
        alpha_bytes=cut.alpha_bytes,
        fixed_slice_bytes=cut.fixed_slice_bytes,
        num_probe=cut.num_probe,
    )
    keys = [int(t.name) if t.name.isdecimal() else k for k, t in enumerate(tensors)]
    return layout.sizes_bytes, route(tensors, len(ready.servers), keys)


def _time_s(
    ready: Ready,
    workers: Collection[str],
    rates: Rates,
    caps: Mapping[tuple[str, str], float],
    size: Ints,
    rank: Ints,
    window: int,
    wire: Wire,
) -> float:
    index = {name: i for i, name in enumerate(ready.nodes)}
    nodes = [Node(name, name in workers, name in ready.servers) for name in ready.nodes]
    pairs: dict[Pair, float] = {(index[a], index[b]): rate for (a, b), rate in caps.items()}
    up, down = ([one[name] for name in ready.nodes] for one in (rates.up, rates.down))
    server = np.array([index[name] for name in ready.servers], dtype=np.int64)[rank]
    return exchange(nodes, Capacities.from_lists(up, down, pairs), size, server, window, wire).time_s


def _convert(event: Mapping[str, Any], to: type[E], where: str) -> E:
    try:
        return msgspec.convert(event, to)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{where} ({event.get('event')}): {error}; simulate runs that `nalb compare --network` of this version wrote"
        ) from None
