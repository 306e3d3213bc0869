"""How far each process is in the exchange, and what it has told of the iteration under way."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nalb.failures import Cause, Failure, Moment, Phase
from nalb.measurement.cores import Work
from nalb.protocol.members import Members
from nalb.protocol.participant import Process
from nalb.protocol.wire import Report, SampleRow
from nalb.services.exchange import messages as m


class Reported(NamedTuple):
    """The rows of one report, and what turns them into samples."""

    rows: list[SampleRow]
    shift_s: float  # from the process's clock to ours
    early_s: float  # the messages that it can tell of arrived between early_s and late_s, on our clock
    late_s: float


@dataclass
class ProcessProgress:
    """How far one process is."""

    process: Process
    registration: int = -1  # number of its last Register
    tensors: list[m.TensorSpec] | None = None  # registered while others have yet to register
    done: m.Done | None = None  # of the iteration under way
    early: deque[m.Done] = field(default_factory=deque)  # of later iterations, whose plan it has already
    sums: m.Sums | None = None  # of the iteration under way
    finished: int = -1  # the last iteration that it reported done, early or not
    left_after: int | None = None  # the last finished one when it said Goodbye
    reports: list[Reported] = field(default_factory=list)  # of the iteration under way
    early_reports: list[Reported] = field(default_factory=list)  # of the next one, whose plan was sent ahead
    reported: int = -1  # the iteration in which its last report came
    covers: int = 0  # iterations, the present one included, that its samples may be of
    cpu_s: float = 0.0  # its CPU time so far
    cpu_before_s: float = 0.0  # its CPU time before this iteration
    cores: float | None = None  # cores that it may use; None: not known
    queued_bytes: int = 0  # the most that it reported to wait on its connections, since the iteration before
    resent: int = 0  # packets that TCP has sent again on them so far
    resent_before: int = 0  # the same before this iteration

    def note(self, report: Report, iteration: int) -> None:
        """Take in what a report, which came in this iteration, says besides samples."""
        self.cpu_s, self.cores = report.cpu_s, report.cores
        self.queued_bytes, self.resent = max(self.queued_bytes, report.queued_bytes), report.resent
        self.covers += iteration - self.reported
        self.reported = iteration

    def begin(self) -> None:
        """The next iteration begins. A process to which its plan was sent ahead may have done it already."""
        self.done, self.sums = self.early.popleft() if self.early else None, None
        self.cpu_before_s = self.cpu_s
        self.queued_bytes, self.resent_before = 0, self.resent
        self.reports, self.early_reports = self.early_reports, []
        self.covers = int(bool(self.reports))

    @property
    def node(self) -> str:
        """The name of the process's node."""
        return self.process.hello.node


class JobProgress:
    """The progress of all processes of a job."""

    def __init__(self, members: Members):
        self._members = members
        self._by_identity: dict[bytes, ProcessProgress] = {}

    def __iter__(self) -> Iterator[ProcessProgress]:
        return map(self.of, self._members)

    def of(self, process: Process) -> ProcessProgress:
        """The progress of one process."""
        if (found := self._by_identity.get(process.identity)) is None:
            found = self._by_identity[process.identity] = ProcessProgress(process)
        return found

    @property
    def workers(self) -> list[ProcessProgress]:
        """The workers' progress, in the order of their coming."""
        return [self.of(worker) for worker in self._members.workers]

    @property
    def servers(self) -> list[ProcessProgress]:
        """The servers' progress, in the order of their coming."""
        return [self.of(server) for server in self._members.servers]

    def by_node(self, count: Callable[[ProcessProgress], int]) -> dict[str, int]:
        """The counts of each node's processes added up; nodes with 0 are left out."""
        counts = Counter[str]()
        for one in self:
            counts[one.node] += count(one)
        return dict(+counts)

    def work(self, nodes: list[str]) -> Work:
        """The CPU time that the iteration took on these nodes, which are all of the job's, each once."""
        place = {name: i for i, name in enumerate(nodes)}
        worker_s, server_s, cores = np.zeros(len(place)), np.zeros(len(place)), np.full(len(place), np.inf)
        for one in self:
            i = place[one.node]
            cores[i] = np.nan if one.cores is None else min(cores[i], one.cores)
        for worker in self.workers:
            known_s = worker.done.cpu_s if worker.done else None
            worker_s[place[worker.node]] = np.nan if known_s is None else known_s
        for server in self.servers:
            if server.process.is_worker:
                continue  # it told all of its CPU time as a worker
            server_s[place[server.node]] += server.cpu_s - server.cpu_before_s  # one of each level
        return Work(worker_s, server_s, cores)

    def exchanging(self, iteration: int) -> list[Process]:
        """The workers that lack sums of this iteration; none while gradients of it are still being computed."""
        waiting = [worker.process for worker in self.workers if worker.finished < iteration]
        is_all_computed = all(worker.computed >= iteration and worker.exchanging == iteration for worker in waiting)
        return waiting if is_all_computed else []

    @property
    def lacking(self) -> list[Process]:
        """The workers that lack the sum of a call whose arrays are computed on all workers."""
        computed = min(worker.process.ready for worker in self.workers)
        return [worker.process for worker in self.workers if worker.process.summed < computed]

    def moment(self, process: Process, iteration: int) -> Moment:
        """The phase of a process while this iteration runs, by its own last report."""
        if not process.is_worker:
            return None, iteration
        if process.exchanging >= iteration:  # perhaps the next one already, whose plan was sent ahead
            return Phase.EXCHANGE, process.exchanging
        return Phase.END if self.of(process).finished == iteration else Phase.FORWARD, iteration

    def left_behind(self, process: Process) -> Failure | None:
        """Why a process would wait for ever for a worker that has left, if so: every iteration needs all workers."""
        for worker in self._members.left if process.exchanging >= 0 else ():
            left_after = self.of(worker).left_after
            if left_after is not None and left_after < process.exchanging:
                return worker.failure(
                    Cause.UNEQUAL,
                    f"left after iteration {left_after} while {process.name} began iteration {process.exchanging}: "
                    "all workers must make the same number of steps",
                )
        return None

    def disagreement(self, mine: ProcessProgress) -> Failure | None:
        """How one worker's registration differs from another's, if so. All have registered."""
        for other in self.workers:
            if other.tensors != mine.tensors:
                return mine.process.failure(
                    Cause.UNEQUAL,
                    f"and {other.process.name} push different tensors: {_difference(mine.tensors, other.tensors)}; "
                    "all workers must make the same calls",
                )
            if other.registration != mine.registration:
                detail = f"and {other.process.name} have registered unequally often: please report this"
                return mine.process.failure(Cause.PROTOCOL, detail)
        return None


def _difference(mine: list[m.TensorSpec] | None, other: list[m.TensorSpec] | None) -> str:
    """The first tensor in which two workers differ, for people."""
    assert mine is not None
    assert other is not None
    if len(mine) != len(other):
        return f"{len(mine)} against {len(other)}"
    first = next(i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
    return f"number {first} is {mine[first].name} ({mine[first].elements}) against {other[first].name} ({other[first].elements})"
