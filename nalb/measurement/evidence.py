"""What one iteration proves of the network.

TCP connections share links by max-min fairness. So whatever holds a connection back is full, and gives no other connection more:
its source's way out, its target's way in, or a cap of the pair. An iteration is cut into cells of time. A connection that sends
without a pause throughout a cell is a witness there:

    an end explains it    where the end carries as much as at its best, none of its connections is much faster, and most of its
                          bytes are of connections that hardly pause: with a window, connections of an end that has room pause
    one end explains it   that end is full: what it carries is its capacity
    both explain it       one of them is full; the iteration does not tell which one
    neither is full       the pair has a cap of its own, or an end became slower, before or within the iteration

With a window, connections may pause even at a full end; then none of them is a witness. But what is under way waits for that end.
So an end that always carries something, less than before, while more waits for it, became slower within the iteration and is full
since then. Where machines share uplinks this says nothing, since what waits for a machine waits for its uplink too.

Where ends became slower, both ends may explain all witnesses: one end that all its peers wait for, or each of those peers. There
the fewest ends count. A witness that no proven-full end explains is attributed to the end with more such witnesses.

Where machines share the uplinks of their sites, a connection between two sites takes four ways that may be full: out of its
source, out of that site, into the other site, into its target. The same laws hold for four ways as for two. The LAN shows that a
machine's own link has room: connections within the site are then faster than those that the uplink holds back, though they rarely
send without a pause. Connections that share an uplink differ in their round trips, so TCP does not share the uplink evenly. Their
speeds beside one another say nothing there, and an uplink has room only if it carries less by twice the margin.

What a direction carried at its best is a lower bound of its capacity in any case. Single messages prove nothing: bursts and late
readers blur their times. Choice not taken: to fit capacities to all times by simulating the iteration, which takes seconds for a
dozen nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from nalb.measurement.rules import RULES, Rules
from nalb.measurement.samples import Floats, Ints, Mask
from nalb.measurement.traffic import Traffic
from nalb.planning.sites import Sites


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one iteration shows, in bytes per second. N nodes; row 0 is up, row 1 is down.

    With sites, rows 2 and 3 hold the uplinks, up and down: site s in column s, and nothing in the other columns. A machine alone in
    its site shares nothing: its own link is its uplink.
    """

    least: Floats  # what each direction carried at its best, shape (2 or 4, N); 0 for nothing
    capacity: Floats  # capacity of the directions that were full, shape (2 or 4, N); NaN for others
    carried: dict[tuple[int, int], float]  # what each directed pair carried at its best
    caps: dict[tuple[int, int], float]  # caps of the pairs that waited while neither end was full
    has_slowed: bool  # whether an end became slower within the iteration; the other fields then tell of the time since


