"""Finds machines behind one uplink that nobody declared, by the speeds of connections. Plans do not use it.

The nodes are divided into two sides. The crossing is the traffic from one side to the other. Two findings together say that all
of it goes through one link:

    every crossing connection is slow    its mean speed, while it sends, is below SLOW_PART of the fastest out of its source, and
                                         below SLOW_PART of the fastest into its target
    the crossing's sum stays             where connections join that would carry A alone, the crossing grows by less than half of A:
                                         the slope of its sum over A lies STANDARD_ERRORS below STEADY_SLOPE

TCP connections share links by max-min fairness, and whatever holds one back gives no other connection more. So where each node
has a link of its own, each connection is nearly the fastest at one of its ends. On a shared uplink no connection between two
sides of two nodes or more is. Pairs with links of their own, or connections that delay and loss hold back one by one, can be slow
on all the crossing. But there another connection adds what it carries: the slope is 1. The findings do not show which of the two
sides has the link.

Connections within a site are faster than those that leave it. So nodes are joined along ever slower pairs (single linkage), and
each set on the way is tried as a side. Choice not taken: that rates of different senders are negatively correlated. TCP divides a
full link so evenly that only noise is left to correlate.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nalb.measurement.rules import RULES, Rules
from nalb.measurement.samples import Floats, Ints, Mask
from nalb.measurement.traffic import Traffic

# Nothing is planned on what is found here, so these are no rules of nalb/measurement/rules.py. All are choices.
JUDGED_ITERATIONS = 5  # iterations that are judged together
FEWEST_JUDGED = 4  # nodes: two on either side
MOST_JUDGED = 64  # nodes: a judgement costs O(N^3) for each cell
SLOW_PART = 0.5  # part of the fastest connection's speed
SENDING_PART = 0.5  # part of the median over cells: cells in which connections would carry less do not count
STEADY_SLOPE = 0.5  # bytes that the crossing grows by for each byte of a connection that joins
STANDARD_ERRORS = 3.0  # by which the slope must lie below that


@dataclass(frozen=True)
class SharedUplink:
    """Two sides whose crossing shares a link."""

    nodes: tuple[int, ...]  # the smaller side, rising; of two equal sides the one with node 0
    up: float  # bytes per second from these nodes to the others, all together
    down: float  # bytes per second from the others to these nodes


class _Iteration(NamedTuple):
    """Each connection's ends, shape (C,); by cell its bytes per second and for which part of it it sent, shape (C, cells)."""

    source: Ints
    target: Ints
    rate: Floats
    active: Floats


