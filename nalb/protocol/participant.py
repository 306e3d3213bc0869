"""A process of a job as the coordinator knows it, and how it is told from others."""

from dataclasses import dataclass
from functools import cached_property

from nalb.failures import Cause, Failure, Phase, Role
from nalb.protocol import wire


@dataclass
class Process:
    """A process that has said Hello: a worker, a server, or an agent, which is both."""

    identity: bytes
    hello: wire.Hello
    last_heard_s: float  # when it was heard last, on either connection
    last_direct_s: float  # when it was heard last on its first connection, which carries all but signs of life
    exchanging: int = -1  # the iteration whose slices are under way
    computed: int = -1  # the last iteration whose gradients are complete
    computed_s: float = 0.0  # when it said so first
    calls: int = 0  # calls of pushpull and broadcast so far
    ready: int = 0  # calls up to the last one whose arrays are computed; MXNet counts direct ones alone
    ready_s: float = 0.0  # when it said so first
    summed: int = 0  # likewise, whose sums are back
    by_gloo: int = 0  # collectives that nalb leaves to gloo
    counted_s: float = 0.0  # when it said first that it has begun so many of both
    is_ordered: bool = True  # their order is alike on all processes that make the same calls
    is_compared: bool = False  # `crossed` has looked at these counts
    round_trip_s: float = 0.0  # to the farthest of the others; 0: not known
    is_bbr: bool = False  # TCP's congestion control is BBR to all that are far
    drops: int = 0  # samples that it lost so far
    has_left: bool = False  # it has said Goodbye

    def note(self, report: wire.Report, now_s: float) -> None:
        """Take in what a report says of the process's state."""
        self.exchanging, self.drops = report.exchanging, report.drops
        self.round_trip_s, self.is_bbr = report.round_trip_s, report.is_bbr
        if (report.calls, report.by_gloo) != (self.calls, self.by_gloo):
            self.counted_s, self.is_compared = now_s, False
        self.calls, self.by_gloo, self.is_ordered = report.calls, report.by_gloo, report.is_ordered
        self.summed = report.summed
        if report.ready != self.ready:
            self.ready, self.ready_s = report.ready, now_s
        if report.computed != self.computed:
            self.computed, self.computed_s = report.computed, now_s

    def role_of(self, failure: Failure) -> Role:
        """Whose failure it is that this process tells: its own, or that of the training process that an agent speaks for."""
        speaks_for = {"agent": "worker"}.get(self.hello.role)
        return failure.role if failure.role is not None and failure.role == speaks_for else self.hello.role

    @property
    def is_worker(self) -> bool:
        """Whether gradients come from the process."""
        return self.hello.role in ("worker", "agent")

    @property
    def is_server(self) -> bool:
        """Whether the process sums, on either level."""
        return self.hello.role != "worker"

    @property
    def sums_for_all(self) -> bool:
        """Whether the process sums what comes from all workers, or from all sites."""
        return self.is_server and self.hello.role != "site server"

    @property
    def sums_within_site(self) -> bool:
        """Whether the process sums within a site."""
        return self.hello.role in ("site server", "agent")

    @cached_property
    def name(self) -> str:
        """The process's name for people and logs."""
        return f"{self.hello.role} {self.hello.node}"

    def failure(self, cause: Cause, detail: str, phase: Phase | None = None, iteration: int | None = None) -> Failure:
        """Make a Failure of this process."""
        role, node = self.hello.role, self.hello.node
        return Failure(cause=cause, detail=detail, role=role, node=node, phase=phase, iteration=iteration)

    @property
    def rank(self) -> int:
        """The process's number among the workers, or among the servers of all levels."""
        return self.hello.rank

    @property
    def peer_numbers(self) -> list[int]:
        """The numbers by which others' rows name the process."""
        roles = [role for role, is_played in ((True, self.is_worker), (False, self.is_server)) if is_played]
        return [wire.peer_number(self.rank, is_worker) for is_worker in roles]


def natural_order(name: str) -> tuple[object, ...]:
    """A key to sort names by, which puts n2 before n10."""
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.")
    return (name[: len(name) - len(digits)], int(digits) if digits.isdecimal() else -1, name)


def left_behind(process: Process, left: list[Process]) -> Failure | None:
    """Why a process would wait for ever for workers that have left, if so: every call needs all workers."""
    for behind in left:
        for theirs, own, what in (
            (behind.calls, process.calls, "sums and broadcasts by nalb"),
            (behind.by_gloo, process.by_gloo, "collectives by gloo"),
        ):
            if theirs < own:
                detail = f"left after {theirs} {what}, {process.name} has begun {own}: all workers must "
                return behind.failure(Cause.UNEQUAL, detail + "make the same number of steps")
    return None


def crossed(process: Process, workers: list[Process], now_s: float, still_s: float) -> Failure | None:
    """Why a process and another one wait for each other for ever, if so: one for a sum by nalb, the other for one by gloo.

    still_s: for how long neither may have begun anything. Of two that begin the same in the same order, one is ahead of the other
    in both counts. Others may still go on, since nothing that they have begun need be waited for yet.
    """
    if process.is_compared or now_s - process.counted_s < still_s:
        return None
    process.is_compared = True  # once for all: whoever of two is still later looks at both
    for other in [one for one in workers if one.by_gloo != process.by_gloo]:
        less, more = (process, other) if process.by_gloo < other.by_gloo else (other, process)
        may_move = now_s - other.counted_s < still_s or not (process.is_ordered and other.is_ordered)
        if not may_move and less.calls > more.calls:
            detail = (
                f"has begun {more.by_gloo} collectives by gloo and {more.calls} sums and broadcasts by nalb, {less.name} "
                f"{less.by_gloo} and {less.calls}: all workers must make the same calls in the same order"
            )
            return more.failure(Cause.UNEQUAL, detail)
    return None
