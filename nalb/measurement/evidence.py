"""What one iteration proves of the network.

TCP connections share links by max-min fairness. So whatever holds a connection back, its source's way out, its target's way
in or a cap of the pair, is full, and gives no other connection more. An iteration is cut into cells of time. A connection that
sends without a pause throughout a cell is a witness there:

    an end explains it    where the end carries as much as at its best, and none of its connections is much faster
    one end explains it   that end is full: what it carries is its capacity
    both explain it       one of them is full; which one is not known
    neither is full       the pair has a cap of its own, or an end became slower, before or within the iteration

Where ends became slower, both may explain all that is seen: one end that all its peers wait for, or each of those peers. The fewest
ends explain it then: a witness that no end explains which is full anyway is laid to the end that has more such witnesses.

Where machines share the uplinks of their sites, what lies between two sites has four ways that may be full: out of its source, out
of that site, into the other site, into its target. The same holds for four as for two. That a machine's own link has room shows in
its LAN: connections within the site then go faster than those that the uplink holds back, though they rarely go without a pause.
Connections that share an uplink differ in their round trips, so TCP does not share it evenly: how fast they are beside one another
says nothing there, and an uplink has room only if it carries less by twice the margin.

What a direction carried at its best is a lower bound of its capacity, whatever else is known. Single messages say nothing: bursts
and late readers blur their times. Choice not taken: to fit capacities to all times by simulating the iteration, which takes
seconds for a dozen nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from nalb.measurement.samples import Floats, Ints, Mask
from nalb.measurement.traffic import Traffic
from nalb.planning.sites import Sites

CELLS = 20  # of an iteration: the last ones show what was slow to end
BEST = 4  # cells in a row whose mean counts as the best: bursts and late readers blur a single one
FEWEST = 2  # cells that show what one alone might show by chance
ALL = 0.9  # of a cell: a connection that pauses longer waits for something else than links
FULL = 0.85  # of the best: an end that carries less has room
LEVEL = 0.75  # of the fastest connection of an end: a slower one is held back elsewhere
MOST = 0.5  # of a cell, or of the bytes or the cells in question


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one iteration shows, in bytes per second. N nodes; row 0 is up, row 1 is down.

    With sites, rows 2 and 3 are the uplinks', up and down: of site s in column s, and nothing in the other columns. A machine alone
    in its site shares nothing: its own link is its uplink.
    """

    least: Floats  # what each direction carried at its best, shape (2 or 4, N); 0 for nothing
    capacity: Floats  # of the directions that were full, shape (2 or 4, N); NaN for others
    carried: dict[tuple[int, int], float]  # by each directed pair at its best
    caps: dict[tuple[int, int], float]  # of the pairs that waited while neither end was full
    has_slowed: bool  # an end became slower within the iteration; then all else is of the time since


