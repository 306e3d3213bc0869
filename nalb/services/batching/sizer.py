"""Chooses the batch sizes of one job: reports of iterations in, sizes of iterations out. No clock, no sockets.

All workers draw batch k by the same message, so they switch in the same iteration and the total is always whole. The sizes
of iteration k + 1 + lag are decided when every worker has reported k. With lag 0 workers wait for the decision (LB-BSP's
blocking update); with lag 1 it is taken while they compute. A larger lag is also how far the fastest may lead the
slowest where the KVStore does not keep them together, which makes SSP of dist_async; without end, it is ASP.

No controller sees the first iterations, nor an iteration in which a worker's batch is larger than ever before, nor the next one.
MXNet sets itself up in these and gets memory, which takes up to three times as much computing and says nothing about speed.
"""

import math
from collections.abc import Callable

from msgspec import UNSET

from nalb.batching.decisions import Controller, Observation
from nalb.batching.joint_control import JointBalancer, LinkKnowledge
from nalb.batching.schemes import BASELINES, SCHEMES, BatchJob, build
from nalb.batching.sizes import Bounds, Sizes, apportion
from nalb.batching.speed import Predictor
from nalb.batching.time_models import Polynomial, fit
from nalb.errors import InputError
from nalb.events import BatchEvent
from nalb.planning.nodes import Floats
from nalb.protocol import wire
from nalb.services.batching import messages as m

KEPT = 10_000  # iterations ahead of the slowest whose reports wait for it; without a bound on the lead they would fill memory
# Iterations at a larger size than ever: of the second ones a tenth took 3 times as long, of the third ones 1.4 times.
SET_UP = 2
WARM_UP = 5  # iterations: MXNet's first ones take up to ten times as long as later ones, on slow machines for longer
ON_THEIR_WAY, NEW_SIZE = "sizes on their way", "new at a larger size"  # reasons for keeping sizes as they are


