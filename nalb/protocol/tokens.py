"""The tokens of one job as messages: what workers say in, what each of them must be told out. No clock, no sockets.

The token server decides (nalb/tokens/server.py). Here its orders become messages, in an order that every worker can obey as they
come: the shape of an iteration before its tokens, and sums to all in the same order.
"""

from dataclasses import dataclass

from nalb.errors import InputError, PeerError
from nalb.protocol import messages as m
from nalb.tokens.policies import FELA, Policy, configuration
from nalb.tokens.server import GoOn, Order, Send, Synchronise, TokenServer, Work
from nalb.tokens.shape import Shape
from nalb.tokens.tuning import Tuner

Addressed = tuple[int, m.Message]  # to the worker of this rank


@dataclass(frozen=True)
class TokenOptions:
    """What the job was asked to do. weights, subset: None where they are not given."""

    parallel: str = FELA
    weights: tuple[int, ...] | None = None
    subset: int | None = None
    staleness: int = 0


class TokenDealer:
    """Workers by rank. `outbox` collects what they must be told."""

    def __init__(self, options: TokenOptions, workers: int):
        self._options, self._workers = options, workers
        self._joined: dict[int, m.JoinTokens] = {}
        self._server: TokenServer | None = None  # once all have joined
        self._tuner: Tuner | None = None  # where weights and subset are to be found
        self._entered = [-1] * workers  # by rank, the last iteration that it has asked for tokens in
        self._due = [0] * workers  # by rank, the iteration whose tokens it may ask for
        self._gone: set[int] = set()
        self.outbox: list[Addressed] = []

    @property
    def missing(self) -> list[int]:
        """Ranks that have not joined."""
        return [rank for rank in range(self._workers) if rank not in self._joined]

    def join(self, rank: int, message: m.JoinTokens) -> None:
        """A worker takes part; with the last one all learn of each other. InputError: what they ask for is impossible."""
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
        self._to_all(m.TokenPeers([self._joined[one].address for one in range(self._workers)]))
        self._tell_shape(0, shape, policy)

    def _first_configuration(self, joined: m.JoinTokens) -> tuple[Policy, Shape]:
        options, model = self._options, (joined.sub_models, joined.total, joined.threshold)
        if options.parallel != FELA or options.weights is not None:
            return configuration(options.parallel, self._workers, *model, options.weights, options.subset)
        if options.staleness:
            raise InputError("with staleness iterations overlap, so nothing can be tuned between them: give --weights")
        self._tuner = Tuner(self._workers, *model)
        return self._tuner.policy, self._tuner.shape

    def request(self, rank: int, message: m.TokenRequest, now_s: float) -> None:
        """A worker has computed a token, or enters an iteration. PeerError: it says what cannot be."""
        if self._server is None:
            raise PeerError("asks for a token before all workers have joined: please report this")
        if message.iteration != self._due[rank]:
            raise PeerError(
                f"asks for tokens of iteration {message.iteration} while {self._due[rank]} is due: please report this"
            )
        self._entered[rank] = message.iteration
        for order in self._server.report(rank, message.done, message.iteration, now_s, message.drains):
            self._say(order)
        self._tune(self._server)
        self._server.completed.clear()
        self._server.iteration_s.clear()

    def _tune(self, server: TokenServer) -> None:
        """The next iteration may be of another shape, where one has just been completed."""
        if self._tuner is None:
            return
        before = self._tuner.configuration
        for seconds in server.iteration_s:
            self._tuner.observe(seconds)
        if self._tuner.configuration != before:
            server.configure(self._tuner.shape, self._tuner.policy)
            self._tell_shape(server.complete + 1, self._tuner.shape, self._tuner.policy)

    def leave(self, rank: int) -> None:
        """A worker ends in good order."""
        self._gone.add(rank)

    def left_behind(self) -> str | None:
        """Why workers would wait for ever for one that has left, if so: every sum needs all."""
        gone = [rank for rank in sorted(self._gone) if self._due[rank] <= max(self._entered)]
        if not gone:
            return None
        steps, most = self._due[gone[0]], max(self._entered) + 1
        return f"rank {gone[0]} left after {steps} steps, another begins its step {most}: all must make as many"

    def _say(self, order: Order) -> None:
        if isinstance(order, Work):
            token = order.token
            inputs, chunks = list(token.inputs), list(token.chunks)
            self._to(order.worker, m.TokenWork(token.id, chunks, inputs, token.mirrors, list(order.fetches)))
        elif isinstance(order, Send):
            wanted = order.wanted_by
            self._to(order.source, m.SendPart(order.fetch, order.worker, wanted.id, list(wanted.chunks)))
        elif isinstance(order, Synchronise):
            self._to_all(m.SumGradients(order.iteration, order.sub_model, list(order.workers)))
        elif isinstance(order, GoOn):
            self._due[order.worker] = order.iteration + 1
            self._to(order.worker, m.NextIteration(order.iteration, order.complete))

    def _tell_shape(self, iteration: int, shape: Shape, policy: Policy) -> None:
        eligible = [list(ranks) for ranks in policy.eligible]
        self._to_all(m.TokenShape(iteration, shape.chunks, list(shape.weights), eligible))

    def _to(self, rank: int, message: m.Message) -> None:
        self.outbox.append((rank, message))

    def _to_all(self, message: m.Message) -> None:
        self.outbox += [(rank, message) for rank in range(self._workers)]  # one object: encoded once


def _difference(mine: m.JoinTokens, other: m.JoinTokens) -> str | None:
    """In what two workers disagree, for people."""
    for field, words in (
        ("sub_models", "sub-models"),
        ("total", "samples of an iteration"),
        ("threshold", "threshold"),
    ):
        if (a := getattr(mine, field)) != (b := getattr(other, field)):
            return f"{words}: {a} here, {b}"
    return None
