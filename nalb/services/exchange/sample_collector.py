"""What all processes have reported of an iteration, as one array: checked, named by node, on one clock.

Done once per iteration for all: a thousand processes send ten rows each, or twenty some thousand.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from nalb.events import DoubtEvent
from nalb.measurement.samples import CHECKED, ClockAlignment, Fault, Floats, Ints, Mask, Samples, check, samples_of
from nalb.protocol import messages as m
from nalb.protocol.members import Members
from nalb.protocol.participant import Process, Reported

STALE_S = 60.0  # a sample may be older than the plan: of new slots, or of sums without a plan
CLOCK_S = 0.01  # ... and younger than its report by rounding


class SampleCollector:
    """The reports of an iteration, the clocks of those who sent them, and what was not believed."""

    def __init__(self, members: Members, rejected: Counter[str], tell: Callable[[DoubtEvent], None]):
        self._members, self._rejected, self._tell = members, rejected, tell
        self._clock = ClockAlignment()
        self._node_of_peer: dict[int, int] = {}  # by ps-lite's id
        self._accused: set[tuple[str, Fault]] = set()  # who, of what: each is told once

    def begin(self, nodes: Sequence[str]) -> None:
        """All processes are there. nodes: their names, in planning order."""
        index = {name: i for i, name in enumerate(nodes)}
        self._node_of_peer = {process.hello.ps_id: index[process.hello.node] for process in self._members}

    def take(self, process: Process, report: m.Report, released_s: float | None, now_s: float) -> None:
        """A report. Its samples are kept for the iteration whose plan went out at released_s; None: no plan is out."""
        self._clock.observe(process.name, report.sent_s, now_s)
        if report.samples and released_s is not None:
            shift_s, early_s = self._clock.offset_s[process.name], released_s - STALE_S
            process.reports.append(Reported(report.samples, shift_s, early_s, now_s + CLOCK_S))

    def forget(self, iteration: int, silence_s: float) -> None:
        """Drop what came before any worker began the iteration: sums without a plan, perhaps for days.

        A worker that has not said that it began may have done so since: no report takes longer than silence_s.
        """
        workers = self._members.workers
        if any(max(worker.exchanging, worker.computed, worker.finished) >= iteration for worker in workers):
            return
        since_s = min(worker.last_direct_s for worker in workers) - silence_s
        for process in self._members:
            process.reports = [report for report in process.reports if report.late_s >= since_s]

    def samples(self, most_bytes: Callable[[int], Floats], now_s: float) -> Samples:
        """The iteration's samples; who has reported what cannot be is named, once, and not believed."""
        processes = list(self._members)
        since_s = min(self.aligned("started_s").values(), default=-math.inf) - CLOCK_S
        samples, faults = collect(processes, self._node_of_peer, since_s, most_bytes)
        for (place, fault), count in sorted(faults.items(), key=lambda one: (one[0][0], one[0][1].value)):
            process = processes[place]
            self._rejected[fault.value] += count
            if not fault.is_possible and (process.name, fault) not in self._accused:
                self._accused.add((process.name, fault))
                self._tell(DoubtEvent(at_s=now_s, process=process.name, node=process.hello.node, reason=fault.value))
        return samples

    def aligned(self, moment: str) -> dict[str, float]:
        """When the workers' moment was, on our clock, by node."""
        told = [(w, getattr(w.done, moment)) for w in self._members.workers if w.name in self._clock.offset_s]
        return {w.hello.node: self._clock.to_common_s(w.name, at_s) for w, at_s in told if at_s is not None}

    def compute_spread_s(self) -> float:
        """By how much the last worker had computed after the first one; 0 where that is not known."""
        computed_s = self.aligned("computed_s").values()
        return max(computed_s) - min(computed_s) if len(computed_s) == len(self._members.workers) else 0.0

    def exposed_s(self) -> float:
        """From the moment when the last worker had computed to the last one's end; 0 where that is not known."""
        computed, finished = self.aligned("computed_s"), self.aligned("finished_s")
        return max(0.0, max(finished.values()) - max(computed.values())) if len(computed) == len(finished) > 0 else 0.0


class Received(NamedTuple):
    """Samples, and how often each process (by its place) has reported what cannot be, by fault."""

    samples: Samples
    faults: Counter[tuple[int, Fault]]


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
    is_server = np.array([process.is_server for process in processes])
    node = np.array([node_of_peer.get(process.hello.ps_id, -1) for process in processes])
    shift_s, *within_s = (np.repeat(one, counts) for one in zip(*(one[1:] for _, one in reports), strict=True))
    samples, kept, wrong = check(rows, node[place], is_server[place], node_of_peer, shift_s, np.stack(within_s, 1))
    bad = np.flatnonzero(wrong >= 0)
    faults = Counter((int(place[k]), CHECKED[wrong[k]]) for k in bad)
    is_of_it = samples["end_s"] > since_s
    samples, place = samples[is_of_it], place[kept[is_of_it]]
    too_much = _exceeding(place, samples, is_server, [process.covers for process in processes], most_bytes)
    faults.update({(one, Fault.MORE): int((place == one).sum()) for one in too_much})
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
