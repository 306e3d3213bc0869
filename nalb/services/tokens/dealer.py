"""Deals one job's tokens: workers' messages in, messages to workers out. No clock, no sockets.

The token server decides (nalb/tokens/server.py). Here its orders become messages, in an order that every worker can obey as they
come: sums to all in the same order, then the shape of the next iteration, and only then that a worker's iteration ends. Whoever
has ended an iteration thus knows who has which sub-model in the next one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from nalb.errors import InputError, PeerError
from nalb.events import TokenRow, TokensEvent, TokenShapeEvent
from nalb.planning.nodes import Capacities, Node
from nalb.planning.shares import exact
from nalb.protocol import wire
from nalb.services.tokens import messages as m
from nalb.tokens.iteration import TokenId
from nalb.tokens.network_aware import NetworkAware
from nalb.tokens.policies import FELA, FELA_BY_PAPER, FELAS, Policy, configuration, conflict
from nalb.tokens.server import Completed, ComputeToken, GoOn, Order, Send, Synchronise, TokenServer, name_of
from nalb.tokens.shape import Shape, level_name
from nalb.tokens.tuning import PHASES, Tuner

Addressed = tuple[int, wire.Message]  # to the worker of this rank
Rates = tuple[Sequence[float], Sequence[float]]  # bytes/s out of and into each worker, by rank
UNKNOWN_BPS = 1e15  # of links that nobody knows yet: all alike, and as if they cost no time


@dataclass(frozen=True)
class TokenOptions:
    """The options of a job with tokens. weights, subset: None where they are not given.

    balances: the job's scheme shares sums out by what links carry, so sums over some of the workers are as well.
    """

    parallel: str = FELA
    weights: tuple[int, ...] | None = None
    subset: int | None = None
    staleness: int = 0
    balances: bool = False
    is_apart: bool = False


class TokenDealer:
    """Tokens of workers by rank. `outbox` collects messages to them, `events` events that lack the workers' names.

    rates: gives the present knowledge of the links; None where nothing is known.
    """

    def __init__(self, options: TokenOptions, workers: int, rates: Callable[[], Rates | None] = lambda: None):
        self._options, self._workers = options, workers
        self._joined: dict[int, m.JoinTokens] = {}
        self._server: TokenServer | None = None  # once all have joined
        self._tuner: Tuner | None = None  # where weights and subset are to be found
        self._aware: NetworkAware | None = None  # where more than the paper's rules decides
        self._rates = rates
        self._present_rates: Rates | None = None  # of this iteration; None: to be asked for
        self._entered = [-1] * workers  # by rank, the last iteration that it has asked for tokens in
        self._due = [0] * workers  # by rank, the iteration whose tokens it may ask for
        self._held: dict[int, TokenId] = {}  # by rank: given and not yet reported
        self._gone: set[int] = set()
        self._begun_s: dict[int, float] = {}  # of the iterations that are not complete, by the first request
        self._computed: dict[int, list[tuple[Completed, m.TokenRequest]]] = {}  # of these too
        self.outbox: list[Addressed] = []
        self.events: list[TokenShapeEvent | TokensEvent] = []

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self._workers) if rank not in self._joined]

    def join(self, rank: int, message: m.JoinTokens, now_s: float) -> None:
        """Take a worker in; with the last one all learn of each other. Raises InputError where they ask for what is impossible."""
        if rank in self._joined or not 0 <= rank < self._workers:
            raise InputError(f"rank {rank} joins twice or is none of {self._workers} workers: make one fela.Trainer")
        if self._joined:
            other_rank, other = next(iter(self._joined.items()))
            if why := _difference(message, other):
                raise InputError(f"{why} with rank {other_rank}: give all fela.Trainers the same")
        self._joined[rank] = message
        if self.missing:
            return
        policy, shape = self._first_configuration(message)
        self._server = TokenServer(self._workers, shape, policy, self._options.staleness)
        if self._options.parallel == FELA:
            self._aware = NetworkAware(self._server, self._link_rates)
        self._to_all(m.TokenPeers([self._joined[one].address for one in range(self._workers)]))
        self._tell_shape(0, shape, policy, self._tuner.reason if self._tuner else "as asked for", now_s)

    def _first_configuration(self, joined: m.JoinTokens) -> tuple[Policy, Shape]:
        options, model = self._options, (joined.sub_models, joined.total, joined.threshold)
        has_weights, has_subset = options.weights is not None, options.subset is not None
        if why := conflict(options.parallel, has_weights, has_subset, options.staleness, options.is_apart):
            raise InputError(why)
        if options.parallel not in FELAS or has_weights:
            return configuration(
                options.parallel, self._workers, *model, options.weights, options.subset, options.is_apart
            )
        members = range if options.parallel == FELA_BY_PAPER else self._members
        self._tuner = Tuner(self._workers, *model, members=members, phases=PHASES[options.parallel])
        return self._tuner.policy, self._tuner.shape

    def request(self, rank: int, message: m.TokenRequest, now_s: float) -> None:
        """Take in that a worker has computed a token, or enters an iteration. Raises PeerError where that cannot be."""
        if self._server is None:
            raise PeerError("asks for a token before all workers have joined: please report this")
        is_back = message.drains and message.iteration == self._due[rank] - 1  # to stay until it is complete
        if message.iteration != self._due[rank] and not is_back:
            raise PeerError(
                f"asks for tokens of iteration {message.iteration} while {self._due[rank]} is due: please report this"
            )
        self._entered[rank] = message.iteration
        if message.iteration > self._server.complete:  # others may have completed it while this worker slept
            self._begun_s.setdefault(message.iteration, now_s)
        orders = self._server.report(rank, message.done, message.iteration, now_s, message.drains)
        self._held.pop(rank, None)
        for order in orders:
            if not isinstance(order, GoOn):
                self._say(order)
        for one in self._server.completed:
            self._computed.setdefault(one.token.id.iteration, []).append((one, message))
            if self._aware is not None:
                self._aware.observe_token(one, message.compute_s, message.fetched_bytes, message.fetch_s)
        self._tell_computed(self._server, now_s)
        self._tune(self._server, now_s)
        for order in orders:
            if isinstance(order, GoOn):
                self._say(order)
        self._server.completed.clear()
        self._server.iteration_s.clear()

    def _tell_computed(self, server: TokenServer, now_s: float) -> None:
        """Make the events of iterations that have become complete."""
        if server.iteration_s:
            self._present_rates = None
        for iteration in [one for one in self._computed if one <= server.complete]:
            begun_s, computed = self._begun_s.pop(iteration), self._computed.pop(iteration)
            self.events.append(
                _tokens_event(iteration, begun_s, now_s - begun_s, computed, self._workers, server.shape)
            )

    def _tune(self, server: TokenServer, now_s: float) -> None:
        """Give the next iteration another shape, if the tuner wants one after an iteration that has just been completed."""
        if self._tuner is None:
            return
        before = self._tuner.configuration, self._tuner.is_done
        for seconds in server.iteration_s:
            self._tuner.observe_iteration(seconds)
        if (self._tuner.configuration, self._tuner.is_done) != before:
            server.configure(self._tuner.shape, self._tuner.policy)
            self._tell_shape(server.complete + 1, self._tuner.shape, self._tuner.policy, self._tuner.reason, now_s)

    def _members(self, size: int) -> Sequence[int]:
        """The ranks that should compute the last sub-model, of which there are `size`."""
        assert self._aware is not None
        return self._aware.members(size)

    def _link_rates(self) -> Rates:
        """The rates as they were known when this iteration first needed them."""
        if self._present_rates is None:
            unknown = [UNKNOWN_BPS] * self._workers
            self._present_rates = self._rates() or (unknown, unknown)
        return self._present_rates

    def _sum_shares(self, workers: Sequence[int]) -> list[float]:
        """The part of a sum over these workers that each of them adds up. A sum over all workers is the store's."""
        if self._options.balances and 1 < len(workers) < self._workers:
            up, down = ([rates[rank] for rank in workers] for rates in self._link_rates())
            shares, _ = exact([Node(str(rank)) for rank in workers], 1.0, Capacities.from_lists(up, down))
            return [float(one) for one in shares.clip(0.0, 1.0)]
        return [1 / len(workers)] * len(workers)

    def held(self, rank: int) -> str | None:
        """The name for people of the token that a worker computes."""
        return name_of(self._held[rank], self._joined[rank].sub_models) if rank in self._held else None

    def iteration_of(self, rank: int | None) -> int | None:
        """The iteration that a worker computes or entered last, or for None the first incomplete one; None: none is begun."""
        if self._server is None or max(self._entered) < 0:
            return None
        if rank is None:
            return min(self._server.complete + 1, max(self._entered))
        return self._held[rank].iteration if rank in self._held else max(self._entered[rank], 0)

    def leave(self, rank: int) -> None:
        """Take in that a worker ends in good order."""
        self._gone.add(rank)

    def left_behind(self) -> str | None:
        """Why workers would wait for ever for one that has left, if so: every sum needs all workers."""
        gone = [rank for rank in sorted(self._gone) if self._due[rank] <= max(self._entered)]
        if not gone:
            return None
        steps, most = self._due[gone[0]], max(self._entered) + 1
        return f"rank {gone[0]} left after {steps} steps, another begins its step {most}: all must make as many"

    def _say(self, order: Order) -> None:
        if isinstance(order, ComputeToken):
            token = order.token
            self._held[order.worker] = token.id
            inputs, chunks = list(token.inputs), list(token.chunks)
            self._to(order.worker, m.TokenWork(token.id, chunks, inputs, token.mirrors, list(order.fetches)))
        elif isinstance(order, Send):
            wanted = order.wanted_by
            self._to(order.source, m.SendPart(order.fetch, order.worker, wanted.id, list(wanted.chunks)))
        elif isinstance(order, Synchronise):
            shares = self._sum_shares(order.workers)
            self._to_all(m.SumGradients(order.iteration, order.sub_model, list(order.workers), shares))
        elif isinstance(order, GoOn):
            self._due[order.worker] = order.iteration + 1
            self._to(order.worker, m.NextIteration(order.iteration, order.complete))

    def _tell_shape(self, iteration: int, shape: Shape, policy: Policy, reason: str, now_s: float) -> None:
        weights, eligible = list(shape.weights), [list(ranks) for ranks in policy.eligible]
        self._to_all(m.TokenShape(iteration, shape.chunks, weights, eligible))
        self.events.append(
            TokenShapeEvent(
                at_s=now_s,
                workers=[],
                iteration=iteration,
                parallel=self._options.parallel,
                staleness=self._options.staleness,
                total=shape.total,
                chunks=shape.chunks,
                weights=weights,
                eligible=eligible,
                is_apart=policy.is_apart,
                is_tuned=(self._tuner is not None and self._tuner.is_done) or UNSET,
                reason=reason,
            )
        )

    def _to(self, rank: int, message: wire.Message) -> None:
        self.outbox.append((rank, message))

    def _to_all(self, message: wire.Message) -> None:
        self.outbox += [(rank, message) for rank in range(self._workers)]  # one object: encoded once


