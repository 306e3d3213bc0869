"""The cost model by which every scheme is judged: nodes, the bytes that each one carries, and how long that takes.

In one synchronisation each worker pushes m_j bytes to each server j and gets m_j summed bytes back. A node that is worker and
server talks to itself over loopback, which takes no time. With N_w workers and M gradient bytes, node i carries a_i + b_i m_i bytes
in each direction (Cai et al., Eq. 7, for the first row; the other two by the same count):

    worker and server   a = M   b = N_w - 2     pushes M - m_i, answers (N_w - 1) m_i
    worker only         a = M   b = 0
    server only         a = 0   b = N_w

Where workers round what they push, bytes are counted as answers have them (precisions.py). Worker i pushes p_i bytes for each byte
of an answer, and with P the sum of all p_j a node that is worker and server carries

    out    p_i (M - m_i) + (N_w - 1) m_i
    in     M - m_i + (P - p_i) m_i

A node's cores handle the same bytes, and also those that the node sends to itself. Their time is linear in the share as well,
A_i + B_i m_i seconds, and is measured (nalb/measurement/cores.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nalb.errors import InputError, listed
from nalb.planning import levels
from nalb.planning.sites import Sites, Uplinks

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Pair = tuple[int, int]  # (source, target): indices of nodes

SLOWEST_BYTES_PER_S = 1.0  # smaller estimates count as this one: the node keeps its probes and nothing else


@dataclass(frozen=True)
class Node:
    """One machine of the job, by a name that no other one has. InputError for one without a role."""

    name: str
    is_worker: bool = True  # computes gradients
    is_server: bool = True  # sums a share of them
    push_part: float = 1.0  # bytes that its worker pushes for each byte of an answer

    def __post_init__(self) -> None:
        if not (self.is_worker or self.is_server):
            raise InputError(f"node {self.name!r} is neither worker nor server: leave it out or give it a role")


@dataclass(frozen=True, eq=False)
class CoreTimes:
    """How long each node's cores work for one synchronisation: fixed_s + s_per_byte m_i seconds; both finite, not negative."""

    fixed_s: Floats  # of a node's worker, shape (N,)
    s_per_byte: Floats  # of a node's server, per byte of its share, shape (N,)

    def of_shares(self, shares_bytes: Floats) -> Floats:
        """Each node's seconds for shares_bytes, the bytes that each node sums; both of shape (N,)."""
        return np.asarray(self.fixed_s + self.s_per_byte * shares_bytes)