def evidence(
    traffic: Traffic,
    num_nodes: int,
    carried_before: Floats | float = 0.0,
    known_caps: Mapping[tuple[int, int], float] = MappingProxyType({}),
    sites: Sites | None = None,
    are_slower: bool = False,
) -> Evidence:
    """Read one iteration. Cost: a few sorts of its messages, and O(CELLS) for each connection.

    sites: of the nodes, where machines share uplinks. carried_before: what each direction has carried, bytes per second, like
    `least`. An end that carries less has room, unless pairs that are held back carry most of that: then it became slower. A single
    connection that goes without a pause does not show that, since with a window most of an end's others wait for their turn.
    known_caps: of pairs; one that carries so much is no witness of its ends. are_slower: some ends became slower, and nothing is
    known of these.
    """
    nodes, cell_s = num_nodes, traffic.span_s / CELLS
    key = (traffic.is_push * nodes + traffic.source) * nodes + traffic.target
    connections, connection = np.unique(key, return_inverse=True)
    ends = _ways(connections // nodes % nodes, connections % nodes, sites)
    pairs, pair = np.unique(connections % nodes**2, return_inverse=True)
    carried = traffic.carried(connection, len(connections), CELLS)
    active = traffic.active(connection, len(connections), CELLS) / cell_s
    busy = np.array([traffic.active(end[connection], nodes, CELLS) for end in ends]) / cell_s
    of_end = np.array([_summed(carried, end, nodes) for end in ends])
    is_inner, nothing_full = None, np.zeros(of_end.shape[:2])  # ways that do not exist are never full
    if sites is not None:
        is_inner = sites.place[ends[0]] == sites.place[ends[1]]
        of_end[2:, sites.count], nothing_full[2:, sites.count] = 0.0, np.inf
    names = [divmod(one, nodes) for one in pairs.tolist()]
    of_pair, ends_of_pair = _summed(carried, pair, len(pairs)), _ways(pairs // nodes, pairs % nodes, sites)
    least, best_of_pair = _means(of_end).max(axis=-1), _means(of_pair).max(axis=-1)
    level = np.maximum(least, carried_before * cell_s)
    full_cap = FULL * cell_s * np.array([known_caps.get(name, np.inf) for name in names])
    at_cap = (of_pair >= full_cap[:, np.newaxis])[pair]
    full = FULL * level[..., np.newaxis] * busy + nothing_full[..., np.newaxis]
    capacity, has_room = _judge_ends(carried, active, at_cap, of_end, full, ends, is_inner, are_slower)
    is_held_back = _summed(np.where(has_room, carried, 0.0), pair, len(pairs)) > MOST * of_pair
    is_slower = np.array([_are_most(is_held_back, of_pair, end, nodes) for end in ends_of_pair]) & (least < level)
    if is_slower.any():
        return evidence(traffic, nodes, np.where(is_slower, 0.0, carried_before), known_caps, sites, True)
    after = np.array([_slower_after(*one, of_pair, is_held_back) for one in zip(of_end, ends_of_pair, strict=True)])
    if after.any():
        rest, still = traffic.since(traffic.first_s + cell_s * after.max()), np.where(after, 0.0, level) / cell_s
        return replace(evidence(rest, nodes, still, sites=sites), has_slowed=True)
    is_capped = (is_held_back & (of_pair >= FULL * best_of_pair[:, np.newaxis])).sum(axis=1) >= FEWEST
    rates = (best_of_pair / cell_s).tolist()
    caps = {names[k]: rates[k] for k in np.flatnonzero(is_capped).tolist()}
    return Evidence(least / cell_s, capacity / cell_s, dict(zip(names, rates, strict=True)), caps, False)


def _judge_ends(
    carried: Floats,
    active: Floats,
    at_cap: Mask,
    of_end: Floats,
    full: Floats,
    ends: Sequence[Ints],
    is_inner: Mask | None,
    by_fewest: bool,
) -> tuple[Floats, Mask]:
    """Capacities in bytes a cell, shape (2 or 4, N), NaN for unproven, and where a witness has room, shape (connections, cells).

    carried, active, at_cap: bytes of each connection, the part of each cell for which it sends, and whether its pair carries what
    it is known to, shape (connections, cells); of_end, full: bytes of each end, and how many make it full, shape (2 or 4, N,
    cells); is_inner: whether a connection lies within a site, shape (connections,); by_fewest: lay what two ends may explain,
    neither of them full anyway, to the one that may explain more.
    """
    speed = np.divide(carried, active, out=np.zeros_like(carried), where=active >= MOST)
    seen = speed if is_inner is None else np.where(is_inner[:, np.newaxis], _mean_speed(carried, active, speed), speed)
    is_full = [(rate >= least)[end] for rate, least, end in zip(of_end, full, ends, strict=True)]
    gets_most = [speed >= LEVEL * _highest(seen, end, of_end.shape[1])[end] for end in ends[:2]]
    gets_most += [np.ones(speed.shape, dtype=np.bool_) for _ in ends[2:]]  # of an uplink that says nothing
    explains = np.array(
        [(active >= ALL) & ~at_cap & full & most for full, most in zip(is_full, gets_most, strict=True)]
    )
    has_much = [(rate >= FULL * least)[end] for rate, least, end in zip(of_end[2:], full[2:], ends[2:], strict=True)]
    may_explain = np.array([*explains[:2], *has_much])
    proven = _proven(explains, may_explain, ends, of_end.shape[1])
    if by_fewest:
        is_sure = [one[end] for one, end in zip(proven.sum(axis=-1) >= FEWEST, ends, strict=True)]
        left = may_explain & ~(may_explain & np.array(is_sure)[..., np.newaxis]).any(axis=0)
        of_left = [np.bincount(end, one.sum(axis=1))[end] for one, end in zip(left, ends, strict=True)]
        witnesses = left * np.array(of_left)[..., np.newaxis]
        proven |= _proven(explains, left & (witnesses == witnesses.max(axis=0)), ends, of_end.shape[1])
    count = proven.sum(axis=-1)
    capacity = np.where(count >= FEWEST, (of_end * proven).sum(axis=-1) / np.maximum(count, 1), np.nan)
    return capacity, (active >= ALL) & ~np.any(is_full, axis=0)


def _proven(explains: Mask, may_explain: Mask, ends: Sequence[Ints], nodes: int) -> Mask:
    """Where an end explains a witness that no other one may explain, shape (2 or 4, N, cells)."""
    alone = zip(explains & may_explain & (may_explain.sum(axis=0) == 1), ends, strict=True)
    return np.array([_summed(one, end, nodes) > 0 for one, end in alone])


def _mean_speed(carried: Floats, active: Floats, speed: Floats) -> Floats:
    """Speeds, and where a connection sends too little to have one, its mean over all cells; 0 where it sends nothing."""
    total, sends = carried.sum(axis=1), active.sum(axis=1)
    mean = np.divide(total, sends, out=np.zeros(len(total)), where=sends > 0)
    return np.where((speed == 0) & (active > 0), mean[:, np.newaxis], speed)


def _ways(source: Ints, target: Ints, sites: Sites | None) -> tuple[Ints, ...]:
    """By kind of way, the place of the one that each connection takes: out of the source, into the target, and with sites out of
    the one site and into the other; the number of sites stands for none."""
    if sites is None:
        return source, target
    there, here = sites.place[source], sites.place[target]
    leave, come = (
        np.where((there == here) | (sites.machines[end] == 1), sites.count, site)
        for end, site in ((source, there), (target, here))
    )
    return source, target, leave, come


def _are_most(is_held_back: Mask, of_pair: Floats, end: Ints, nodes: int) -> Mask:
    """Whether the pairs of an end that were held back carried most of its bytes, shape (N,).

    Between sites some pairs carry much, and others no more than a probe, which tells nothing.
    """
    held_back, carried = is_held_back.sum(axis=1) >= FEWEST, of_pair.sum(axis=1)
    return np.asarray(np.bincount(end, held_back * carried, nodes) > MOST * np.bincount(end, carried, nodes))


def _slower_after(of_end: Floats, end: Ints, of_pair: Floats, is_held_back: Mask) -> Ints:
    """The cell after which each end never was as fast as before, though its pairs waited for nothing else; 0 for none, shape (N,).

    of_end: bytes a cell, shape (N, cells); end, of_pair, is_held_back: of each pair, shape (pairs,) and (pairs, cells). One pair
    alone may be capped, and little that is left over at the end of an iteration says nothing.
    """
    nodes, means = len(of_end), _means(of_end)
    is_best = means >= FULL * means.max(axis=1, keepdims=True)
    after = CELLS - is_best[:, ::-1].argmax(axis=1)
    is_late = np.arange(CELLS) >= after[end][:, np.newaxis]
    is_late_held = is_held_back & is_late
    waits = is_late_held.sum(axis=1) > MOST * is_late.sum(axis=1)
    late, held_back = (np.bincount(end, (of_pair * some).sum(axis=1), nodes) for some in (is_late, is_late_held))
    enough = MOST * np.maximum(late, of_pair.sum() * FEWEST / CELLS)
    is_slower = (CELLS - after >= FEWEST) & (np.bincount(end, waits, nodes) > 1) & (held_back > enough)
    return np.where(is_slower, after, 0)


def _summed(values: Floats | Mask, group: Ints, count: int) -> Floats:
    """The rows of each group added up, shape (count, cells)."""
    cells = values.shape[1]
    place = group[:, np.newaxis] * cells + np.arange(cells)
    total: Floats = np.bincount(place.ravel(), values.ravel(), count * cells).astype(np.float64)
    return total.reshape(count, cells)


def _highest(values: Floats, group: Ints, count: int) -> Floats:
    """The highest of the rows of each group, none negative, shape (count, cells); 0 for a group without rows."""
    order, highest = np.argsort(group, kind="stable"), np.zeros((count, values.shape[1]))
    groups, first = np.unique(group[order], return_index=True)
    highest[groups] = np.maximum.reduceat(values[order], first, axis=0)
    return highest


def _means(values: Floats) -> Floats:
    """The mean over every BEST cells that follow one another, shape (..., CELLS - BEST + 1)."""
    so_far = np.cumsum(values, axis=-1)
    so_far = np.concatenate([np.zeros_like(so_far[..., :1]), so_far], axis=-1)
    return np.asarray((so_far[..., BEST:] - so_far[..., :-BEST]) / BEST)
