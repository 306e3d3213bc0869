"""Nodes, what each one carries, and how long that takes: the cost model that every scheme is judged by.

One synchronisation: each worker pushes m_j bytes to each server j and gets m_j summed bytes back. A node that is
worker and server talks to itself over loopback, which costs nothing. With N_w workers and M gradient bytes, node i
carries, each direction, a_i + b_i m_i bytes (Cai et al., Eq. 7, for the first row; the other two by the same count):

    worker and server   a = M   b = N_w - 2     pushes M - m_i, answers (N_w - 1) m_i
    worker only         a = M   b = 0
    server only         a = 0   b = N_w

Its cores work for the same bytes, and for those that a node sends to itself too. How long is linear in its share as well,
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
Pair = tuple[int, int]  # (source, target): indices of nodes

SLOWEST_BYTES_PER_S = 1.0  # what an estimate of zero counts as: the node keeps its probes and nothing else


@dataclass(frozen=True)
class Node:
    """One machine of the job, by a name that no other one has. InputError for one without a role."""

    name: str
    is_worker: bool = True  # computes gradients
    is_server: bool = True  # sums a share of them

    def __post_init__(self) -> None:
        if not (self.is_worker or self.is_server):
            raise InputError(f"node {self.name!r} is neither worker nor server: leave it out or give it a role")


@dataclass(frozen=True, eq=False)
class CoreTimes:
    """How long each node's cores work for one synchronisation: fixed_s + s_per_byte m_i seconds; both finite, not negative."""

    fixed_s: Floats  # as a worker, shape (N,)
    s_per_byte: Floats  # of its share, as a server, shape (N,)

    def of_shares(self, shares_bytes: Floats) -> Floats:
        """Seconds for shares_bytes, the bytes that each node sums; both of shape (N,)."""
        return np.asarray(self.fixed_s + self.s_per_byte * shares_bytes)


