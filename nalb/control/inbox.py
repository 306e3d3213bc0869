"""What all processes have reported of an iteration, as one array: checked, named by node, on one clock.

Done once per iteration for all: a thousand processes send ten rows each, or twenty some thousand.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from nalb.control.process import Process
from nalb.measurement.samples import FAULTS, Floats, Ints, Mask, Samples, check, samples_of

MORE = "more than was sent"


class Received(NamedTuple):
    """Samples, and how often each process (by its place) has reported what cannot be, by reason."""

    samples: Samples
    faults: Counter[tuple[int, str]]


def collect(
    processes: Sequence[Process], node_of_peer: dict[int, int], since_s: float, most_bytes: Callable[[int], Floats]
) -> Received:
    """The samples of one iteration, those left out that cannot be.

    since_s: when its first push left, on the common clock. What came before is of new slots or of sums without a plan.
    most_bytes: for a number of iterations, what each node's share let anybody send to it or have from it, per pair, bytes,
    shape (N,). A process whose rows say that one peer has sent it more is not believed at all: the sender is the second
    witness, and what it had to send is known.
    """
    reports = [(place, one) for place, process in enumerate(processes) for one in process.reports]
    counts = [len(one.rows) for _, one in reports]
    if not sum(counts):
        return Received(samples_of([]), Counter())
    flat = chain.from_iterable(map(msgspec.structs.astuple, chain.from_iterable(one.rows for _, one in reports)))
    rows = np.fromiter(flat, np.int64, 4 * sum(counts)).reshape(-1, 4)
    place = np.repeat([place for place, _ in reports], counts)
    is_server = np.array([process.hello.role == "server" for process in processes])
    node = np.array([node_of_peer.get(process.hello.ps_id, -1) for process in processes])
    shift_s, *within_s = (np.repeat(one, counts) for one in zip(*(one[1:] for _, one in reports), strict=True))
    samples, kept, wrong = check(rows, node[place], is_server[place], node_of_peer, shift_s, np.stack(within_s, 1))
    bad = np.flatnonzero(wrong >= 0)
    faults = Counter((int(place[k]), FAULTS[wrong[k]]) for k in bad)
    is_of_it = samples["end_s"] > since_s
    samples, place = samples[is_of_it], place[kept[is_of_it]]
    too_much = _exceeding(place, samples, is_server, [process.covers for process in processes], most_bytes)
    faults.update({(one, MORE): int((place == one).sum()) for one in too_much})
    return Received(samples[~np.isin(place, too_much)], faults)


def _exceeding(
    place: Ints, samples: Samples, is_server: Mask, covers: list[int], most_bytes: Callable[[int], Floats]
) -> list[int]:
    """The processes that say that one peer sent them more than the plans of so many iterations had to send."""
    nodes = int(max(samples["source"].max(), samples["target"].max())) + 1 if len(samples) else 1
    key, first, of = np.unique(place * nodes + samples["source"], return_index=True, return_inverse=True)
    received = np.bincount(of, samples["size_bytes"], len(key))
    who = key // nodes
    holder = np.where(is_server[who], samples["target"][first], samples["source"][first])
    most = np.zeros(len(key))
    covered = np.array(covers)[who]
    for iterations in np.unique(covered).tolist():
        same = covered == iterations
        most[same] = most_bytes(iterations)[holder[same]]
    return [int(one) for one in np.unique(who[received > most])]
