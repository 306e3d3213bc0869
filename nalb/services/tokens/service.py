"""Tokens as a service: who takes part, and what a token tells about a failure. No clock, no sockets.

The tokens themselves are the TokenDealer's. A job that was not asked for a way to share them is Fela's once its scripts make a
fela.Trainer.
"""

from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from nalb.errors import InputError, PeerError
from nalb.events import TokensEvent
from nalb.failures import Cause, Failure, Moment, Phase
from nalb.protocol.members import Members
from nalb.protocol.participant import Process
from nalb.protocol.service import Service
from nalb.protocol.wire import Message
from nalb.schemes import by_name
from nalb.services.joining import Joining
from nalb.services.tokens import messages as m
from nalb.services.tokens.dealer import Rates, TokenDealer, TokenOptions
from nalb.settings import Settings
from nalb.tokens.policies import FELA

JOIN = "make a fela.Trainer in every worker's script, or leave out --parallel"


class Tokens(Service):
    """Shares a model's iterations out by tokens."""

    takes = m.FROM_PROCESSES
    sends = m.TO_PROCESSES
    options = (
        "scheme",
        "is_stock",
        "batching",
        "parallel",
        "token_weights",
        "token_subset",
        "token_apart",
        "staleness",
        "startup_s",
    )

    def __init__(
        self,
        settings: Settings,
        members: Members,
        rates: Callable[[], Rates | None],
        is_recorded: Callable[[int], bool],
    ):
        """rates: see TokenDealer. is_recorded: whether events tell every token of an iteration."""
        super().__init__(members)
        self._settings, self.rates, self._is_recorded = settings, rates, is_recorded
        is_asked, startup_s = settings.parallel is not None, settings.startup_s
        self.joining = Joining(Cause.TOKENS, "those that compute tokens", JOIN, is_asked, members, startup_s)
        self._dealer: TokenDealer | None = None  # from the first worker that joins on

    def take(self, process: Process, message: Message, now_s: float) -> Failure | None:
        """A worker joins, or asks for a token."""
        settings = self._settings
        if settings.is_stock:
            detail = "computes tokens, but MXNet runs alone: choose another --scheme than stock"
            return process.failure(Cause.TOKENS, detail)
        if settings.sizes_batches:
            detail = "computes tokens, which need no batch sizes: leave out --batching and joint"
            return process.failure(Cause.TOKENS, detail)
        dealer = self._dealer = self._dealer or self._new_dealer()
        try:
            if isinstance(message, m.TokenRequest):
                dealer.request(process.rank, message, now_s)
            elif isinstance(message, m.JoinTokens):
                self.joining.note(process, now_s)
                dealer.join(process.rank, message, now_s)
        except PeerError as error:
            return process.failure(Cause.PROTOCOL, str(error))
        except InputError as error:
            return process.failure(Cause.TOKENS, f"cannot have tokens: {error}")
        if why := self._left_behind(process):
            return why
        self._tell(dealer)
        return None

    def _new_dealer(self) -> TokenDealer:
        settings = self._settings
        balances = by_name(settings.scheme).follows_estimates
        options = TokenOptions(
            settings.parallel or FELA,
            settings.weights,
            settings.token_subset,
            settings.staleness,
            balances,
            settings.token_apart,
        )
        return TokenDealer(options, settings.num_workers, self.rates)

    def _tell(self, dealer: TokenDealer) -> None:
        """Hand on what the dealer says."""
        worker_of_rank = self.members.worker_of_rank
        for rank, answer in dealer.outbox:
            self.send(worker_of_rank[rank], answer)
        names = [worker_of_rank[rank].hello.node for rank in sorted(worker_of_rank)]
        for event in dealer.events:
            if isinstance(event, TokensEvent) and not self._is_recorded(event.iteration):
                event = replace(event, rows=UNSET)
            self.events.append(replace(event, workers=names))
        dealer.outbox.clear()
        dealer.events.clear()

    def tick(self, now_s: float) -> Failure | None:
        """Time has passed."""
        return self.joining.check_time(now_s)

    def leave(self, process: Process, now_s: float) -> Failure | None:
        """A process ends in good order."""
        del now_s
        if not process.is_worker:
            return None
        if failure := self.joining.check_training(process):
            return failure
        if self._dealer is not None:
            self._dealer.leave(process.rank)
        return self._left_behind(process)

    def _left_behind(self, process: Process) -> Failure | None:
        why = self._dealer.left_behind() if self._dealer else None
        return process.failure(Cause.UNEQUAL, f"cannot go on: {why}") if why else None

    def moment(self, process: Process | None) -> Moment | None:
        """The iteration of the whole job, once workers compute tokens. `explain` says a worker's."""
        iteration = self._dealer.iteration_of(None) if process is None and self._dealer else None
        return None if iteration is None else (None, iteration)

    def explain(self, failure: Failure, is_own: bool) -> Failure:
        """The failure with the token that the worker held, and with the iteration as tokens count it: exchanges count their own.

        is_own: the process that failed says so itself, so it knows best what it was doing.
        """
        dealer = self._dealer
        if dealer is None:
            return failure
        ranks = (one.rank for one in self.members.workers if failure.is_of("worker", one.hello.node))
        rank = next(ranks, None)
        held = None if rank is None else dealer.held(rank)
        knows = is_own and failure.phase is not None and failure.iteration is not None
        knows |= failure.phase is Phase.END and failure.iteration is None  # after all iterations
        if not knows and (iteration := dealer.iteration_of(rank)) is not None:
            phase = Phase.FORWARD if held else failure.phase if failure.phase is Phase.EXCHANGE else None
            failure = replace(failure, phase=phase, iteration=iteration)
        return replace(failure, detail=f"{failure.detail}; it held token {held}") if held else failure
