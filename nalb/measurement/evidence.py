"""What one iteration proves of the network.

TCP connections share links by max-min fairness. So whatever holds a connection back, its source's way out, its target's way
in or a cap of the pair, is full, and gives no other connection more. An iteration is cut into cells of time. A connection that
sends without a pause throughout a cell is a witness there:

    an end explains it    where the end carries as much as at its best, and none of its connections is much faster
    one end explains it   that end is full: what it carries is its capacity
    both explain it       one of them is full; which one is not known
    neither explains it   the pair has a cap of its own, or the network changed within the iteration

What a direction carried at its best is a lower bound of its capacity, whatever else is known. So an end that carries much less than
it has carried before has room, unless most of its pairs are held back: then it became slower. A pair that carries all that it is
known to carry is no witness of its ends. Choice not taken: to fit
capacities to all times by simulating the iteration, which takes seconds for a dozen nodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from nalb.measurement.samples import Floats, Ints, Mask
from nalb.measurement.traffic import Traffic, quantiles

CELLS = 20  # of an iteration: the last cells show what was slow to end
LEAST_CELL_S = 0.1  # token buckets and late readers blur what is shorter
FEWEST_CELLS = 8
BEST_PART = 0.2  # of an iteration: the best is the mean over so much of it
ALL = 0.9  # of a cell: who pauses longer waits for something else than links. Of an end's bytes: with one peer, it is the pair
FULL = 0.85  # of the best: an end that carries less has room. Of a fast message's speed: it may have found tokens and empty queues
LEVEL = 0.75  # of the fastest connection of an end: a slower one is held back elsewhere
MOST = 0.5  # of a cell, an end's pairs or a pair's bytes
PROOF = 0.1  # of an iteration for which an end must be full, and of what it carries then for which witnesses must stand
LASTING = 0.03  # of all bytes: what an end that became slower must have carried since
FEWEST_MESSAGES = 3
FAST = 0.9  # quantile of the speeds of a node's messages: the fast ones had the node to themselves
JITTER_S = 0.5e-3  # of a message's two time stamps, on a machine whose cores are busy


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one iteration shows, in bytes per second. N nodes; row 0 is up, row 1 is down."""

    least: Floats  # what each direction carried at its best, or its fast messages by themselves, shape (2, N); 0 for nothing
    capacity: Floats  # of the directions that were full, shape (2, N); NaN for others
    possible: (
        Floats  # of the fewest other directions that explain the rest, what they carried, shape (2, N); NaN for others
    )
    caps: dict[tuple[int, int], float]  # of directed pairs that neither end explains
    carried: dict[tuple[int, int], float]  # by each directed pair while one of its connections sent
    fast: dict[tuple[int, int], float]  # what a pair's fast messages say that it carries at least
    slowed_s: float | None  # when an end that had carried more became slower; None if none did