def _difference(mine: m.JoinTokens, other: m.JoinTokens) -> str | None:
    """The first number in which two workers differ, for people."""
    for field, words in (
        ("sub_models", "sub-models"),
        ("total", "samples of an iteration"),
        ("threshold", "threshold"),
    ):
        if (a := getattr(mine, field)) != (b := getattr(other, field)):
            return f"{words}: {a} here, {b}"
    return None


def _tokens_event(
    iteration: int,
    begun_s: float,
    took_s: float,
    computed: list[tuple[Completed, m.TokenRequest]],
    workers: int,
    shape: Shape,
) -> TokensEvent:
    tokens, helped, fetched_bytes = [0] * workers, [0] * workers, [0] * workers
    compute_s, fetch_s = [0.0] * workers, [0.0] * workers
    rows = []
    for one, told in computed:
        rank = one.worker
        tokens[rank] += 1
        helped[rank] += one.owner != rank
        fetched_bytes[rank] += told.fetched_bytes
        compute_s[rank] += told.compute_s
        fetch_s[rank] += told.fetch_s
        rows.append(
            TokenRow(
                level_name(one.token.id.level, shape.sub_models),
                one.token.id.number,
                rank,
                one.owner,
                shape.samples(one.token.chunks),
                given_us=round(1e6 * (one.given_s - begun_s)),
                done_us=round(1e6 * (one.done_s - begun_s)),
                fetch_us=round(1e6 * told.fetch_s),
                compute_us=round(1e6 * told.compute_s),
                fetched_bytes=told.fetched_bytes,
            )
        )
    return TokensEvent(
        at_s=begun_s,
        workers=[],
        iteration=iteration,
        iteration_s=took_s,
        tokens=tokens,
        helped=helped,
        compute_s=compute_s,
        fetch_s=fetch_s,
        fetched_bytes=fetched_bytes,
        rows=rows,
    )