@dataclass(frozen=True, eq=False)
class Capacities:
    """The rates of a network, in bytes per second, all finite and positive; and how long the nodes' cores work.

    Raises InputError for rates that contradict this or each other.
    """

    up: Floats  # per node, out of it, shape (N,)
    down: Floats  # per node, into it, shape (N,)
    pairs: Mapping[Pair, float]  # caps of single directed pairs, below the rates of their ends
    cores: CoreTimes | None = None  # None: not known, or not counted
    uplinks: Uplinks | None = (
        None  # of the sites, where sums have two levels; `up` and `down` are then the nodes' rates in their LANs
    )

    def __post_init__(self) -> None:
        up, down = (np.array(values, dtype=np.float64) for values in (self.up, self.down))
        if up.ndim != 1 or up.shape != down.shape or not len(up):
            raise InputError(f"capacities: {up.shape} up and {down.shape} down: give one number each per node")
        for name, values in (("up", up), ("down", down)):
            wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
            if len(wrong):
                node, value = wrong[0], values[wrong[0]]
                raise InputError(f"capacities: node {node} has {value:g} bytes/s {name}: give a positive number")
            values.setflags(write=False)
        for (source, target), value in self.pairs.items():
            if not (0 <= source < len(up) and 0 <= target < len(up)) or source == target:
                raise InputError(f"capacities: pair {source} -> {target} is not two of the nodes 0 to {len(up) - 1}")
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"capacities: pair {source} -> {target} has {value:g} bytes/s: give a positive number")
        if self.uplinks is not None:
            self._check_uplinks(self.uplinks, len(up))
        object.__setattr__(self, "up", up)
        object.__setattr__(self, "down", down)
        object.__setattr__(self, "pairs", dict(self.pairs))

    def _check_uplinks(self, uplinks: Uplinks, nodes: int) -> None:
        if len(uplinks.sites.of_node) != nodes:
            raise InputError(
                f"capacities of {nodes} nodes and sites of {len(uplinks.sites.of_node)}: give the same nodes"
            )
        if not uplinks.sites.has_levels:
            raise InputError("uplinks of sites without levels: give several sites, one of them with several machines")
        if self.pairs:
            raise InputError("caps of pairs in a network of sites cannot be planned on: leave out one of the two")

    @classmethod
    def from_lists(
        cls, up: Iterable[float], down: Iterable[float], pairs: Mapping[Pair, float] | None = None
    ) -> "Capacities":
        """The capacities with these rates up and down, in node order, and caps of pairs, bytes per second. Raises InputError."""
        return cls(np.array(list(up), dtype=np.float64), np.array(list(down), dtype=np.float64), pairs or {})

    @classmethod
    def from_estimates(
        cls,
        nodes: Sequence[Node],
        up: Floats,
        down: Floats,
        pairs: Mapping[Pair, float] | None = None,
        cores: CoreTimes | None = None,
        sites: Sites | None = None,
        uplinks: Floats | None = None,
    ) -> "tuple[Capacities | None, str]":
        """Capacities from measured rates, and a reason; None while a node or an uplink has no measurement (NaN).

        up, down: rates of each node, shape (N,), and pairs: caps of single directed pairs, bytes per second. cores: or None.
        sites, uplinks: where sums have two levels, the nodes' sites, and the uplinks' rates up and down, shape (2, S). Rates below
        SLOWEST_BYTES_PER_S count as this one, and the reason names such nodes. Caps of pairs that are not finite are left out.
        """
        if unknown := _names(nodes, ~(np.isfinite(up) & np.isfinite(down))):
            return None, f"not measured yet: {listed(unknown)}"
        shared = None
        if sites is not None:
            assert uplinks is not None, "an estimator of a job by sites knows of uplinks"
            unknown = [
                name for name, known in zip(sites.names, np.isfinite(uplinks).all(axis=0), strict=True) if not known
            ]
            if unknown:
                return None, f"not measured yet: the uplink of {listed(unknown)}"
            shared = Uplinks(sites, *np.maximum(uplinks, SLOWEST_BYTES_PER_S))
        dead = _names(nodes, np.minimum(up, down) < SLOWEST_BYTES_PER_S)
        known = {p: max(float(v), SLOWEST_BYTES_PER_S) for p, v in (pairs or {}).items() if np.isfinite(v)}
        reason = f"measured without throughput: {listed(dead)}" if dead else "all nodes are measured"
        rates = np.maximum(up, SLOWEST_BYTES_PER_S), np.maximum(down, SLOWEST_BYTES_PER_S)
        return cls(*rates, known, cores, shared), reason

    @property
    def limit(self) -> Floats:
        """The rate of each node's slower direction, shape (N,)."""
        return np.minimum(self.up, self.down)

    @property
    def one_level(self) -> "Capacities":
        """These capacities for sums of one level: each machine has an equal part of its site's uplink."""
        if self.uplinks is None:
            return self
        up, down = np.minimum(self.rates, self.uplinks.parts())
        return Capacities(up, down, self.pairs, self.cores)

    @property
    def sites(self) -> Sites | None:
        """The nodes' sites; None where sums have one level."""
        return None if self.uplinks is None else self.uplinks.sites

    @property
    def rates(self) -> Floats:
        """`up` and `down` as one array, shape (2, N)."""
        return np.array([self.up, self.down])


def _names(nodes: Sequence[Node], chosen: npt.NDArray[np.bool_]) -> list[str]:
    return [nodes[place].name for place in np.flatnonzero(chosen).tolist()]


def check_nodes(nodes: Sequence[Node], model_bytes: float, capacities: Capacities | None = None) -> None:
    """Raises InputError unless the model has bytes, there is a server and a worker, and each node has a capacity."""
    if not np.isfinite(model_bytes) or model_bytes <= 0:
        raise InputError(f"a model of {model_bytes:g} bytes cannot be distributed: give a positive number")
    if not any(node.is_server for node in nodes):
        raise InputError("no node is a server: give at least one")
    if not any(node.is_worker for node in nodes):
        raise InputError("no node is a worker: give at least one")
    if capacities is not None and len(capacities.up) != len(nodes):
        raise InputError(f"{len(capacities.up)} capacities for {len(nodes)} nodes: give one per node")
    if capacities is not None and capacities.uplinks is not None:
        check_two_roles(nodes)


def check_two_roles(nodes: Sequence[Node]) -> None:
    """Raises InputError unless every node is worker and server, as sums by sites need."""
    if one_role := [node.name for node in nodes if not (node.is_worker and node.is_server)]:
        raise InputError(
            f"{listed(one_role)}: one role alone; in a job of several sites every node is worker and server"
        )


def server_indices(nodes: Sequence[Node]) -> npt.NDArray[np.int64]:
    """The indices of the nodes that are servers, ascending."""
    return np.flatnonzero([node.is_server for node in nodes])


def are_workers(nodes: Sequence[Node]) -> npt.NDArray[np.bool_]:
    """Whether each of the nodes is a worker, shape (N,)."""
    return np.array([node.is_worker for node in nodes])


