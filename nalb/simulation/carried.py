"""Flows that a network carries at the same time, as fluid: transfers between two nodes, and whole sums of gradients among several.

Flows share links by max-min fairness, connection by connection. sharing.py solves the same for connections between pairs, as
matrices. That takes a seventh of the time with 60 nodes, but cannot express a sum, which uses more than two ways at once. A
transfer is one connection. A sum over n nodes has two connections per directed pair, pushes and answers, with shares by `exact`, so
that the links of its members end together. Here a sum is one fluid, as fast as its slowest link allows. A node's own part takes no
time. On unequal links this is a little too fast: flow by flow (flows.py) three nodes take up to a sixth longer. Choice not taken:
a flow per pair of a sum, which makes n (n - 1) flows, too many for 1,000 nodes.
"""

from collections.abc import Sequence

import numpy as np

from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Floats, Node, load_bytes
from nalb.planning.shares import exact
from nalb.planning.slices import Ints
from nalb.simulation.sharing import LEVEL_PART

ENDED_PART = 1e-9  # part of a flow: a smaller rest is rounding
MAX_KEPT = 10_000  # solutions that are remembered

_Kind = tuple[tuple[int, ...], float]  # of a sum: its members and bytes; of a transfer: its two ends and 0


class Carried:
    """The flows under way. capacities: rates of links. Raises InputError for caps of pairs and uplinks: sums do not see them."""

    def __init__(self, capacities: Capacities):
        if capacities.pairs or capacities.uplinks is not None:
            what = "caps of pairs" if capacities.pairs else "uplinks of sites"
            raise InputError(f"{what}: simulated transfers do not see them, give a network without")
        self._capacities = capacities
        self._full = np.concatenate([capacities.up, capacities.down])  # rate of each way: N out, then N in
        self._number = 0  # of the flow begun last
        self._ids: list[int] = []  # of each flow: its number
        self._kinds: list[_Kind] = []  # of each flow: its kind, which decides its ways and connections
        self._ways: list[Ints] = []  # of each flow: its ways
        self._connections: list[Floats] = []  # of each flow: its connections on each of its ways
        self._left = np.zeros(0)  # of each flow: bytes left of one connection
        self._rounding = np.zeros(0)  # of each flow: bytes left that count as none
        self._rates: Floats | None = None  # of each flow: bytes/s of one connection; None: to be solved
        self._sums: dict[_Kind, tuple[Ints, Floats, float]] = {}
        self._known: dict[tuple[_Kind, ...], Floats] = {}  # rates, by what is under way

    def transfer(self, source: int, target: int, size_bytes: float) -> int:
        """Begin a transfer; returns the number by which `advance` tells that it has ended."""
        nodes = len(self._full) // 2
        return self._begin(((source, target), 0.0), np.array([source, nodes + target]), np.ones(2), size_bytes)

    def sum(self, members: Sequence[int], model_bytes: float) -> int:
        """Begin a sum among at least two nodes; returns its number, as `transfer`."""
        key = tuple(members), model_bytes
        if key not in self._sums:
            self._sums[key] = self._sum(*key)
        return self._begin(key, *self._sums[key])

    def next_s(self) -> float:
        """Seconds until the next flow ends; inf where there is none."""
        if not self._ids:
            return np.inf
        if self._rates is None:
            self._rates = self._solved()
        return float((self._left / self._rates).min())

    def advance(self, seconds: float) -> list[int]:
        """Let time pass, at most `next_s`; returns the numbers of the flows that have ended, oldest first."""
        if not self._ids:
            return []
        if self._rates is None:
            self._rates = self._solved()
        self._left -= self._rates * seconds
        ended = self._left <= self._rounding
        if not ended.any():
            return []
        numbers = [self._ids[place] for place in np.flatnonzero(ended).tolist()]
        stay = np.flatnonzero(~ended).tolist()
        self._ids = [self._ids[place] for place in stay]
        self._kinds = [self._kinds[place] for place in stay]
        self._ways = [self._ways[place] for place in stay]
        self._connections = [self._connections[place] for place in stay]
        self._left, self._rounding = self._left[stay], self._rounding[stay]
        self._rates = None
        return numbers

    def _sum(self, members: tuple[int, ...], model_bytes: float) -> tuple[Ints, Floats, float]:
        """(ways of a sum, its connections on each, bytes of one connection on the most loaded way)."""
        assert len(members) > 1, "one node has nothing to send"
        here = np.array(members)
        nodes = [Node(f"n{rank}") for rank in members]
        capacities = Capacities(self._capacities.up[here], self._capacities.down[here], {})
        load = load_bytes(nodes, exact(nodes, model_bytes, capacities)[0], model_bytes)
        connections = 2 * (len(members) - 1) * load / load.max()
        ways = np.concatenate([here, here + len(self._full) // 2])
        return ways, np.concatenate([connections, connections]), float(load.max()) / (2 * (len(members) - 1))

    def _begin(self, kind: _Kind, ways: Ints, connections: Floats, left_bytes: float) -> int:
        self._number += 1
        self._ids.append(self._number)
        self._kinds.append(kind)
        self._ways.append(ways)
        self._connections.append(connections)
        self._left = np.append(self._left, left_bytes)
        self._rounding = np.append(self._rounding, left_bytes * ENDED_PART)
        self._rates = None
        return self._number

    def _solved(self) -> Floats:
        """The rates of the flows under way, which are remembered, since the same flows are often under way again."""
        key = tuple(self._kinds)
        if key not in self._known:
            if len(self._known) == MAX_KEPT:
                self._known.clear()
            self._known[key] = self._solve()
        return self._known[key]

    def _solve(self) -> Floats:
        """The rate of one connection of each flow, bytes/s, shape (flows,): all rise together, and a full way stops its flows.

        A way is filled as soon as it fills no later than all other ways of its flows, so many are filled in one round. Cost: a few
        rounds of O(flows and their ways).
        """
        ways, connections = np.concatenate(self._ways), np.concatenate(self._connections)
        sizes = [len(one) for one in self._ways]
        flow = np.repeat(np.arange(len(sizes)), sizes)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        rates, rising, left = np.zeros(len(sizes)), np.ones(len(sizes), dtype=np.bool_), self._full.copy()
        while rising.any():
            weight = np.where(rising[flow], connections, 0.0)
            load = np.bincount(ways, weight, len(left))
            fair = np.divide(left, load, out=np.full(len(left), np.inf), where=load > 0)
            first = np.minimum.reduceat(fair[ways], starts)  # of each flow: the rate at which its first way is full
            first[~rising] = np.inf
            earliest = np.full(len(left), np.inf)  # of each way: the rate at which its first flow stops
            np.minimum.at(earliest, ways, first[flow])
            full = fair <= earliest * (1 + LEVEL_PART)
            stops = rising & np.logical_or.reduceat(full[ways] & (weight > 0), starts)
            rates[stops] = first[stops]
            left = left - np.bincount(ways, np.where(stops[flow], connections * rates[flow], 0.0), len(left))
            rising &= ~stops
        return rates
