"""Machines that stand behind one uplink that nobody declared, noticed by what connections do. Nothing is planned on it.

The nodes are parted in two sides. What one side sends to the other is called the crossing. Two findings together say that it shares
one link:

    every crossing connection is slow    the mean speed of each, while it sends, is below MOST of the fastest out of its source, and
                                         below MOST of the fastest into its target
    its sum stays                        where connections join that would carry A alone, the crossing grows by less than half of A:
                                         the slope of its sum over A lies SURE standard errors below MOST

TCP connections share links by max-min fairness, and whatever holds one back gives no other connection more. So where each node
has a link of its own, each connection is nearly the fastest at one of its ends; of the pairs between two sides of two nodes or
more, not one would be. Links of their own for single pairs, or connections that delay and loss hold back one by one, can be slow
on all the crossing, but then another connection adds what it carries: the slope is 1. Which of the two sides has the link does not
show.

The sides that are tried: connections within a site are faster than those that leave it. So nodes are joined along ever slower pairs
(single linkage), and each set on the way is a side. Choice not taken: that rates of different senders are negatively correlated.
TCP divides a full link so evenly that what is left to correlate is noise.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nalb.measurement.evidence import CELLS, MOST
from nalb.measurement.samples import Floats, Ints, Mask
from nalb.measurement.traffic import Traffic

WINDOW = 5  # iterations that are judged together
SURE = 3.0  # standard errors
FEWEST_NODES, MOST_NODES = (
    4,
    64,
)  # with two on either side; a judgement of more than 64 costs too much: O(N^3) for each cell


@dataclass(frozen=True)
class SharedUplink:
    """Two sides whose crossing shares a link."""

    nodes: tuple[int, ...]  # the smaller side, rising; of equal ones that of node 0
    up: float  # bytes per second from these nodes to the others, in all
    down: float  # and back


class _Iteration(NamedTuple):
    """Of each connection: where it leads, and by cell how fast it carried bytes, and for which part of it; shape (C, CELLS)."""

    source: Ints
    target: Ints
    rate: Floats
    active: Floats


class SharedUplinkSearch:
    """One job's search, iteration by iteration."""

    def __init__(self, num_nodes: int):
        self._nodes = num_nodes
        self._window: list[_Iteration] = []
        self._told: set[tuple[int, ...]] = set()

    def observe(self, traffic: Traffic) -> list[SharedUplink]:
        """Take one iteration in; what its window shows, where it completes one, and none before it showed.

        The clearest first, each node once.
        """
        nodes, cell_s = self._nodes, traffic.span_s / CELLS
        if not FEWEST_NODES <= nodes <= MOST_NODES or cell_s <= 0:
            return []
        key = (traffic.is_push * nodes + traffic.source) * nodes + traffic.target
        connections, connection = np.unique(key, return_inverse=True)
        carried, active = (
            by_cell(connection, len(connections), CELLS) / cell_s for by_cell in (traffic.carried, traffic.active)
        )
        self._window.append(_Iteration(connections // nodes % nodes, connections % nodes, carried, active))
        if len(self._window) < WINDOW:
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
            if any(high < MOST and way.stays for high, way in zip(highest, ways, strict=True)):
                nodes = tuple(np.flatnonzero(side).tolist())
                found[nodes] = min(highest), SharedUplink(nodes, ways[0].rate_bytes_per_s, ways[1].rate_bytes_per_s)
        best: list[SharedUplink] = []
        for _, one in sorted(found.values(), key=lambda entry: entry[0]):
            if not any({*one.nodes} & {*other.nodes} for other in best):
                best.append(one)
        return best

    def _speeds(self) -> Floats:
        """Of each directed pair, what a connection carries while it sends, bytes per second, shape (N, N)."""
        carried, active = np.zeros((2, self._nodes, self._nodes))
        for one in self._window:
            np.add.at(carried, (one.source, one.target), one.rate.sum(axis=1))
            np.add.at(active, (one.source, one.target), one.active.sum(axis=1))
        return np.asarray(np.divide(carried, active, out=np.zeros_like(carried), where=active > 0))

    def _crossing(self, senders: Mask, targets: Mask) -> "_Crossing":
        """What these send to those: how its sum follows the connections that send, in the cells in which not just a few do."""
        sums, alone = [], []
        for one in self._window:
            crosses = senders[one.source] & targets[one.target]
            rate, active = one.rate[crosses], one.active[crosses]
            sends = active.sum(axis=1)
            speed = np.divide(rate.sum(axis=1), sends, out=np.zeros(len(sends)), where=sends > 0)
            would = speed @ active
            many = would > MOST * np.median(would)
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
        return _Crossing(slope + SURE * error < MOST, mean)


class _Crossing(NamedTuple):
    stays: bool  # its sum, whoever sends
    rate_bytes_per_s: float  # its mean


def sides(speeds: Floats) -> list[Mask]:
    """The sides to try, as masks over the nodes: the smaller one of two, of equal ones that of node 0; two nodes at least.

    speeds: of pairs, alike both ways, shape (N, N). Ties go to the lower index. Cost: O(N^2 log N).
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