def lone_worker(nodes: Sequence[Node]) -> int | None:
    """The index of the only worker where it is a server as well: it sums all over loopback. None in any other job."""
    workers = [i for i, node in enumerate(nodes) if node.is_worker]
    return workers[0] if len(workers) == 1 and nodes[workers[0]].is_server else None


def linear_load(nodes: Sequence[Node], model_bytes: float) -> tuple[Floats, Floats]:
    """(a, b) of each node's load a + b m_i, out and in: bytes, and bytes per byte of share; shape (2, N) each."""
    return linear_loads(nodes, np.array([node.push_part for node in nodes]), np.array(model_bytes))


def linear_loads(nodes: Sequence[Node], push_parts: Floats, model_bytes: Floats) -> tuple[Floats, Floats]:
    """The same of several cases, shape (..., 2, N): push_parts has shape (..., N), and model_bytes (...)."""
    is_worker = np.array([node.is_worker for node in nodes], dtype=np.float64)
    is_server = np.array([node.is_server for node in nodes], dtype=np.float64)
    pushes = is_worker * push_parts
    fixed = model_bytes[..., None, None] * np.stack([pushes, np.broadcast_to(is_worker, pushes.shape)], axis=-2)
    all_pushes = pushes.sum(axis=-1, keepdims=True)
    per_share = np.stack([is_worker.sum() - is_worker - pushes, all_pushes - pushes - is_worker], axis=-2)
    return fixed, is_server * per_share


def loads_bytes(nodes: Sequence[Node], shares_bytes: Floats, model_bytes: float) -> Floats:
    """The bytes that each node carries out and in, shape (2, N). Source: Cai et al., Eq. 7, and the tables above."""
    fixed, per_share = linear_load(nodes, model_bytes)
    return fixed + per_share * shares_bytes


def load_bytes(nodes: Sequence[Node], shares_bytes: Floats, model_bytes: float) -> Floats:
    """The bytes that each node carries in the direction in which it carries more, shape (N,)."""
    return np.asarray(loads_bytes(nodes, shares_bytes, model_bytes).max(axis=0))


def links_s(nodes: Sequence[Node], shares_bytes: Floats, model_bytes: float, capacities: Capacities) -> Floats:
    """Seconds that each node's link takes in its slower direction, shape (N,)."""
    return np.asarray((loads_bytes(nodes, shares_bytes, model_bytes) / capacities.rates).max(axis=0))


# A server that is no worker has few slices below this. Workers' pushes come there at uneven rates, and a slice waits for the
# slowest one's, so few slices may all be answered after the last push. Emulated, 4 nodes of 100 Mbit/s and a server of 5: 1.68 s;
# with time for one late answer 2.17 to 2.22. Simulated on 20 networks (5 nodes of 40 to 220 Mbit/s and a server of 2 to 25): 1.087
# x bound on average, with one 1.095. Choice not taken: time for 3 late answers of each such server. Where links are equal,
# exchanges then take 1.09 x bound in place of 1.06.
FEW_SLICES = 8


def limits_s(
    nodes: Sequence[Node],
    model_bytes: float,
    capacities: Capacities,
    slice_bytes: float = 0.0,
    few: Bools | None = None,
) -> Floats:
    """Each node's limits: node i takes at least start_i + slope_i m_i seconds by its links, and by its cores where these are known.

    slice_bytes: of a slice; 0: shares are not made of whole slices. A server that is no worker answers its last slice when all
    pushes have come in, and nothing else travels there meanwhile. So its links take slope_i slice_bytes longer.
    few: those of them that have few slices, shape (N,). They may answer all of these late: their links take slope_i m_i longer, and
    at least slope_i slice_bytes.
    Choice not taken: the time of a slice in the faster direction alone. With it exchanges take 1.060 x bound on average, and else
    1.056 (simulated, 40 networks with servers whose directions differ by a factor of 2 to 10).

    Returns per limit the starts in seconds and the slopes in seconds per byte, shape (L, 2, N). A link has one limit where loads
    are the same in both directions, else two, and as many more where a server has few slices.
    """
    fixed, per_share = linear_load(nodes, model_bytes)
    lines = [(fixed + per_share * slice_bytes * ~are_workers(nodes), per_share)]
    if few is not None and few.any():
        lines.append((fixed, per_share * (1 + few)))
    if all(node.push_part == 1 for node in nodes):
        found = [(start[0] / capacities.limit, slope[0] / capacities.limit) for start, slope in lines]
    else:
        found = [
            pair
            for start, slope in lines
            for pair in zip(start / capacities.rates, slope / capacities.rates, strict=True)
        ]
    if capacities.cores is not None:
        found.append((capacities.cores.fixed_s, capacities.cores.s_per_byte))
    return np.array(found)


