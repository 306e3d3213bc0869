"""Makes one array of what all processes report of an iteration: samples that are checked, named by node, and on one clock.

This is done once per iteration for all reports: a thousand processes send ten rows each, or twenty processes some thousand.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np

from nalb.events import DoubtEvent
from nalb.measurement.samples import CHECKED, ClockAlignment, Fault, Floats, Ints, Samples, check, samples_of
from nalb.protocol import wire
from nalb.protocol.participant import Process
from nalb.services.exchange.progress import JobProgress, ProcessProgress, Reported

STALE_S = 60.0  # by so much a sample may be older than the plan: it is of new slots, or of sums without a plan
CLOCK_S = 0.01  # by so much rounding may make a sample younger than its report


class SampleCollector:
    """The reports of an iteration, the clocks of those who sent them, and what was not believed."""

    def __init__(self, progress: JobProgress, rejected: Counter[str], tell: Callable[[DoubtEvent], None]):
        self._progress, self._rejected, self._tell = progress, rejected, tell
        self._clock = ClockAlignment()
        self._node_of_peer: dict[int, int] = {}  # by Process.peer_numbers
        self._accused: set[tuple[str, Fault]] = set()  # processes and faults that observers were told of

    def begin(self, nodes: Sequence[str]) -> None:
        """All processes are there. nodes: their names, in planning order."""
        index = {name: i for i, name in enumerate(nodes)}
        numbered = ((number, one) for one in self._progress for number in one.process.peer_numbers)
        self._node_of_peer = {number: index[one.node] for number, one in numbered}

    def collect(
        self, one: ProcessProgress, report: wire.Report, released_s: float | None, iteration: int, now_s: float
    ) -> None:
        """Take in a report in this iteration, whose plan went out at released_s; None: its samples are of no iteration by plan.

        Samples are of the iteration that their report names, this one or the next, or else of this one.
        """
        self.align(one.process, report.sent_s, now_s)
        if report.samples and released_s is not None and (report.iteration < 0 or report.iteration >= iteration):
            shift_s, early_s = self._clock.offset_s[one.process.name], released_s - STALE_S
            reports = one.early_reports if report.iteration > iteration else one.reports
            reports.append(Reported(report.samples, shift_s, early_s, now_s + CLOCK_S))

    def align(self, process: Process, moment_s: float, now_s: float) -> None:
        """A message that came in at now_s tells a moment before it on the process's clock. Each Done and Report tells one."""
        self._clock.observe_stamp(process.name, moment_s, now_s)

    def forget(self, iteration: int, silence_s: float) -> None:
        """Drop the samples that came before any worker began the iteration. They are of sums without a plan, perhaps for days.

        A worker that has not said that it began may have done so since: no report takes longer than silence_s.
        """
        workers = self._progress.workers
        if any(max(one.process.exchanging, one.process.computed, one.finished) >= iteration for one in workers):
            return
        since_s = min(one.process.last_direct_s for one in workers) - silence_s
        for one in self._progress:
            one.reports = [report for report in one.reports if report.late_s >= since_s]

    def samples(self, most_bytes: Callable[[int], Floats], now_s: float) -> Samples:
        """The iteration's samples. A process that has reported what cannot be is not believed, and is named once."""
        reporters = list(self._progress)
        since_s = min(self.aligned("started_s").values()) - CLOCK_S
        samples, faults = collect(reporters, self._node_of_peer, since_s, most_bytes)
        for (place, fault), count in sorted(faults.items(), key=lambda one: (one[0][0], one[0][1].value)):
            process = reporters[place].process
            self._rejected[fault.value] += count
            if not fault.is_possible and (process.name, fault) not in self._accused:
                self._accused.add((process.name, fault))
                self._tell(DoubtEvent(at_s=now_s, process=process.name, node=process.hello.node, reason=fault.value))
        return samples

    def aligned(self, moment: str) -> dict[str, float]:
        """When a moment of the iteration was for each worker, by node, on our clock. moment: a field of Done."""
        told = [(one, getattr(one.done, moment)) for one in self._progress.workers if one.done is not None]
        return {one.node: self._clock.to_common_s(one.process.name, at_s) for one, at_s in told if at_s is not None}

    def compute_spread_s(self) -> float:
        """The time from when the first worker had computed to when the last one had; 0 where that is not known."""
        computed_s = self.aligned("computed_s").values()
        return max(computed_s) - min(computed_s) if len(computed_s) == len(self._progress.workers) else 0.0

    def exposed_s(self) -> float:
        """The time from when the last worker had computed to when the last one ended; 0 where that is not known."""
        computed, finished = self.aligned("computed_s"), self.aligned("finished_s")
        return max(0.0, max(finished.values()) - max(computed.values())) if len(computed) == len(finished) > 0 else 0.0


