"""The token server: workers' reports in, orders to workers out (Geng et al., III-A). No clock, no sockets.

A worker asks for a token, computes it, and reports it with its next request. Where there is no token for it, its request waits
until one is made, or until the worker may go on to its next iteration. The coordinator, the simulator and the tests drive this
same object.

Under staleness s (Geng et al., VI) a worker may leave iteration k once no token of an iteration up to k is there for it and
iteration k - s is complete. s = 0 is bulk-synchronous; s = FOREVER is asynchronous. F1 tokens of k are made when the first worker
enters k. A worker that ends its training drains: it stays in its last iteration until that is complete.
"""

from collections import deque
from collections.abc import Collection, Set
from enum import Enum
from typing import NamedTuple

from nalb.errors import PeerError
from nalb.tokens.buckets import Buckets, Cost, Help
from nalb.tokens.iteration import Iteration, Token, TokenId
from nalb.tokens.policies import Policy
from nalb.tokens.shape import Shape, level_name

FOREVER = 1 << 62  # iterations


class Part(Enum):
    """The array of a computed token that another token needs."""

    OUTPUT = "output"  # of a forward token
    INPUT = "input"  # of a forward token, to compute it again and go back through it
    GRADIENT = "gradient"  # of the loss, by the input of a token that went back


class Fetch(NamedTuple):
    """An array that a worker must fetch before it can compute: `part` of `token`, from the worker of rank `source`."""

    token: TokenId
    part: Part
    source: int


class ComputeToken(NamedTuple):
    """The order to compute a token, once all of `fetches` are there.

    owner: the rank in whose bucket the token was; where it is not `worker`, the worker helps. recomputes: whether this worker must
    go forward again before it goes back, since another one went forward.
    """

    worker: int
    token: Token
    fetches: tuple[Fetch, ...]
    owner: int
    recomputes: bool = False


class Send(NamedTuple):
    """The order to the source of a fetch to send the array to the worker that computes `wanted_by`."""

    source: int
    fetch: Fetch
    worker: int
    wanted_by: Token


class Synchronise(NamedTuple):
    """The order to sum a sub-model's gradients over `workers` and take the step; all gradients are computed."""

    iteration: int
    sub_model: int
    workers: tuple[int, ...]


class GoOn(NamedTuple):
    """The order to end the worker's iteration. The arrays of iterations up to `complete` are no longer needed."""

    worker: int
    iteration: int
    complete: int


Order = ComputeToken | Send | Synchronise | GoOn


class Completed(NamedTuple):
    """A computed token: its worker, its bucket's owner, when it was given and reported, and what the worker had to fetch."""

    token: Token
    worker: int
    owner: int
    given_s: float
    done_s: float
    fetches: tuple[Fetch, ...]
    recomputes: bool = False


class _Assigned(NamedTuple):
    work: ComputeToken
    given_s: float