def pair_weights(nodes: Sequence[Node], pair: Pair) -> tuple[float, float]:
    """(w_i, w_j): the directed pair i -> j carries w_i m_i + w_j m_j, server i's answers and worker i's pushes."""
    source, target = nodes[pair[0]], nodes[pair[1]]
    return float(source.is_server and target.is_worker), source.push_part * (source.is_worker and target.is_server)


def completion_s(nodes: Sequence[Node], shares_bytes: Floats, model_bytes: float, capacities: Capacities) -> float:
    """Seconds that one synchronisation takes, without latency and TCP.

    max( max_i (a_i + b_i m_i) / c_i, max_(i,j) (w_i m_i + w_j m_j) / s_ij, max_i (A_i + B_i m_i) ), with c_i the rate of node i's
    link in the direction that takes longer and s_ij the cap of a pair. By sites: the time of the slower one of both levels
    (levels.py), with the leaders of least time. Cost: O(N + pairs). Source: Cai et al., Eqs. 9 and 10; the terms of pairs and cores
    are ours.
    """
    if capacities.uplinks is not None:
        return max(levels_s(shares_bytes, model_bytes, capacities))
    slowest = float(links_s(nodes, shares_bytes, model_bytes, capacities).max())
    if capacities.cores is not None:
        slowest = max(slowest, float(capacities.cores.of_shares(shares_bytes).max()))
    return max([slowest, *pairs_s(nodes, shares_bytes, capacities).values()])


def pairs_s(nodes: Sequence[Node], shares_bytes: Floats, capacities: Capacities) -> dict[Pair, float]:
    """Seconds that what crosses each capped pair takes: (w_i m_i + w_j m_j) / s_ij."""
    found = {}
    for (i, j), rate in capacities.pairs.items():
        weight_i, weight_j = pair_weights(nodes, (i, j))
        found[i, j] = float(weight_i * shares_bytes[i] + weight_j * shares_bytes[j]) / rate
    return found


def capped_s(nodes: Sequence[Node], shares_bytes: Floats, capacities: Capacities, slice_bytes: int) -> float:
    """Seconds for which a slice is away over the slowest capped pair that carries one: with its push and its answer.

    shares_bytes: bytes that each node sums, shape (N,). Each direction of a pair carries slices of both its ends' servers by turns.
    """
    took_s = pairs_s(nodes, shares_bytes, capacities)
    slice_s = {pair: slice_bytes / rate for pair, rate in capacities.pairs.items()}
    away_s = {pair: 2 * one_s for pair, one_s in slice_s.items() if took_s[pair] >= one_s}
    return max((there_s + away_s.get((j, i), 0.0) for (i, j), there_s in away_s.items()), default=0.0)


def served_s(nodes: Sequence[Node], shares_bytes: Floats, capacities: Capacities, slice_bytes: int) -> float:
    """Seconds for which a slice is away at the slowest server that is no worker, until all pushes are in and all answers out.

    shares_bytes: bytes that each node sums, shape (N,); a server with fewer than slice_bytes has smaller slices.
    """
    _, per_share = linear_load(nodes, 0.0)
    byte_s = (per_share / capacities.rates).sum(axis=0)
    return float((byte_s * np.minimum(shares_bytes, slice_bytes)).max(initial=0.0, where=~are_workers(nodes)))


def pushed_while_served_bytes(
    nodes: Sequence[Node], shares_bytes: Floats, capacities: Capacities, slice_bytes: int, exchange_s: float
) -> float:
    """What a worker pushes while a slice is away at the slowest server that is no worker (`served_s`), at an even pace.

    At most all.

    exchange_s: in which it pushes all of shares_bytes, shape (N,).
    """
    away_s = served_s(nodes, shares_bytes, capacities, slice_bytes)
    return float(shares_bytes.sum()) * (min(1.0, away_s / exchange_s) if exchange_s else 0.0)


def levels_s(
    shares_bytes: Floats, model_bytes: float, capacities: Capacities, led_bytes: Floats | None = None
) -> tuple[float, float]:
    """Seconds that the slowest uplink takes, and those that the slowest machine takes in its LAN, for capacities by sites.

    shares_bytes: the bytes that each machine owns, shape (N,). led_bytes: those that it leads, shape (N,); None: those with which
    the LANs take least time.
    """
    uplinks, rates = capacities.uplinks, capacities.rates
    assert uplinks is not None, "one level has no LANs"
    if led_bytes is None:
        led_bytes = levels.least_led_bytes(uplinks.sites, shares_bytes, model_bytes, rates)
    wan_s, lan_s = levels.levels_s(uplinks, rates, shares_bytes, led_bytes, model_bytes)
    return float(wan_s.max()), float(lan_s.max())
