"""A process of a job as the coordinator knows it, and how it is told from others."""

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from nalb.failures import Cause, Failure, Phase
from nalb.protocol import messages as m


class Reported(NamedTuple):
    """The rows of one report, and what turns them into samples."""

    rows: list[m.SampleRow]
    shift_s: float  # from the process's clock to ours
    early_s: float  # messages that it can tell of have arrived between the two, on our clock
    late_s: float


@dataclass
class Process:
    """A worker, a server, or an agent, which is both, that has said Hello."""

    identity: bytes
    hello: m.Hello
    last_heard_s: float  # on whichever connection
    last_direct_s: float  # on its own, on which all but signs of life travels
    exchanging: int = -1
    computed: int = -1  # the last iteration whose gradients are complete
    computed_s: float = 0.0  # when it said so first
    calls: int = 0
    ready: int = 0  # calls up to the last direct one whose arrays are computed
    ready_s: float = 0.0  # when it said so first
    summed: int = 0  # calls up to the last direct one whose sums are back
    round_trip_s: float = 0.0  # to the farthest of the others; 0: not known
    is_bbr: bool = False  # TCP's congestion control is BBR to all that are far
    drops: int = 0
    registration: int = -1  # number of its last Register
    tensors: list[m.TensorSpec] | None = None
    done: m.Done | None = None
    early: deque[m.Done] = field(default_factory=deque)  # of the next iterations, whose plan it has already
    sums: m.Sums | None = None  # of the iteration that runs
    finished: int = -1  # the last iteration that it reported done, early or not
    left_after: int | None = None  # said Goodbye after this iteration
    reports: list[Reported] = field(default_factory=list)  # of this iteration
    reported: int = -1  # the iteration in which its last report came
    cpu_s: float = 0.0  # its CPU time so far
    cpu_before_s: float = 0.0  # ... before this iteration
    cores: float | None = None  # that it may use; None: not known
    covers: int = 0  # iterations, the present one included, that its samples may be of

    def note(self, report: m.Report, iteration: int, now_s: float) -> None:
        """What its report, which came in this iteration, says besides samples."""
        self.exchanging, self.calls, self.drops = report.exchanging, report.calls, report.drops
        self.round_trip_s, self.is_bbr = report.round_trip_s, report.is_bbr
        self.cpu_s, self.cores = report.cpu_s, report.cores
        self.summed = report.summed
        if report.ready != self.ready:
            self.ready, self.ready_s = report.ready, now_s
        if report.computed != self.computed:
            self.computed, self.computed_s = report.computed, now_s
        self.covers += iteration - self.reported
        self.reported = iteration

    @property
    def is_worker(self) -> bool:
        """Whether gradients come from it."""
        return self.hello.role in ("worker", "agent")

    @property
    def is_server(self) -> bool:
        """Whether it sums, on whatever level."""
        return self.hello.role != "worker"

    @property
    def sums_for_all(self) -> bool:
        """Whether it sums what comes from all workers, or from all sites."""
        return self.is_server and self.hello.role != "site server"

    @property
    def sums_within_site(self) -> bool:
        """Whether it sums within a site."""
        return self.hello.role in ("site server", "agent")

    @cached_property
    def name(self) -> str:
        """How people and logs call it."""
        return f"{self.hello.role} {self.hello.node}"

    def failure(self, cause: Cause, detail: str, phase: Phase | None = None, iteration: int | None = None) -> Failure:
        """A failure of this process."""
        role, node = self.hello.role, self.hello.node
        return Failure(cause=cause, detail=detail, role=role, node=node, phase=phase, iteration=iteration)

    @property
    def rank(self) -> int:
        """Among the workers, or among the servers of all levels."""
        return self.hello.rank

    @property
    def peer_numbers(self) -> list[int]:
        """How others' rows name it."""
        roles = [role for role, is_played in ((True, self.is_worker), (False, self.is_server)) if is_played]
        return [m.peer_number(self.rank, is_worker) for is_worker in roles]


def natural_order(name: str) -> tuple[object, ...]:
    """n2 before n10."""
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")
    return (name[: len(name) - len(digits)], int(digits) if digits.isdecimal() else -1, name)


def disagreement(process: Process, workers: list[Process]) -> Failure | None:
    """How the worker's registration differs from another's, if so. All have said what they push."""
    for other in workers:
        if other.tensors != process.tensors:
            return process.failure(
                Cause.UNEQUAL,
                f"and {other.name} push different tensors: {_difference(process.tensors, other.tensors)}; "
                "all workers must make the same calls",
            )
        if other.registration != process.registration:
            return process.failure(
                Cause.PROTOCOL, f"and {other.name} have registered unequally often: please report this"
            )
    return None


def _difference(mine: list[m.TensorSpec] | None, other: list[m.TensorSpec] | None) -> str:
    """The first tensor in which two workers differ, for people."""
    assert mine is not None
    assert other is not None
    if len(mine) != len(other):
        return f"{len(mine)} against {len(other)}"
    first = next(i for i, (a, b) in enumerate(zip(mine, other, strict=True)) if a != b)
    return f"number {first} is {mine[first].name} ({mine[first].elements}) against {other[first].name} ({other[first].elements})"


def left_behind(process: Process, left: list[Process]) -> Failure | None:
    """Why a process would wait for ever for workers that have left, if so: every call and every iteration needs all."""
    if not left:  # as for nearly every report
        return None
    behind = [p for p in left if p.calls < process.calls]
    gone = [p for p in left if p.left_after is not None and p.left_after < process.exchanging]
    if behind:
        return behind[0].failure(
            Cause.UNEQUAL,
            f"left after {behind[0].calls} calls of pushpull and broadcast, {process.name} has made "
            f"{process.calls}: all workers must make the same number of steps",
        )
    if process.exchanging >= 0 and gone:
        return gone[0].failure(
            Cause.UNEQUAL,
            f"left after iteration {gone[0].left_after} while {process.name} began iteration "
            f"{process.exchanging}: all workers must make the same number of steps",
        )
    return None


def moment(process: Process, phase: str, iteration: int) -> tuple[Phase | None, int | None]:
    """What a process was about, by the coordinator's phase and by its own last report."""
    if phase != "RUN":
        return (Phase.INIT, None) if phase == "REGISTER" else (Phase.PLAN, iteration + 1)
    if not process.is_worker:
        return None, iteration
    if process.exchanging == iteration:
        return Phase.EXCHANGE, iteration
    return Phase.END if process.finished == iteration else Phase.FORWARD, iteration