@dataclass(frozen=True, eq=False)
class Capacities:
    """What the network carries, in bytes per second, all finite and positive; and how long the nodes' cores work."""

    up: Floats  # per node, out of it, shape (N,)
    down: Floats  # per node, into it, shape (N,)
    pairs: Mapping[Pair, float]  # caps of single directed pairs, below the rates of their ends
    cores: CoreTimes | None = None  # None: not known, or not counted
    uplinks: Uplinks | None = (
        None  # of the sites, where sums have two levels; the nodes' own rates are then those in their LANs
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
        """From plain numbers up and down, in node order, and caps of pairs, all in bytes per second. Raises InputError."""
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
        """Capacities from measured values, and the reason; None while a node or an uplink has no measurement (NaN).

        up, down: per node, shape (N,), and pairs: caps of single directed pairs, in bytes per second. cores: None where not known.
        sites, uplinks: where sums have two levels, of the nodes, and the rates of the uplinks up and down, shape (2, S).
        A node measured at zero or below counts as SLOWEST_BYTES_PER_S, and the reason says so. Pairs not finite are
        left out.
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
        """The smaller direction of each node: a node's load is the same both ways."""
        return np.minimum(self.up, self.down)

    @property
    def one_level(self) -> "Capacities":
        """The same for sums of one level: each machine with its part of its site's uplink, bytes per second."""
        if self.uplinks is None:
            return self
        up, down = np.minimum(self.rates, self.uplinks.parts())
        return Capacities(up, down, self.pairs, self.cores)

    @property
    def sites(self) -> Sites | None:
        """Of the nodes; None where sums have one level."""
        return None if self.uplinks is None else self.uplinks.sites

    @property
    def rates(self) -> Floats:
        """Out of each node and into it, shape (2, N)."""
        return np.array([self.up, self.down])


def _names(nodes: Sequence[Node], chosen: npt.NDArray[np.bool_]) -> list[str]:
    return [nodes[place].name for place in np.flatnonzero(chosen).tolist()]


def check_nodes(nodes: Sequence[Node], model_bytes: float, capacities: Capacities | None = None) -> None:
    """Raises InputError unless there is something to sum, someone to sum it, and a capacity for each node."""
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
    """Raises InputError unless every node can sum within its site."""
    if one_role := [node.name for node in nodes if not (node.is_worker and node.is_server)]:
        raise InputError(
            f"{listed(one_role)}: one role alone; in a job of several sites every node is worker and server"
        )


def server_indices(nodes: Sequence[Node]) -> npt.NDArray[np.int64]:
    """The indices of the nodes that are servers, ascending."""
    return np.flatnonzero([node.is_server for node in nodes])


def linear_load(nodes: Sequence[Node], model_bytes: float) -> tuple[Floats, Floats]:
    """(a, b) of the load a_i + b_i m_i of each node, each direction: bytes, and bytes per byte of share; shape (N,)."""
    is_worker = np.array([node.is_worker for node in nodes], dtype=np.float64)
    is_server = np.array([node.is_server for node in nodes], dtype=np.float64)
    return model_bytes * is_worker, is_server * (is_worker.sum() - 2 * is_worker)


def load_bytes(nodes: Sequence[Node], shares_bytes: Floats, model_bytes: float) -> Floats:
    """What each node carries in each direction: bytes, shape (N,). Source: Cai et al., Eq. 7, and the table above."""
    fixed, per_share = linear_load(nodes, model_bytes)
    return fixed + per_share * shares_bytes


def limits_s(nodes: Sequence[Node], model_bytes: float, capacities: Capacities) -> Floats:
    """By what limits node i takes start_i + slope_i m_i seconds: its links, and its cores where they are known.

    Per limit, start and slope, shape (1 or 2, 2, N).
    """
    fixed, per_share = linear_load(nodes, model_bytes)
    links, cores = (fixed / capacities.limit, per_share / capacities.limit), capacities.cores
    return np.array([links] if cores is None else [links, (cores.fixed_s, cores.s_per_byte)])


def pair_weights(nodes: Sequence[Node], pair: Pair) -> tuple[float, float]:
    """(w_i, w_j): the directed pair i -> j carries w_i m_i + w_j m_j, server i's answers and worker i's pushes."""
    source, target = nodes[pair[0]], nodes[pair[1]]
    return float(source.is_server and target.is_worker), float(source.is_worker and target.is_server)


def completion_s(nodes: Sequence[Node], shares_bytes: Floats, model_bytes: float, capacities: Capacities) -> float:
    """Seconds that one synchronisation takes, latency and TCP aside.

    max( max_i (a_i + b_i m_i) / c_i,  max_(i,j) (w_i m_i + w_j m_j) / s_ij,  max_i (A_i + B_i m_i) ), c_i the smaller of
    node i's directions. Cost: O(N + pairs). Source: Cai et al., Eqs. 9 and 10; the terms of pairs and cores are ours.
    By sites: the longer one of both levels (levels.py), with the leaders of least time.
    """
    if capacities.uplinks is not None:
        return max(levels_s(shares_bytes, model_bytes, capacities))
    times = load_bytes(nodes, shares_bytes, model_bytes) / capacities.limit
    slowest = float(times.max())
    if capacities.cores is not None:
        slowest = max(slowest, float(capacities.cores.of_shares(shares_bytes).max()))
    for (i, j), rate in capacities.pairs.items():
        weight_i, weight_j = pair_weights(nodes, (i, j))
        slowest = max(slowest, float(weight_i * shares_bytes[i] + weight_j * shares_bytes[j]) / rate)
    return slowest


def levels_s(
    shares_bytes: Floats, model_bytes: float, capacities: Capacities, led_bytes: Floats | None = None
) -> tuple[float, float]:
    """Seconds that the slowest uplink takes, and the slowest machine in its LAN, for capacities by sites.

    shares_bytes: what each machine owns, shape (N,). led_bytes: what it leads; None: what takes the LANs least time.
    """
    uplinks, rates = capacities.uplinks, capacities.rates
    assert uplinks is not None, "one level has no LANs"
    if led_bytes is None:
        led_bytes = levels.least_led_bytes(uplinks.sites, shares_bytes, model_bytes, rates)
    wan_s, lan_s = levels.levels_s(uplinks, rates, shares_bytes, led_bytes, model_bytes)
    return float(wan_s.max()), float(lan_s.max())