class BatchSizer:
    """Sizes by rank. `outbox` collects messages to all workers, `events` events that lack the time and the workers' names.

    scheme: a name of nalb.batching.schemes, or a baseline, whose sizes stay as they are. total, most: None where the
    workers say. predictor: makes the predictor of a rank; None: the default one. network: for joint plans, what is known of the
    links now.
    """

    def __init__(
        self,
        scheme: str,
        workers: int,
        total: int | None = None,
        most: Sizes | None = None,
        predictor: Callable[[int], Predictor] | None = None,
        network: Callable[[], LinkKnowledge | None] = lambda: None,
    ):
        self._scheme, self._workers, self._total, self._most = scheme, workers, total, most
        self._predictor, self._network = predictor, network
        baseline = BASELINES.get(scheme)
        ahead = baseline.iterations_ahead if baseline else int(not SCHEMES[scheme].waits)
        self._lag = wire.FOREVER if ahead is None else ahead
        self._joined: dict[int, m.JoinBatching] = {}
        self._controller: Controller | None = None
        self._sizes: Sizes = ()  # the last ones decided
        self._largest: Sizes = (0,) * workers  # that each has computed so far
        self._setting_up = 0  # iterations left for which a worker sets up for a larger size
        self._reported = [-1] * workers  # by rank, the last iteration
        self._left: set[int] = set()
        self.reports: dict[int, dict[int, m.Computed]] = {}  # iteration -> rank -> report, until all have reported
        self.outbox: list[m.BatchSizes] = []
        self.events: list[BatchEvent] = []

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self._workers) if rank not in self._joined]

    def plan_shares(self) -> Floats | None:
        """The network's half of a joint plan for the present sizes, by the known links, bytes per node; None: not joint."""
        if not isinstance(self._controller, JointBalancer):
            return None
        return self._controller.shares_bytes(self._sizes, self._network())

    def join(self, rank: int, message: m.JoinBatching) -> None:
        """Take a worker in; with the last one the first sizes go out. Raises InputError where they ask for the impossible."""
        if rank in self._joined or not 0 <= rank < self._workers:
            raise InputError(f"rank {rank} joins the batching twice or is none of {self._workers} workers: join once")
        self._joined[rank] = message
        if self.missing:
            return
        joined = [self._joined[rank] for rank in range(self._workers)]
        start = tuple(one.batch_size for one in joined)
        total = self._total or sum(start)
        bounds = Bounds.of(total, self._workers, [self._limit(rank, total) for rank in range(self._workers)])
        if not bounds.keeps(start):
            start = apportion([1.0] * self._workers if self._total else start, bounds)
        name = "off" if self._scheme in BASELINES else self._scheme
        predictors = tuple(map(self._predictor, range(self._workers))) if self._predictor else None
        job = BatchJob(start, most=bounds.most, power=self._power(), curves=self._curves(), predictors=predictors)
        self._controller, self._sizes = build(name, job)
        self._send(0, self._lag)

    def computed(self, rank: int, message: m.Computed) -> tuple[int, str] | None:
        """Take in a worker's report; returns who has left too early, as `leave` does.

        Raises InputError where it is not the one that is due, or says what cannot be.
        """
        due = self._reported[rank] + 1
        if self._controller is None or message.iteration != due:
            raise InputError(f"it reports batch {message.iteration} while {due} is due: every batch needs one step")
        self._reported[rank] = due
        if why := self._left_behind():
            return why
        slowest = min(self._reported)
        if due <= slowest + KEPT:
            self.reports.setdefault(due, {})[rank] = message
        if due == slowest:  # nobody is left to report it
            reports = self.reports.pop(due)
            if len(reports) == self._workers:
                self._decide(due, [reports[rank] for rank in range(self._workers)])
        return None

    def leave(self, rank: int) -> tuple[int, str] | None:
        """Take in that a worker ends; returns who has ended too early for the others, if somebody has, and why.

        Without a bound on their lead they go on.
        """
        self._left.add(rank)
        return self._left_behind()

    def _left_behind(self) -> tuple[int, str] | None:
        gone = [rank for rank in sorted(self._left) if self._reported[rank] < max(self._reported)]
        if not gone or self._lag == wire.FOREVER:
            return None
        return gone[0], f"left after {self._reported[gone[0]] + 1} steps, another made more: all must make as many"

    def _curves(self) -> tuple[Polynomial, ...] | None:
        profiles = [self._joined[rank].profile for rank in range(self._workers)]
        if all(profile is None for profile in profiles):
            return None
        curves = []
        for rank, profile in enumerate(profiles):
            if not profile:
                raise InputError(f"rank {rank} joins without a profile, others with one: give `profile` in all scripts")
            curves.append(fit([size for size, _ in profile], [seconds for _, seconds in profile]))
        return tuple(curves)

    def _power(self) -> tuple[float, ...] | None:
        told = [self._joined[rank].power for rank in range(self._workers)]
        known = tuple(power for power in told if power is not None)
        if known and len(known) < self._workers:
            raise InputError(
                f"rank {told.index(None)} joins without its power, others with: give `power` in all scripts"
            )
        return known or None

    def _limit(self, rank: int, total: int) -> int:
        given = (self._joined[rank].most, self._most[rank] if self._most else None, total)
        return min(limit for limit in given if limit is not None)

    def _decide(self, iteration: int, reports: list[m.Computed]) -> None:
        assert self._controller is not None
        observations = [Observation(one.batch_size, one.compute_s, one.cpu_share, one.memory_share) for one in reports]
        ran = tuple(one.batch_size for one in reports)
        grew = any(size > most for size, most in zip(ran, self._largest, strict=True))
        self._largest = tuple(map(max, ran, self._largest))
        self._setting_up = SET_UP if grew else max(0, self._setting_up - 1)
        remove = None
        if iteration < WARM_UP:
            reason = "first iterations"
        elif ran != self._sizes:  # it would judge sizes that it has changed
            reason = ON_THEIR_WAY
        elif self._setting_up:
            reason = NEW_SIZE
        else:
            if isinstance(self._controller, JointBalancer):
                self._controller.network = self._network()
            decision = self._controller.update(observations)
            remove, reason = decision.remove, decision.reason
            self._sizes = decision.sizes or self._sizes
        if self._lag < wire.FOREVER:
            self._send(iteration + 1 + self._lag, iteration + 1 + self._lag)
        profiles = [self._joined[rank].profile for rank in range(self._workers)]
        self.events.append(
            BatchEvent(
                at_s=math.nan,
                workers=[],
                iteration=iteration,
                batching=self._scheme,
                sizes=[one.batch_size for one in reports],
                compute_s=[one.compute_s for one in reports],
                period_s=[one.period_s for one in reports],
                wait_s=[one.wait_s for one in reports],
                cpu_share=[one.cpu_share for one in reports],
                memory_share=[one.memory_share for one in reports],
                next_sizes=list(self._sizes),
                reason=reason,
                remove=remove,
                profiles=profiles if iteration == 0 and any(profiles) else UNSET,
            )
        )

    def _send(self, first: int, last: int) -> None:
        self.outbox.append(m.BatchSizes(first, last, list(self._sizes)))