class Received(NamedTuple):
    """Samples, and how often each process (by its place) has reported each fault."""

    samples: Samples
    faults: Counter[tuple[int, Fault]]


def collect(
    reporters: Sequence[ProcessProgress],
    node_of_peer: dict[int, int],
    since_s: float,
    most_bytes: Callable[[int], Floats],
) -> Received:
    """The samples of one iteration, without those that cannot be.

    since_s: when its first push left, on the common clock. Samples from before are of new slots or of sums without a plan.
    most_bytes: gives, for a number of iterations, the bytes per pair that each node's share let anybody send to it or have from it,
    shape (N,). If a process's rows say that one peer has sent it more, none of its rows is believed: the sender is the second
    witness, and what it had to send is known.
    """
    reports = [(place, one) for place, reporter in enumerate(reporters) for one in reporter.reports]
    counts = [len(one.rows) for _, one in reports]
    if not sum(counts):
        return Received(samples_of([]), Counter())
    flat = chain.from_iterable(map(msgspec.structs.astuple, chain.from_iterable(one.rows for _, one in reports)))
    rows = np.fromiter(flat, np.int64, 4 * sum(counts)).reshape(-1, 4)
    place = np.repeat([place for place, _ in reports], counts)
    is_push = rows[:, 0] % 2 == 1  # from a worker, as peer_number counts
    receives = np.array([[one.process.is_worker, one.process.is_server] for one in reporters])
    rows[~receives[place, is_push.astype(int)], 0] = -1  # nobody sends that to such a process
    node = np.array([node_of_peer.get(one.process.peer_numbers[0], -1) for one in reporters])
    shift_s, *within_s = (np.repeat(one, counts) for one in zip(*(one[1:] for _, one in reports), strict=True))
    samples, kept, wrong = check(rows, node[place], node_of_peer, shift_s, np.stack(within_s, 1))
    bad = np.flatnonzero(wrong >= 0)
    faults = Counter((int(place[k]), CHECKED[wrong[k]]) for k in bad)
    is_of_it = samples["end_s"] > since_s
    samples, place = samples[is_of_it], place[kept[is_of_it]]
    too_much = _exceeding(place, samples, [one.covers for one in reporters], most_bytes)
    faults.update({(one, Fault.MORE): int((place == one).sum()) for one in too_much})
    return Received(samples[~np.isin(place, too_much)], faults)


def _exceeding(place: Ints, samples: Samples, covers: list[int], most_bytes: Callable[[int], Floats]) -> list[int]:
    """The places of processes that say that one peer sent them more than plans let it send. covers: iterations, by place."""
    nodes = int(max(samples["source"].max(), samples["target"].max())) + 1 if len(samples) else 1
    from_whom = (place * nodes + samples["source"]) * 2 + samples["is_push"]
    key, first, of = np.unique(from_whom, return_index=True, return_inverse=True)
    received = np.bincount(of, samples["size_bytes"], len(key))
    who = key // (2 * nodes)
    holder = np.where(key % 2 == 1, samples["target"][first], samples["source"][first])
    most = np.zeros(len(key))
    covered = np.array(covers)[who]
    for iterations in np.unique(covered).tolist():
        same = covered == iterations
        most[same] = most_bytes(iterations)[holder[same]]
    return [int(one) for one in np.unique(who[received > most])]