def evidence(
    traffic: Traffic,
    num_nodes: int,
    carried_before: Floats | float = 0.0,
    known_caps: Mapping[tuple[int, int], float] = MappingProxyType({}),
    sites: Sites | None = None,
    are_slower: bool = False,
    rules: Rules = RULES,
) -> Evidence:
    """Read one iteration. Cost: a few sorts of its messages, and O(cells) for each connection.

    sites: the nodes' sites, where machines share uplinks. carried_before: what each direction has carried, bytes per second, shaped
    like `least`. An end that carries less has room, unless pairs that are held back carry most of its bytes: then the end became
    slower. A single connection that sends without a pause does not show that, since with a window most other connections of its end
    wait for their turn. known_caps: a pair that carries as much as its cap is no witness of its ends. are_slower: some ends became
    slower; `carried_before` is 0 for these.
    """
    nodes, cells, cell_s = num_nodes, rules.cells, traffic.span_s / rules.cells
    key = (traffic.is_push * nodes + traffic.source) * nodes + traffic.target
    connections, connection = np.unique(key, return_inverse=True)
    ends = _ways(connections // nodes % nodes, connections % nodes, sites)
    pairs, pair = np.unique(connections % nodes**2, return_inverse=True)
    carried = traffic.carried(connection, len(connections), cells)
    active = traffic.active(connection, len(connections), cells) / cell_s
    busy = np.array([traffic.active(end[connection], nodes, cells) for end in ends]) / cell_s
    of_end = np.array([_summed(carried, end, nodes) for end in ends])
    is_inner, nothing_full = None, np.zeros(of_end.shape[:2])  # ways that do not exist are never full
    if sites is not None:
        is_inner = sites.place[ends[0]] == sites.place[ends[1]]
        of_end[2:, sites.count], nothing_full[2:, sites.count] = 0.0, np.inf
    names = [divmod(one, nodes) for one in pairs.tolist()]
    of_pair, ends_of_pair = _summed(carried, pair, len(pairs)), _ways(pairs // nodes, pairs % nodes, sites)
    least, best_of_pair = (_means(one, rules.best_cells).max(axis=-1) for one in (of_end, of_pair))
    level = np.maximum(least, carried_before * cell_s)
    full_cap = rules.at_cap_part * cell_s * np.array([known_caps.get(name, np.inf) for name in names])
    at_cap = (of_pair >= full_cap[:, np.newaxis])[pair]
    full = rules.full_part * level[..., np.newaxis] * busy + nothing_full[..., np.newaxis]
    capacity, has_room, is_full = _judge_ends(carried, active, at_cap, of_end, full, ends, is_inner, are_slower, rules)
    is_held_back = _summed(np.where(has_room, carried, 0.0), pair, len(pairs)) > rules.held_back_part * of_pair
    is_slower = np.array([_are_most(is_held_back, of_pair, end, nodes, rules) for end in ends_of_pair]) & (
        least < level
    )
    if is_slower.any():
        return evidence(traffic, nodes, np.where(is_slower, 0.0, carried_before), known_caps, sites, True, rules)
    ways = zip(of_end, ends_of_pair, strict=True)
    after = np.array([_slower_after(*one, of_pair, is_held_back, rules) for one in ways])
    by_queue = np.zeros_like(after)
    if sites is None and rules.queues_show_slower:
        waits = np.where(at_cap | is_full[::-1], 0.0, active)  # for each end: not for the other end, and not for a cap
        has_cores = np.logical_not(traffic.has_full_cores) & np.ones(nodes, dtype=np.bool_)
        by_queue = _slower_by_queue(of_end, busy, active, waits, np.array(ends), pair, has_cores, rules)
    if after.any() or by_queue.any():
        slower = np.maximum(after, by_queue)
        rest, still = traffic.since(traffic.first_s + cell_s * slower.max()), np.where(slower, 0.0, level) / cell_s
        found = evidence(rest, nodes, still, known_caps, sites, rules=rules)
        for end in zip(*np.nonzero(by_queue), strict=True):
            if np.isnan(found.capacity[end]):
                late = of_end[end][by_queue[end] :]
                found.capacity[end] = _means(late, min(rules.best_cells, len(late))).max() / cell_s
        return replace(found, has_slowed=True)
    is_steady = of_pair >= rules.steady_part * best_of_pair[:, np.newaxis]
    is_capped = (is_held_back & is_steady).sum(axis=1) >= rules.fewest_cells
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
    are_slower: bool,
    rules: Rules,
) -> tuple[Floats, Mask, Mask]:
    """Capacities in bytes a cell, shape (2 or 4, N), NaN for unproven; where a witness has room, shape (connections, cells); and
    where each connection's ends are full, shape (2 or 4, connections, cells).

    carried, active, at_cap: bytes of each connection, the part of each cell for which it sends, and whether its pair carries as
    much as its known cap, shape (connections, cells); of_end, full: bytes of each end, and how many make it full, shape (2 or 4,
    N, cells); is_inner: whether a connection lies within a site, shape (connections,); are_slower: some ends became slower, so
    the fewest ends count.
    """
    speed = np.divide(carried, active, out=np.zeros_like(carried), where=active >= rules.speed_part)
    seen = speed if is_inner is None else np.where(is_inner[:, np.newaxis], _mean_speed(carried, active, speed), speed)
    is_full = np.array([(rate >= least)[end] for rate, least, end in zip(of_end, full, ends, strict=True)])
    gets_most = [speed >= rules.fastest_part * _highest(seen, end, of_end.shape[1])[end] for end in ends[:2]]
    gets_most += [np.ones(speed.shape, dtype=np.bool_) for _ in ends[2:]]  # speeds on an uplink say nothing
    is_witness = active >= rules.witness_part
    lasting = np.where(active >= rules.speed_part, carried, 0.0)
    is_in_use = [
        (_summed(lasting, end, of_end.shape[1]) >= rules.lasting_part * rate)[end]
        for end, rate in zip(ends[:2], of_end[:2], strict=True)
    ]
    is_in_use += [np.ones(speed.shape, dtype=np.bool_) for _ in ends[2:]]  # an uplink's connections take turns
    laws = zip(is_full, gets_most, is_in_use, strict=True)
    explains = np.array([is_witness & ~at_cap & full & most & in_use for full, most, in_use in laws])
    has_much = [
        (rate >= rules.full_part * least)[end] for rate, least, end in zip(of_end[2:], full[2:], ends[2:], strict=True)
    ]
    may_explain = np.array([*explains[:2], *has_much])
    proven = _proven(explains, may_explain, ends, of_end.shape[1], rules)
    if are_slower and rules.fewest_ends:
        is_sure = [one[end] for one, end in zip(proven.sum(axis=-1) >= rules.fewest_cells, ends, strict=True)]
        left = may_explain & ~(may_explain & np.array(is_sure)[..., np.newaxis]).any(axis=0)
        of_left = [np.bincount(end, one.sum(axis=1))[end] for one, end in zip(left, ends, strict=True)]
        witnesses = left * np.array(of_left)[..., np.newaxis]
        proven |= _proven(explains, left & (witnesses == witnesses.max(axis=0)), ends, of_end.shape[1], rules)
    count = proven.sum(axis=-1)
    capacity = np.where(count >= rules.fewest_cells, (of_end * proven).sum(axis=-1) / np.maximum(count, 1), np.nan)
    return capacity, is_witness & ~is_full.any(axis=0), is_full


def _proven(explains: Mask, may_explain: Mask, ends: Sequence[Ints], nodes: int, rules: Rules) -> Mask:
    """Where an end explains a witness that no other end may explain, shape (2 or 4, N, cells)."""
    proves = explains & may_explain & (may_explain.sum(axis=0) == 1) if rules.proof_by_one_end else explains
    return np.array([_summed(one, end, nodes) > 0 for one, end in zip(proves, ends, strict=True)])


def _mean_speed(carried: Floats, active: Floats, speed: Floats) -> Floats:
    """Speeds; a connection that sends too little in a cell has its mean over all cells there, one that sends nothing has 0."""
    total, sends = carried.sum(axis=1), active.sum(axis=1)
    mean = np.divide(total, sends, out=np.zeros(len(total)), where=sends > 0)
    return np.where((speed == 0) & (active > 0), mean[:, np.newaxis], speed)


def _ways(source: Ints, target: Ints, sites: Sites | None) -> tuple[Ints, ...]:
    """The ways that each connection takes, by kind: out of its source, into its target, and with sites out of the one site and into
    the other. The number of sites stands for no uplink."""
    if sites is None:
        return source, target
    there, here = sites.place[source], sites.place[target]
    leave, come = (
        np.where((there == here) | (sites.machines[end] == 1), sites.count, site)
        for end, site in ((source, there), (target, here))
    )
    return source, target, leave, come


def _are_most(is_held_back: Mask, of_pair: Floats, end: Ints, nodes: int, rules: Rules) -> Mask:
    """Whether the pairs of an end that were held back carried most of its bytes, shape (N,).

    Bytes count and not pairs: between sites some pairs carry much, and others no more than a probe.
    """
    held_back, carried = is_held_back.sum(axis=1) >= rules.fewest_cells, of_pair.sum(axis=1)
    of_held_back, of_all = (np.bincount(end, some, nodes) for some in (held_back * carried, carried))
    return np.asarray(of_held_back > rules.slower_part * of_all)


def _slower_after(of_end: Floats, end: Ints, of_pair: Floats, is_held_back: Mask, rules: Rules) -> Ints:
    """The cell after which each end never was as fast as before, though its pairs waited for nothing else; 0 for none, shape (N,).

    of_end: bytes a cell, shape (N, cells); end: each pair's end, shape (pairs,); of_pair, is_held_back: each pair's bytes a cell,
    and whether it was held back, shape (pairs, cells). One pair alone may be capped, and a few bytes left over at the end of an
    iteration prove nothing.
    """
    nodes, cells, after = len(of_end), rules.cells, _after_best(of_end, rules)
    is_late = np.arange(cells) >= after[end][:, np.newaxis]
    is_late_held = is_held_back & is_late
    waits = is_late_held.sum(axis=1) > rules.waiting_part * is_late.sum(axis=1)
    late, held_back = (np.bincount(end, (of_pair * some).sum(axis=1), nodes) for some in (is_late, is_late_held))
    enough = rules.slowed_part * np.maximum(late, _few_bytes(of_end, rules))
    is_slower = (cells - after >= rules.fewest_cells) & (np.bincount(end, waits, nodes) > 1) & (held_back > enough)
    return np.where(is_slower, after, 0)


def _slower_by_queue(
    of_end: Floats, busy: Floats, active: Floats, waits: Floats, ends: Ints, pair: Ints, may_be: Mask, rules: Rules
) -> Ints:
    """The cell after which each end carried less than before while more waited for it, 0 for none, shape (2, N).

    of_end: bytes a cell; busy: the part of each cell for which an end carries anything, shapes (2, N, cells); active: the same of
    each connection, shape (connections, cells); waits: what of that may be due to each of its ends, shape (2, connections, cells);
    ends, pair: of each connection, shapes (2, connections) and (connections,); may_be: whether a node's ends are asked, shape (N,).
    Ends are taken in the order of how much more waits for them. A connection that waits for one is not counted at its other end.
    One pair alone may be capped.
    """
    _, nodes, cells = of_end.shape
    after, cell, way_of = _after_best(of_end, rules), np.arange(cells), np.arange(2)[:, np.newaxis]
    is_late, length = cell >= after[..., np.newaxis], np.maximum(cells - after, 1)
    was_best = ~is_late & (cell >= after[..., np.newaxis] - rules.best_cells)
    late = np.where(is_late[way_of, ends], waits, 0.0).sum(axis=-1) / length[way_of, ends]
    more = rules.full_part * late - np.where(was_best[way_of, ends], active, 0.0).sum(axis=-1) / rules.best_cells
    is_busy = (busy * is_late).sum(axis=-1) >= rules.witness_part * length
    is_enough = (of_end * is_late).sum(axis=-1) >= _few_bytes(of_end, rules)
    is_left = may_be & is_busy & is_enough & (cells - after >= rules.fewest_cells)
    found, left = np.zeros_like(after), np.ones(len(pair), dtype=np.bool_)
    while True:
        of_ends = np.array([np.bincount(end, one * left, nodes) for end, one in zip(ends, more, strict=True)])
        way, node = np.unravel_index(np.where(is_left, of_ends, 0.0).argmax(), after.shape)
        if not is_left[way, node] or of_ends[way, node] <= 0:
            return found
        is_left[way, node] = False
        own = left & (ends[way] == node)
        if (np.bincount(pair[own], more[way, own]) > 0).sum() > 1:
            found[way, node] = after[way, node]
            left &= ~own


def _few_bytes(of_end: Floats, rules: Rules) -> Floats:
    """Bytes of each end that may be left over when others have ended, shape (..., N). of_end: a cell, shape (..., N, cells)."""
    carried = of_end.sum(axis=-1)
    usual = carried.sum(axis=-1, keepdims=True) / np.maximum(1, np.count_nonzero(carried, axis=-1, keepdims=True))
    return np.asarray(np.maximum(carried, usual) * rules.fewest_cells / rules.cells)


def _after_best(of_end: Floats, rules: Rules) -> Ints:
    """The cell after which each end never was as fast as before. of_end: bytes a cell, shape (..., cells)."""
    means = _means(of_end, rules.best_cells)
    is_best = means >= rules.full_part * means.max(axis=-1, keepdims=True)
    return np.asarray(rules.cells - is_best[..., ::-1].argmax(axis=-1))


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


def _means(values: Floats, count: int) -> Floats:
    """The mean over every `count` cells that follow one another, shape (..., cells - count + 1)."""
    so_far = np.cumsum(values, axis=-1)
    so_far = np.concatenate([np.zeros_like(so_far[..., :1]), so_far], axis=-1)
    return np.asarray((so_far[..., count:] - so_far[..., :-count]) / count)
