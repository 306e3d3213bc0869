"""Simulates one synchronisation as whole flows instead of slices, one per pair and direction, all at once. For many nodes.

Each worker sends m_j bytes, or the part of it that it pushes, to server j and gets m_j bytes back. All flows begin at the start, as
if slices were infinitely small and no answer waited for a push. Nodes that are alike (same roles, nearly equal rates and shares)
are lumped into classes: a class of n nodes stands for n (n - 1) pairs within it and n n' pairs with a class of n'. Lumping equal
nodes changes nothing. Of unequal ones all get the lowest rates and the mean share of their class, so that lumping never makes the
time too short. Choice not taken: fewer, larger slices, which take longer to simulate than flows and start and end badly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Floats, Node, check_nodes
from nalb.planning.slices import Ints
from nalb.simulation.sharing import SharedLinks

MAX_CLASSES = 64  # a tenfold range of rates in classes 4 % wide
STEP_PART = 0.002  # part of the time so far: flows that end within it end in one step, in which their rate is unused
ENDED_PART = 1e-9  # part of a flow: a smaller rest is rounding


@dataclass(frozen=True, eq=False)
class Flowed:
    """The result of one synchronisation by flows."""

    finish_s: Floats  # per node, when the last flow of its worker ended, shape (N,)
    served_s: Floats  # per node, when the last flow of its server ended, shape (N,)
    classes: int  # number of classes that the nodes were lumped into

    @property
    def time_s(self) -> float:
        """Seconds until the slowest worker's last flow ended."""
        return float(self.finish_s.max())


def flow(
    nodes: Sequence[Node],
    capacities: Capacities,
    shares_bytes: Floats,
    goodput_part: float = 1.0,
    max_classes: int = MAX_CLASSES,
) -> Flowed:
    """Simulate one synchronisation of these shares (payload bytes per node, shape (N,)) by flows.

    Cost: O(log(last end / first end) / STEP_PART) steps, each a max-min solution of K classes, O(K^3) at most; and O(N log K) for
    lumping. Raises InputError for sites, and for caps of pairs with more than `max_classes` nodes: a cap belongs to two nodes, not
    to two classes, so with caps every node is a class of its own.
    """
    check_nodes(nodes, float(np.sum(shares_bytes)), capacities)
    if capacities.uplinks is not None:
        raise InputError("a network of sites by flows: flows know no uplinks, simulate it by slices (--by slices)")
    if capacities.pairs and len(nodes) > max_classes:
        raise InputError(
            f"caps of pairs with {len(nodes)} nodes by flows: give at most {max_classes} nodes, or leave them out"
        )
    group = np.arange(len(nodes)) if capacities.pairs else lump(nodes, capacities, shares_bytes, max_classes)
    size = np.bincount(group).astype(np.float64)
    first = np.unique(group, return_index=True)[1]
    up, down = np.full(len(size), np.inf), np.full(len(size), np.inf)
    np.minimum.at(up, group, capacities.up)
    np.minimum.at(down, group, capacities.down)
    share = np.bincount(group, shares_bytes) / size
    is_worker = np.array([nodes[i].is_worker for i in first])
    is_server = np.array([nodes[i].is_server for i in first])
    links = SharedLinks(Capacities(up * size, down * size, capacities.pairs))
    pairs = np.outer(size, size) - np.diag(size)
    push_part = np.array([nodes[i].push_part for i in first])
    payload = np.stack([push_part[:, np.newaxis] * share, np.broadcast_to(share[:, np.newaxis], pairs.shape)])
    there = np.stack([np.outer(is_worker, is_server), np.outer(is_server, is_worker)]) & (pairs > 0)
    end_s = _ends(links, pairs, np.where(there, payload / goodput_part, 0.0))
    pushed_s, answered_s = end_s
    finish_s = np.maximum(pushed_s.max(axis=1), answered_s.max(axis=0))
    served_s = np.maximum(pushed_s.max(axis=0), answered_s.max(axis=1))
    return Flowed(finish_s[group], served_s[group], len(size))


def _ends(links: SharedLinks, pairs: Floats, size_bytes: Floats) -> Floats:
    """When each flow ends, seconds, shape (2, K, K): pushes and answers by (source, target), each for `pairs` equal flows."""
    left, end_s, now_s = size_bytes.copy(), np.zeros(size_bytes.shape), 0.0
    busy = left > 0
    while busy.any():
        rate = np.broadcast_to(links.max_min(busy.sum(axis=0) * pairs), left.shape)
        needs_s = np.divide(left, rate, out=np.full(left.shape, np.inf), where=busy)
        step_s = max(float(needs_s.min()), min(STEP_PART * now_s, float(needs_s[busy].max())))
        ended = busy & (needs_s <= step_s * (1 + ENDED_PART))
        end_s[ended] = now_s + needs_s[ended]
        left -= np.where(busy, rate * step_s, 0.0)
        busy &= ~ended
        now_s += step_s
    return end_s


def lump(nodes: Sequence[Node], capacities: Capacities, shares_bytes: Floats, max_classes: int) -> Ints:
    """The class of each node, from 0, shape (N,): nodes of the same roles and precisions, near in rates up and down and in share.

    At first there is one class per kind. Then the class of largest spread is cut in two at the middle of its spread, until
    there are `max_classes` classes or none has a spread. The spread is that of logarithms; shares below a thousandth of the mean
    count as this. Cost: O(N) a cut.
    """
    floor = 1e-3 * float(np.mean(shares_bytes))
    place = np.log(np.stack([capacities.up, capacities.down, np.maximum(shares_bytes, floor)], axis=1))
    kinds: dict[tuple[bool, bool, float], list[int]] = {}
    for index, node in enumerate(nodes):
        kinds.setdefault((node.is_worker, node.is_server, node.push_part), []).append(index)
    classes = [np.array(members) for members in kinds.values()]
    spreads = [np.ptp(place[members], axis=0) for members in classes]
    while len(classes) < max(max_classes, len(kinds)):
        widest = int(np.argmax([spread.max() for spread in spreads]))
        axis = int(np.argmax(spreads[widest]))
        if spreads[widest][axis] <= 0:
            break
        values = place[classes[widest], axis]
        low = values < (values.min() + values.max()) / 2
        cut = [classes[widest][low], classes[widest][~low]]
        classes[widest : widest + 1] = cut
        spreads[widest : widest + 1] = [np.ptp(place[members], axis=0) for members in cut]
    group = np.empty(len(nodes), dtype=np.int64)
    for number, members in enumerate(classes):
        group[members] = number
    return group
