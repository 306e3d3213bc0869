"""Assigns whole slices to servers (Cai et al., Algorithm 2) in the order in which they go out, and numbers their slots.

The algorithm as printed fills the biggest servers first, so all workers would start by pushing to one server. `assign` gives every
server the same number of slices of each size as the algorithm does, but spreads them evenly along the order (`interleave`). Slices
of one size are interchangeable, so only their counts are computed (`greedy_counts`).
"""

import numpy as np
import numpy.typing as npt

from nalb.planning.nodes import Floats
from nalb.planning.slices import Ints

OPEN = 4  # slices of a size that a server may get beyond its sure ones: two by the level, and one for each of two roundings


def whole_bytes(shares: Floats, total_bytes: int) -> Ints:
    """Shares as whole bytes that add up to `total_bytes`: floors, and one more byte for the largest fractions, shape (K,).

    Ties go to the lower index.
    """
    exactly = np.asarray(shares, dtype=np.float64) * (total_bytes / float(np.sum(shares)))
    whole = np.floor(exactly).astype(np.int64)
    missing = total_bytes - int(whole.sum())
    order = np.argsort(whole - exactly, kind="stable")
    whole[order[: max(missing, 0)]] += 1
    if (excess := int(whole.sum()) - total_bytes) > 0:  # rounding of floats above 2^53 bytes' worth
        whole[int(np.argmax(whole))] -= excess
    return np.asarray(whole, dtype=np.int64)


def greedy_counts(left_bytes: Ints, size_bytes: int, count: int) -> Ints:
    """How many of `count` slices of one size Algorithm 2 gives each server, shape (K,).

    Each slice in turn goes to the server with most load left, ties to the lower index. So the `count` largest of
    {left_i - k size : k = 0, 1, ...} are taken. With the level L for which sum_i max(0, left_i - L) = count * size,
    server i takes (left_i - L) / size of them, to within one. One fewer than that is sure; sorting finds the few others.
    left_bytes: per server, may be negative. Cost: O(K log K), whatever the count. Source: Cai et al., Algorithm 2,
    lines 11 to 20.
    """
    down = -np.sort(-left_bytes).astype(np.float64)
    levels = (np.cumsum(down) - float(count) * size_bytes) / np.arange(1, len(down) + 1)
    level = levels[np.argmax(levels >= np.append(down[1:], -np.inf))]
    sure = np.maximum(np.floor((left_bytes - level) / size_bytes).astype(np.int64) - 1, 0)  # 1 for rounding
    left = left_bytes - sure * size_bytes
    open_left = (left[:, np.newaxis] - size_bytes * np.arange(OPEN)).ravel()
    taken = np.argsort(-open_left, kind="stable")[: count - int(sure.sum())] // OPEN
    return np.asarray(sure + np.bincount(taken, minlength=len(left)), dtype=np.int64)


def interleave(counts: Ints) -> Ints:
    """A sequence that has server i counts[i] times, spread evenly: its j-th place is (j + 1/2) / counts[i] of the whole.

    Ties go to the lower index. After any part of the order, server i has that part of its count, to within
    (1 + K counts[i] / n) / 2. Shape (n,). Cost: O(n log n) for n slices. The order is nearly that of smooth weighted round
    robin, which takes O(K) a step.
    """
    servers = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(servers)) - np.repeat(np.cumsum(counts) - counts, counts)
    position = (place + 0.5) / np.repeat(np.maximum(counts, 1), counts)
    return np.asarray(servers[np.argsort(position, kind="stable")], dtype=np.int64)


def assign(
    left_bytes: Ints, sizes_bytes: Ints, class_of_slice: Ints, is_probe: npt.NDArray[np.bool_]
) -> tuple[Ints, Ints]:
    """(server, slot) of each slice: probes go to the servers in turn, the rest by `greedy_counts`, interleaved per class.

    left_bytes: whole bytes that each server shall sum, shape (K,), K >= 1; the other three arguments per slice, shape (n,).
    The k-th probe goes to server k mod K. Servers are numbered 0 .. K-1; slots count from 0 per server and slot class.
    Each run of equal slices is shared out in proportion to the shares, and the last run makes up the differences: the greedy
    algorithm alone would give the first run to the largest share.
    Cost: O(n log n), and O(K log K) per run of equal slices. Source: Cai et al., Algorithm 2.
    """
    num_servers, num_slices = len(left_bytes), len(sizes_bytes)
    server = np.empty(num_slices, dtype=np.int64)
    probes, rest = np.flatnonzero(is_probe), np.flatnonzero(~is_probe)
    server[probes] = np.arange(len(probes)) % num_servers
    left = left_bytes - np.bincount(server[probes], sizes_bytes[probes], minlength=num_servers).astype(np.int64)
    ends = np.flatnonzero(np.diff(class_of_slice[rest])) + 1
    counts: dict[int, Ints] = {}
    base = np.maximum(left, 0)
    total, done = int(sizes_bytes[rest].sum()), 0
    held = np.zeros(num_servers, dtype=np.int64)
    for run in np.split(rest, ends) if len(rest) else ():
        size, slot_class = int(sizes_bytes[run[0]]), int(class_of_slice[run[0]])
        done += size * len(run)
        due = left if done == total else (base * (done / max(int(base.sum()), 1))).astype(np.int64)
        given = greedy_counts(due - held, size, len(run))
        held = held + given * size
        counts[slot_class] = counts[slot_class] + given if slot_class in counts else given
    for slot_class, given in counts.items():
        server[rest[class_of_slice[rest] == slot_class]] = interleave(given)
    return server, number_slots(server, class_of_slice, num_servers)


def number_slots(server: Ints, class_of_slice: Ints, num_servers: int) -> Ints:
    """Each slice's slot, shape (n,): the number of earlier slices of its class that its server has."""
    key = class_of_slice * num_servers + server
    order = np.argsort(key, kind="stable")
    ranked = key[order]
    first = np.flatnonzero(np.diff(ranked, prepend=-1))
    slot = np.empty(len(key), dtype=np.int64)
    slot[order] = np.arange(len(key)) - np.repeat(first, np.diff(np.append(first, len(key))))
    return slot