def evidence(
    traffic: Traffic,
    num_nodes: int,
    known: Floats | None = None,
    known_caps: Mapping[tuple[int, int], float] = MappingProxyType({}),
) -> Evidence:
    """Read one iteration. Cost: a few sorts of its messages, and O(cells) for each connection.

    known: what each direction has carried before, shape (2, N), 0 for nothing: an end that now carries less has room, unless most
    of its pairs are held back. known_caps: of pairs; one that carries so much says nothing of its ends.
    """
    nodes, cells = num_nodes, int(np.clip(traffic.span_s / LEAST_CELL_S, FEWEST_CELLS, CELLS))
    cell_s = traffic.span_s / cells
    key = (traffic.is_push * nodes + traffic.source) * nodes + traffic.target
    connections, connection = np.unique(key, return_inverse=True)
    ends = connections // nodes % nodes, connections % nodes
    pairs, pair = np.unique(connections % nodes**2, return_inverse=True)
    carried = traffic.carried(connection, len(connections), cells)
    active_s = traffic.active(connection, len(connections), cells)
    busy = np.array([traffic.active(node, nodes, cells) for node in (traffic.source, traffic.target)]) / cell_s
    of_end = np.array([_summed(carried, end, nodes) for end in ends])
    of_pair, ends_of_pair = _summed(carried, pair, len(pairs)), (pairs // nodes, pairs % nodes)
    names = [divmod(one, nodes) for one in pairs.tolist()]
    cap = cell_s * np.array([known_caps.get(name, np.inf) for name in names])
    at_cap = (of_pair >= FULL * cap[:, np.newaxis])[pair]
    best = np.array([_best(one) for one in of_end])
    before = np.zeros_like(best) if known is None else known * cell_s
    while True:
        level = np.fmax(best, before)
        capacity, possible, has_room = _judge_ends(carried, active_s / cell_s, at_cap, of_end, busy, ends, level)
        is_held_back = _summed(np.where(has_room, carried, 0.0), pair, len(pairs)) > MOST * of_pair
        is_slower = np.array([_are_most(is_held_back, end, nodes) for end in ends_of_pair]) & (before > best)
        if not is_slower.any():
            break
        before = np.where(is_slower, 0.0, before)
    is_capped, after = _judge_pairs(of_pair, is_held_back, of_end, ends_of_pair, FEWEST_CELLS * LEAST_CELL_S / cell_s)
    best_of_pair, pair_s = _best(of_pair) / cell_s, _highest(active_s, pair, len(pairs)).sum(axis=1)
    caps = {names[k]: float(best_of_pair[k]) for k in np.flatnonzero(is_capped).tolist()}
    bytes_of_pair = of_pair.sum(axis=1)
    for direction, end in enumerate(ends_of_pair):
        for k in np.flatnonzero(bytes_of_pair > ALL * np.bincount(end, bytes_of_pair, nodes)[end]).tolist():
            if np.isfinite(capacity[direction, end[k]]):
                caps[names[k]], capacity[direction, end[k]] = float(capacity[direction, end[k]] / cell_s), np.nan
    mean_of_pair = bytes_of_pair / np.maximum(pair_s, LEAST_CELL_S / CELLS)
    return Evidence(
        np.fmax(best / cell_s, [_fast(traffic, node, nodes) for node in (traffic.source, traffic.target)]),
        capacity / cell_s,
        possible / cell_s,
        caps,
        dict(zip(names, mean_of_pair.tolist(), strict=True)),
        dict(zip(names, _fast(traffic, pair[connection], len(pairs)).tolist(), strict=True)),
        None if after is None else traffic.first_s + cell_s * after,
    )


def _judge_ends(
    carried: Floats, active: Floats, at_cap: Mask, of_end: Floats, busy: Floats, ends: tuple[Ints, Ints], best: Floats
) -> tuple[Floats, Floats, Mask]:
    """(capacity, possible) in bytes a cell, shape (2, N), and where both ends of a witness have room, shape (connections, cells).

    carried: bytes; active: the part of each cell for which a connection sends; at_cap: whether its pair carries what it is known
    to, all of that shape; of_end, busy: bytes and part of each
    end, shape (2, N, cells); best: bytes a cell that each end has carried, shape (2, N).
    """
    speed = np.divide(carried, active, out=np.zeros_like(carried), where=active >= MOST)
    is_witness = active >= ALL
    may, does, has_room = [], [], is_witness
    for end, total, part, most in zip(ends, of_end, busy, best[..., np.newaxis], strict=True):
        level = _highest(speed, end, len(total))
        room = _smoothed(total) < FULL * most * _smoothed(part)
        gets_most = is_witness & ~at_cap & (speed >= LEVEL * level[end])
        does.append(gets_most & (total >= FULL * most * part)[end])
        may.append(gets_most & ~room[end])
        has_room = has_room & room[end]
    capacity = np.array([_told(carried, does[d] & ~may[1 - d], of_end[d], end) for d, end in enumerate(ends)])
    return capacity, _cheapest(carried, does, may, of_end, ends, np.isfinite(capacity)), has_room


def _judge_pairs(
    of_pair: Floats, is_held_back: Mask, of_end: Floats, ends: tuple[Ints, Ints], fewest_cells: float
) -> tuple[Mask, int | None]:
    """Which pairs have a cap of their own, shape (pairs,), and the first cell after which an end was slower; None if none was."""
    cells, nodes = of_pair.shape[1], of_end.shape[1]
    is_steady = _smoothed(of_pair) >= FULL * _best(of_pair)[:, np.newaxis]
    is_capped = (is_held_back & is_steady).sum(axis=1) >= PROOF * cells
    slower = []
    for direction, end in enumerate(ends):
        for node in np.flatnonzero(_are_most(is_held_back, end, nodes)).tolist():
            own = end == node
            after = _slower_after(of_end[direction, node], of_pair[own], is_held_back[own], of_pair.sum())
            if after is not None and cells - after >= fewest_cells:
                is_capped &= ~own
                slower.append(after)
    return is_capped, max(slower, default=None)


def _are_most(is_held_back: Mask, end: Ints, nodes: int) -> Mask:
    """Whether most of an end's pairs were held back at once, shape (N,)."""
    held_back = is_held_back.sum(axis=1) >= PROOF * is_held_back.shape[1]
    return np.asarray(np.bincount(end, held_back, nodes) > MOST * np.bincount(end, minlength=nodes))


def _told(carried: Floats, witnesses: Mask, of_end: Floats, end: Ints) -> Floats:
    """What each end carried, bytes a cell, in the cells where witnesses explain enough of it, shape (N,); NaN for too few cells."""
    told = _summed(np.where(witnesses, carried, 0.0), end, len(of_end))
    proven = (told > 0) & (told >= PROOF * of_end)
    count = proven.sum(axis=1)
    mean = (of_end * proven).sum(axis=1) / np.maximum(count, 1)
    return np.where(count >= PROOF * of_end.shape[1], mean, np.nan)


def _cheapest(
    carried: Floats, does: list[Mask], may: list[Mask], of_end: Floats, ends: tuple[Ints, Ints], proven: Mask
) -> Floats:
    """What the fewest directions carried, bytes a cell, that explain what proven ones do not, shape (2, N); NaN for others.

    The direction that explains most comes first, and what it explains is explained.
    """
    left = [does[direction] & may[1 - direction] for direction in (0, 1)]
    found, nodes = np.full(proven.shape, np.nan), proven.shape[1]
    chosen = proven
    while True:
        for direction, end in enumerate(ends):
            explained = does[direction] & chosen[direction][end][:, np.newaxis]
            left = [one & ~explained for one in left]
        score = np.array([np.bincount(end, (left[d] * carried).sum(axis=1), nodes) for d, end in enumerate(ends)])
        if score.max() < PROOF * carried.sum():
            return found
        place = divmod(int(score.argmax()), nodes)
        found[place] = _told(carried, left[place[0]], of_end[place[0]], ends[place[0]])[place[1]]
        chosen = np.zeros_like(proven)
        chosen[place] = True


def _slower_after(of_end: Floats, of_pair: Floats, is_held_back: Mask, all_bytes: float) -> int | None:
    """The first cell after which an end never was as fast as before, though its pairs waited for nothing else; None if it was.

    of_end: bytes a cell, shape (cells,); of_pair and is_held_back: of its pairs, shape (pairs, cells). One pair alone may be
    capped, and little that is left over at the end of an iteration says nothing.
    """
    smooth = _smoothed(of_end[np.newaxis])[0]
    after = int(np.flatnonzero(smooth >= FULL * smooth.max())[-1]) + 1
    if len(of_end) - after < PROOF * len(of_end):
        return None
    late, held = of_pair[:, after:], is_held_back[:, after:]
    lasts = (late > 0).mean(axis=1) > MOST
    waits = lasts & (held.sum(axis=1) > MOST * (late > 0).sum(axis=1))
    enough = (late * held).sum() > max(LASTING * all_bytes, MOST * late.sum())
    return after if enough and waits.sum() > max(1, MOST * lasts.sum()) else None


def _fast(traffic: Traffic, group: Ints, count: int) -> Floats:
    """What each group's fast messages say that its links carry at least, shape (count,); NaN for too few messages.

    Nodes in step with slower ones pause often, and then a message has a link to itself. Each is given the longest time that it
    may have taken: a machine short of CPU reads forecast and message at once.
    """
    speed = traffic.size_bytes / (traffic.longest_s + JITTER_S)
    has_large = np.bincount(group, traffic.is_full_sized, count) >= FEWEST_MESSAGES
    counts = traffic.is_full_sized | ~has_large[group]  # a server with hardly a share has probes alone
    enough = np.bincount(group[counts], minlength=count) >= FEWEST_MESSAGES
    fast = quantiles(speed[counts], group[counts], np.full(count, FAST))
    return np.where(enough, FULL * fast, np.nan)


def _summed(values: Floats, group: Ints, count: int) -> Floats:
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


def _smoothed(values: Floats) -> Floats:
    """The mean over the BEST_PART of the cells around each cell; fewer at both ends."""
    reach = max(1, round(BEST_PART * values.shape[1])) // 2
    so_far = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    cell = np.arange(values.shape[1])
    first, last = np.maximum(cell - reach, 0), np.minimum(cell + reach + 1, values.shape[1])
    return np.asarray((so_far[:, last] - so_far[:, first]) / (last - first))


def _best(rate: Floats) -> Floats:
    """The highest mean of each row over BEST_PART of the cells, shape (rows,)."""
    width = max(1, round(BEST_PART * rate.shape[1]))
    so_far = np.cumsum(np.pad(rate, ((0, 0), (1, 0))), axis=1)
    return np.asarray((so_far[:, width:] - so_far[:, :-width]).max(axis=1) / width)