class SharedUplinkSearch:
    """Searches the iterations of one job, one after the other."""

    def __init__(self, num_nodes: int, rules: Rules = RULES):
        self._nodes, self._cells = num_nodes, rules.cells
        self._window: list[_Iteration] = []
        self._told: set[tuple[int, ...]] = set()

    def search(self, traffic: Traffic) -> list[SharedUplink]:
        """Take one iteration in; each JUDGED_ITERATIONS, returns the uplinks found that were not returned before.

        The clearest comes first, and no node is in two of them.
        """
        nodes, cells, cell_s = self._nodes, self._cells, traffic.span_s / self._cells
        if not FEWEST_JUDGED <= nodes <= MOST_JUDGED or cell_s <= 0:
            return []
        key = (traffic.is_push * nodes + traffic.source) * nodes + traffic.target
        connections, connection = np.unique(key, return_inverse=True)
        carried, active = (
            by_cell(connection, len(connections), cells) / cell_s for by_cell in (traffic.carried, traffic.active)
        )
        self._window.append(_Iteration(connections // nodes % nodes, connections % nodes, carried, active))
        if len(self._window) < JUDGED_ITERATIONS:
            return []
        found = [one for one in self._judge() if one.nodes not in self._told]
        self._told.update(one.nodes for one in found)
        self._window.clear()
        return found

    def _judge(self) -> list[SharedUplink]:
        speeds = self._speeds()
        of_fastest = speeds / np.maximum(np.minimum(speeds.max(axis=1)[:, np.newaxis], speeds.max(axis=0)), 1e-300)
        found: dict[tuple[int, ...], tuple[float, SharedUplink]] = {}
        for side in sides(speeds + speeds.T):
            highest = [float(of_fastest[np.ix_(*ends)].max()) for ends in ((side, ~side), (~side, side))]
            ways = [self._crossing(side, ~side), self._crossing(~side, side)]
            if any(high < SLOW_PART and way.stays for high, way in zip(highest, ways, strict=True)):
                nodes = tuple(np.flatnonzero(side).tolist())
                found[nodes] = min(highest), SharedUplink(nodes, ways[0].rate_bytes_per_s, ways[1].rate_bytes_per_s)
        best: list[SharedUplink] = []
        for _, one in sorted(found.values(), key=lambda entry: entry[0]):
            if not any({*one.nodes} & {*other.nodes} for other in best):
                best.append(one)
        return best

    def _speeds(self) -> Floats:
        """The bytes per second that a connection of each directed pair carries while it sends, shape (N, N)."""
        carried, active = np.zeros((2, self._nodes, self._nodes))
        for one in self._window:
            np.add.at(carried, (one.source, one.target), one.rate.sum(axis=1))
            np.add.at(active, (one.source, one.target), one.active.sum(axis=1))
        return np.asarray(np.divide(carried, active, out=np.zeros_like(carried), where=active > 0))

    def _crossing(self, senders: Mask, targets: Mask) -> "_Crossing":
        """The crossing from these to those: how its sum follows the connections that send, in cells in which more than a few do."""
        sums, alone = [], []
        for one in self._window:
            crosses = senders[one.source] & targets[one.target]
            rate, active = one.rate[crosses], one.active[crosses]
            sends = active.sum(axis=1)
            speed = np.divide(rate.sum(axis=1), sends, out=np.zeros(len(sends)), where=sends > 0)
            would = speed @ active
            many = would > SENDING_PART * np.median(would)
            if many.sum() > 1:
                sums.append(rate.sum(axis=0)[many])
                alone.append(would[many])
        if not sums:
            return _Crossing(False, 0.0)
        off = [
            np.concatenate([(values - values.mean()) / of.mean() for values, of in zip(some, sums, strict=True)])
            for some in (sums, alone)
        ]
        mean = float(np.concatenate(sums).mean())
        spread, free = float(off[1] @ off[1]), len(off[1]) - len(sums) - 1
        if spread <= 0 or free < 1:
            return _Crossing(False, mean)
        slope = float(off[0] @ off[1]) / spread
        error = float(np.sqrt(((off[0] - slope * off[1]) ** 2).sum() / free / spread))
        return _Crossing(slope + STANDARD_ERRORS * error < STEADY_SLOPE, mean)


class _Crossing(NamedTuple):
    stays: bool  # whether its sum stays, whoever sends
    rate_bytes_per_s: float  # mean of its sum


def sides(speeds: Floats) -> list[Mask]:
    """The sides to try, as masks over the nodes: the smaller side of two, of equal sides the one with node 0; two nodes at least.

    speeds: each pair's, alike both ways, shape (N, N). Ties go to the lower index. Cost: O(N^2 log N).
    """
    count = len(speeds)
    joined = np.arange(count)  # the set that each node is in
    found: dict[bytes, Mask] = {}
    first, second = np.triu_indices(count, 1)
    for place in np.argsort(-speeds[first, second], kind="stable").tolist():
        one, other = joined[first[place]], joined[second[place]]
        if one == other:
            continue
        joined[joined == other] = one
        side = joined == one
        if 2 * side.sum() > count or (2 * side.sum() == count and not side[0]):
            side = ~side
        if side.sum() > 1:
            found[side.tobytes()] = side
    return list(found.values())
