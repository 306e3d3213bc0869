"""Simulates trainings with Fela by the coordinator's own token server: workers compute, fetch, sum and sleep in simulated time.

    a token      computes for the time of its sub-model's curve times the worker's slowness: a third of it forward, the rest back;
                 a worker that goes back through another one's computation computes forward again first
    a fetch      is a transfer (carried.py) of the boundary's bytes for the samples that are needed; a worker fetches, then computes
    a sum        begins when the token server says so, also with members that sleep, and shares the links with all other flows
    an update    F_i of iteration k + 1 (+ staleness) waits at its worker for the sum of SM-i of iteration k; where sums
                 do not overlap, the worker begins iteration k + 1 after all its sums of k
    a request    takes `request_s`

Not modelled: arrays sent to new members of S when the configuration changes, the optimizer's step, copies, memory, and the token
server's own time (benchmarks/tokens.py). Deterministic; events of the same time happen in the order in which they were made.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from nalb.planning.nodes import Capacities
from nalb.simulation.carried import Carried
from nalb.simulation.profiles import FORWARD_PART, SubModel
from nalb.tokens.iteration import Token
from nalb.tokens.network_aware import NetworkAware
from nalb.tokens.server import ComputeToken, Fetch, GoOn, Synchronise, TokenServer
from nalb.tokens.shape import Shape
from nalb.tokens.tuning import Tuner

REQUEST_S = 0.0005  # assumed: a message there and back on a local network, and the coordinator's work
_ANSWER, _RESULT = -1, -2  # what a worker waits for beside transfers: the server's answer, its own computing
AT_ONCE = 1e-9  # part of the present time within which events happen together

Sleep = Callable[[int, int, int], float]  # (worker, iteration, workers) -> seconds before its first request


@dataclass(frozen=True, eq=False)
class Machines:
    """The simulated workers. capacities: of their links. slowness: by worker, a factor of all computing; None: 1 for all.

    request_s: seconds of a request. jitter: the standard deviation of the logarithm of a token's time, drawn by the seed.
    """

    capacities: Capacities
    slowness: Sequence[float] | None = None
    request_s: float = REQUEST_S
    jitter: float = 0.0
    seed: int = 0

    @property
    def workers(self) -> int:
        """N, the number of workers."""
        return len(self.capacities.up)

    @staticmethod
    def equal(workers: int, bytes_per_s: float) -> "Machines":
        """Equal machines, with links of this rate both ways."""
        return Machines(Capacities.from_lists([bytes_per_s] * workers, [bytes_per_s] * workers))


@dataclass
class Simulated:
    """The result of a simulated training."""

    ends_s: list[float] = field(default_factory=list)  # when each iteration's last sum was done
    tokens: int = 0  # tokens that were computed
    helped: int = 0  # tokens that were computed by another worker than their bucket's owner
    fetched_bytes: float = 0.0
    computed_s: list[float] = field(default_factory=list)  # per worker, seconds of computing

    def iteration_s(self, begin: int = 1) -> float:
        """Mean seconds of an iteration, from the `begin`th on: the first ones do not overlap with earlier ones."""
        begin = min(begin, len(self.ends_s) - 1)
        if begin == 0:
            return self.ends_s[0]
        return (self.ends_s[-1] - self.ends_s[begin - 1]) / (len(self.ends_s) - begin)


def simulate(
    machines: Machines,
    sub_models: Sequence[SubModel],
    server: TokenServer,
    iterations: int,
    sleep: Sleep | None = None,
    staleness: int = 0,
    aware: NetworkAware | None = None,
    tuner: Tuner | None = None,
) -> Simulated:
    """Simulate a training of `iterations` iterations. server: a new one, for these sub-models and workers.

    aware: learns from the workers' reports. tuner: chooses each iteration's configuration. Both are optional.
    """
    if tuner is not None:
        server.configure(tuner.shape, tuner.policy)
    return _Run(machines, sub_models, server, iterations, sleep, staleness, aware, tuner).run()


@dataclass
class _Worker:
    """One worker's state. missing: the transfers that its work waits for, by their numbers, and _ANSWER or _RESULT."""

    iteration: int = 0
    work: ComputeToken | None = None
    compute_s: float = 0.0  # of its work
    fetched_bytes: float = 0.0  # for its work
    given_s: float = 0.0  # when it got its work
    fetch_s: float | None = None  # from then until all fetches were done
    missing: set[int] = field(default_factory=set)
    finished: bool = False