class TokenServer:
    """Hands out the tokens of one job."""

    def __init__(
        self,
        workers: int,
        shape: Shape,
        policy: Policy,
        staleness: int = 0,
    ):
        self.workers, self._staleness = workers, staleness
        self._cost: Cost | None = None
        self._help: Help | None = None
        self._now_s = 0.0
        self.holder: dict[TokenId, int] = {}  # computed token -> the worker that has its output
        self._iterations: dict[int, Iteration] = {}  # those begun and not complete
        self._assigned: dict[int, _Assigned] = {}  # by worker
        self._tapes: list[dict[TokenId, Token]] = [{} for _ in range(workers)]  # see `tapes`
        # worker -> its iteration and the one that must be complete before it goes on, in order of their requests
        self._waiting: dict[int, tuple[int, int]] = {}
        self._fresh: set[int] = set()  # owners whose buckets got tokens since requests were last answered
        self._begun, self.complete = -1, -1  # the last iteration that was begun, and the last one that is complete
        self._has_results = False  # whether a token of the iteration last begun is computed
        self._begun_s: dict[int, float] = {}
        self._unsynchronised: deque[tuple[int, int]] = deque()  # iteration and sub-model, in the order of the sums
        self.completed: list[Completed] = []  # for observers, who clear it
        self.iteration_s: list[float] = []  # from the first request to the last report; for observers, who clear it
        self.configure(shape, policy)

    def configure(self, shape: Shape, policy: Policy) -> None:
        """Set the shape and the policy of the next iterations. Call it between iterations: none may be under way."""
        assert not self._iterations, "tokens of an iteration under way would change their shape"
        self.shape, self.policy = shape, policy
        front = policy.eligible[0]
        self._homes = [front[chunk * len(front) // shape.chunks] for chunk in range(shape.chunks)]
        self._buckets = Buckets(shape, policy, self.workers, self.holder, self._cost, self._help)

    def advise(self, cost: Cost, help: Help) -> None:
        """Use `cost` and `help` in place of the paper's rules for the order of tokens and for help. Call it before any report."""
        self._cost, self._help = cost, help
        self.configure(self.shape, self.policy)

    def report(
        self, worker: int, done: TokenId | None, iteration: int, now_s: float, drains: bool = False
    ) -> list[Order]:
        """Take the request of a worker in `iteration` for its next token; returns the orders that follow.

        done: the token that it has computed since its last request; None: there is none. drains: whether the worker ends its
        training with this iteration. Raises PeerError where the worker reports a token that it was not given, or asks twice.
        """
        orders: list[Order] = []
        self._now_s = now_s
        assigned = self._assigned.pop(worker, None)
        if done != (assigned and assigned.work.token.id):
            raise PeerError(
                f"reported token {done}, was given {assigned and assigned.work.token.id}: please report this"
            )
        if worker in self._waiting:
            raise PeerError("asked for a token twice: please report this")
        if iteration > self._begun + 1:
            raise PeerError(f"asked for tokens of iteration {iteration}, the last one begun is {self._begun}")
        if assigned:
            orders += self._take_in(assigned, now_s)
        if iteration > self._begun:
            self._begin(iteration, now_s)
        behind = iteration if drains else iteration - self._staleness
        self._waiting[worker] = iteration, behind
        orders += self._answer(worker, now_s)
        return orders

    def token(self, forward: TokenId) -> Token:
        """The forward token of this name, in an iteration under way."""
        return self._iterations[forward.iteration].token(forward)

    def assigned(self, worker: int) -> tuple[ComputeToken, float] | None:
        """The work that a worker has, and for how many seconds it has had it; None where it has none."""
        one = self._assigned.get(worker)
        return None if one is None else (one.work, self._now_s - one.given_s)

    def sleeps(self, worker: int) -> bool:
        """Whether a worker has not asked for tokens of the last iteration, although another worker has already computed one.

        Workers enter an iteration at slightly different times, so a worker that is only a little late does not count as asleep.
        """
        return self._has_results and worker not in self._assigned and worker not in self._waiting

    def tapes(self, worker: int) -> Collection[Token]:
        """The forward tokens that a worker has computed and that no worker has gone back through yet."""
        return self._tapes[worker].values()

    def waiting(self, worker: int) -> Collection[Token]:
        """The tokens in a worker's bucket."""
        return self._buckets.of(worker)

    def recomputes(self, worker: int, token: Token) -> bool:
        """Whether the worker would have to go forward again before it goes back."""
        return token.mirrors is not None and self.holder[token.mirrors] != worker

    def fetched(self, token: Token, fetch: Fetch) -> tuple[int, int]:
        """(sub-model whose output, or whose output's gradient, a fetch for this token gets; number of samples).

        An output is fetched whole, since a group covers all of it. Of a gradient only the token's own samples are fetched.
        """
        if fetch.part == Part.OUTPUT:
            return fetch.token.level, self.shape.samples(self.token(fetch.token).chunks)
        sub_model = self.shape.sub_model(token.id.level)
        return sub_model - 1 if fetch.part == Part.INPUT else sub_model, self.shape.samples(token.chunks)

    # ---- the iterations' course

    def _begin(self, number: int, now_s: float) -> None:
        self._begun, self._begun_s[number], self._has_results = number, now_s, False
        iteration = self._iterations[number] = Iteration(number, self.shape, self._homes)
        self._unsynchronised += [(number, one) for one in reversed(range(self.shape.sub_models))]
        self._put(iteration.first())

    def _take_in(self, assigned: _Assigned, now_s: float) -> list[Order]:
        """Note that a token is computed; returns the orders to sum that follow."""
        work = assigned.work
        token, number = work.token, work.token.id.iteration
        iteration = self._iterations[number]
        self.holder[token.id] = work.worker
        self._has_results |= number == self._begun
        if token.id.level < self.shape.head:
            self._tapes[work.worker][token.id] = token
        elif token.mirrors is not None:
            del self._tapes[self.holder[token.mirrors]][token.mirrors]
        self._buckets.complete(token)
        self._put(iteration.complete(token))
        self.completed.append(
            Completed(token, work.worker, work.owner, assigned.given_s, now_s, work.fetches, work.recomputes)
        )
        orders: list[Order] = []
        while self._unsynchronised and self._is_back(*self._unsynchronised[0]):
            at, sub_model = self._unsynchronised.popleft()
            orders.append(Synchronise(at, sub_model, self.policy.eligible[sub_model]))
        while (first := self._iterations.get(self.complete + 1)) and first.is_complete:
            self.complete += 1
            del self._iterations[self.complete]
            self.iteration_s.append(now_s - self._begun_s.pop(self.complete))
            for id_ in [id_ for id_ in self.holder if id_.iteration == self.complete]:
                del self.holder[id_]
        return orders

    def _is_back(self, number: int, sub_model: int) -> bool:
        iteration = self._iterations.get(number)
        if iteration is None:
            return number <= self.complete
        return iteration.is_back(sub_model) if self.policy.overlaps else iteration.is_complete

    def _put(self, tokens: list[Token]) -> None:
        self._fresh.update(self._buckets.put(one) for one in tokens)

    def _answer(self, reporter: int, now_s: float) -> list[Order]:
        """The answers to the requests that can be answered.

        The worker that reports goes first, since it holds what it has just computed. Then each worker takes its own new tokens, and
        only then workers help others, so that nobody takes a token from a worker that waits for it. The remaining workers go on to
        their next iteration or wait. With advice, tokens of sleeping owners go before a worker's own tokens of the last level.
        """
        orders: list[Order] = []
        changed = bool(self._fresh) or self._help is not None
        absent: Set[int] = frozenset()
        if self._help is not None and self.policy.own_buckets:
            absent = {owner for owner in self._buckets.owners if self.sleeps(owner)}
        fresh = sorted(self._fresh) if self.policy.own_buckets else [*self._waiting]
        for one in [reporter, *(rank for rank in fresh if rank in self._waiting and rank != reporter)]:
            until = self._waiting[one][0]
            if absent and (taken := self._buckets.take_absent(one, until, absent)):
                orders += self._give(one, *taken, now_s)
            elif token := self._buckets.take_own(one, until):
                orders += self._give(one, token, one, now_s)
        self._fresh.clear()
        helpers = [reporter, *self._waiting] if reporter in self._waiting else [*self._waiting]
        for one in dict.fromkeys(helpers) if changed else helpers[:1]:
            if not len(self._buckets):
                break
            if taken := self._buckets.take_others(one, self._waiting[one][0]):
                orders += self._give(one, *taken, now_s)
            elif (
                self._help is not None and one != reporter
            ):  # advice takes long, and the other workers have hardly more reason to help
                self._waiting[one] = self._waiting.pop(one)  # next time another worker is the first
                break
        for one, (iteration, behind) in list(self._waiting.items()):
            if self.complete >= behind:
                del self._waiting[one]
                orders.append(GoOn(one, iteration, self.complete))
        return orders

    def _give(self, worker: int, token: Token, owner: int, now_s: float) -> list[Order]:
        del self._waiting[worker]
        work = ComputeToken(worker, token, self.fetches(worker, token), owner, self.recomputes(worker, token))
        self._assigned[worker] = _Assigned(work, now_s)
        return [work, *(Send(one.source, one, worker, token) for one in work.fetches)]

    def fetches(self, worker: int, token: Token) -> tuple[Fetch, ...]:
        """The arrays that a worker would have to fetch for a token. F_1's input is never fetched: it is samples, which all have."""
        part = Part.OUTPUT if token.mirrors is None else Part.GRADIENT
        wanted = [(one, part) for one in token.inputs]
        if token.mirrors is not None and token.mirrors.level > 0:
            wanted.insert(0, (token.mirrors, Part.INPUT))
        return tuple(Fetch(one, what, self.holder[one]) for one, what in wanted if self.holder[one] != worker)


def name_of(token: TokenId, sub_models: int) -> str:
    """A token's name for people: F1.3 of iteration 7 is 7/F1.3."""
    return f"{token.iteration}/{level_name(token.level, sub_models)}.{token.number}"