class _Run:
    def __init__(
        self,
        machines: Machines,
        sub_models: Sequence[SubModel],
        server: TokenServer,
        iterations: int,
        sleep: Sleep | None,
        staleness: int,
        aware: NetworkAware | None,
        tuner: Tuner | None,
    ):
        self._machines, self._models, self._server = machines, sub_models, server
        self._iterations, self._sleep, self._staleness = iterations, sleep, staleness
        self._aware, self._tuner = aware, tuner
        self._carried = Carried(machines.capacities)
        self._workers = [_Worker() for _ in range(machines.workers)]
        self._lots = np.random.default_rng(machines.seed)
        self._now_s, self._order = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._blocked: set[int] = set()  # workers that wait for sums before their next iteration
        self._fetching: dict[int, int] = {}  # transfer -> worker
        self._summing: dict[int, Synchronise] = {}  # flow -> sum
        self._updated = [-1] * len(
            sub_models
        )  # by sub-model: the last iteration whose sum is done, for all members at once
        self._unsummed: defaultdict[int, int] = defaultdict(lambda: len(sub_models))  # by iteration: sums to come
        self._ends_s: dict[int, float] = {}
        self._done = Simulated(computed_s=[0.0] * machines.workers)

    def run(self) -> Simulated:
        for worker in range(len(self._workers)):
            self._enter(worker)
        while self._events or self._summing or self._fetching:
            step_s = self._carried.next_s()
            if self._events:
                step_s = min(step_s, max(self._events[0][0] - self._now_s, 0.0))
            ended = self._carried.advance(step_s)
            self._now_s += step_s
            for number in ended:
                self._end(number)
            while self._events and self._events[0][0] <= self._now_s * (1 + AT_ONCE):
                heappop(self._events)[2]()
        assert all(one.finished for one in self._workers), "workers wait for ever"
        self._done.ends_s = [self._ends_s[k] for k in sorted(self._ends_s)]
        return self._done

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (self._now_s + seconds, self._order, act))

    def _enter(self, worker: int) -> None:
        """Let a worker begin its iteration, after its sleep."""
        iteration = self._workers[worker].iteration
        asleep_s = self._sleep(worker, iteration, len(self._workers)) if self._sleep else 0.0
        self._after(asleep_s, lambda: self._report(worker))

    def _report(self, worker: int) -> None:
        one = self._workers[worker]
        done, one.work = one.work and one.work.token.id, None
        drains = one.iteration == self._iterations - 1
        for order in self._server.report(worker, done, one.iteration, self._now_s, drains):
            if isinstance(order, ComputeToken):
                self._begin(order)
            elif isinstance(order, Synchronise):
                self._sum(order)
            elif isinstance(order, GoOn):
                self._go_on(order.worker)
        for completed in self._server.completed:
            if self._aware:
                self._aware.observe_token(completed, one.compute_s, one.fetched_bytes, one.fetch_s or 0.0)
        self._server.completed.clear()
        if self._tuner:
            self._tune(self._tuner)
        self._server.iteration_s.clear()

    def _tune(self, tuner: Tuner) -> None:
        """Tell the tuner of completed iterations, and give the server a new configuration if there is one."""
        before = tuner.configuration
        for seconds in self._server.iteration_s:
            tuner.observe_iteration(seconds)
        if tuner.configuration != before:
            self._server.configure(tuner.shape, tuner.policy)

    def _go_on(self, worker: int) -> None:
        one = self._workers[worker]
        one.iteration += 1
        if one.iteration == self._iterations:
            one.finished = True
        elif self._is_ready(worker):
            self._enter(worker)
        else:
            self._blocked.add(worker)

    def _is_ready(self, worker: int) -> bool:
        """Whether the worker may begin its iteration: where sums do not overlap, it waits for those of the iteration before."""
        if self._server.policy.overlaps:
            return True
        behind = self._workers[worker].iteration - 1 - self._staleness
        mine = [one for one, ranks in enumerate(self._server.policy.eligible) if worker in ranks]
        return all(self._updated[one] >= behind for one in mine)

    def _begin(self, work: ComputeToken) -> None:
        one = self._workers[work.worker]
        one.work, one.fetched_bytes, one.given_s, one.fetch_s = work, 0.0, self._now_s, None
        self._done.tokens += 1
        self._done.helped += work.worker != work.owner
        for fetch in work.fetches:
            size_bytes = self._fetch_bytes(work.token, fetch)
            number = self._carried.transfer(fetch.source, work.worker, size_bytes)
            one.missing.add(number)
            self._fetching[number] = work.worker
            one.fetched_bytes += size_bytes
        self._done.fetched_bytes += one.fetched_bytes
        one.missing.add(_ANSWER)
        self._after(self._machines.request_s, lambda: self._answered(work))

    def _answered(self, work: ComputeToken) -> None:
        self._workers[work.worker].missing.discard(_ANSWER)
        self._compute(work)

    def _fetch_bytes(self, token: Token, fetch: Fetch) -> float:
        sub_model, samples = self._server.fetched(token, fetch)
        return samples * self._models[sub_model].output_bytes

    def _compute(self, work: ComputeToken) -> None:
        """Begin to compute a worker's work, if it misses nothing more. Every event that a worker may wait for calls this."""
        one, token = self._workers[work.worker], work.token
        if one.work is not work or one.missing:
            return
        if one.fetch_s is None:
            one.fetch_s = self._now_s - one.given_s
        sub_model = self._server.shape.sub_model(token.id.level)
        behind = token.id.iteration - 1 - self._staleness
        if token.mirrors is None and self._updated[sub_model] < behind:
            return
        one.missing = {_RESULT}  # keeps other events from starting it again
        one.compute_s = self._seconds(work.worker, token, work.recomputes)
        self._done.computed_s[work.worker] += one.compute_s
        self._after(one.compute_s, lambda: self._computed(work.worker))

    def _computed(self, worker: int) -> None:
        self._workers[worker].missing = set()
        self._report(worker)

    def _seconds(self, worker: int, token: Token, recomputes: bool) -> float:
        slowness = self._machines.slowness[worker] if self._machines.slowness else 1.0
        chance = float(np.exp(self._machines.jitter * self._lots.standard_normal())) if self._machines.jitter else 1.0
        return slowness * chance * token_s(self._server.shape, self._models, token, recomputes)

    def _sum(self, order: Synchronise) -> None:
        if len(order.workers) == 1:
            self._summed(order)
        else:
            number = self._carried.sum(order.workers, self._models[order.sub_model].parameters_bytes)
            self._summing[number] = order

    def _summed(self, order: Synchronise) -> None:
        self._updated[order.sub_model] = order.iteration
        self._unsummed[order.iteration] -= 1
        if self._unsummed[order.iteration] == 0:
            self._ends_s[order.iteration] = self._now_s
        for rank, one in enumerate(self._workers):  # new members of S wait for it too
            if work := one.work:
                self._compute(work)
            elif rank in self._blocked and self._is_ready(rank):
                self._blocked.remove(rank)
                self._enter(rank)

    def _end(self, number: int) -> None:
        """Go on after a transfer or a sum is done."""
        if number in self._summing:
            self._summed(self._summing.pop(number))
            return
        one = self._workers[self._fetching.pop(number)]
        one.missing.discard(number)
        assert one.work is not None
        self._compute(one.work)


def token_s(shape: Shape, sub_models: Sequence[SubModel], token: Token, recomputes: bool = False) -> float:
    """Seconds that a token computes on a worker of slowness 1."""
    both_s = sub_models[shape.sub_model(token.id.level)].seconds(shape.samples(token.chunks))
    if token.id.level == shape.head or recomputes:
        return both_s
    return both_s * (FORWARD_PART if token.mirrors is None else 1 - FORWARD_PART)
