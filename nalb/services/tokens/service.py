"""Where the coordinator deals with tokens: who joins, who is missing, and why a job cannot go on. No clock, no sockets.

The tokens themselves are TokenDealer's. A job that was not asked for a way to share them is Fela's once its scripts make a
fela.Trainer.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from nalb.errors import InputError, PeerError, listed
from nalb.failures import Cause, Failure, Phase
from nalb.protocol import messages as m
from nalb.protocol.participant import Process
from nalb.schemes import by_name
from nalb.services.tokens.dealer import Rates, TokenDealer, TokenOptions
from nalb.settings import Settings
from nalb.tokens.policies import FELA

JOIN = "make a fela.Trainer in every worker's script, or leave out --parallel"


class TokenAdmission:
    """Each method returns why the job must end, or None. What workers must be told is in the dealer's outbox."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._since_s: float | None = None  # the first worker joined
        self.dealer: TokenDealer | None = None  # from then on

    def take(
        self,
        process: Process,
        message: m.JoinTokens | m.TokenRequest,
        rates: Callable[[], Rates | None],
        now_s: float,
    ) -> Failure | None:
        """A worker joins or asks for a token. rates: see TokenDealer."""
        settings = self._settings
        if settings.is_stock:
            return process.failure(
                Cause.TOKENS, "computes tokens, but MXNet runs alone: choose another --scheme than stock"
            )
        if settings.sizes_batches:
            return process.failure(
                Cause.TOKENS, "computes tokens, which need no batch sizes: leave out --batching and joint"
            )
        if self.dealer is None:
            parallel = settings.parallel or FELA
            balances = by_name(settings.scheme).follows_estimates
            options = TokenOptions(
                parallel, settings.weights, settings.token_subset, settings.staleness, balances, settings.token_apart
            )
            self.dealer, self._since_s = TokenDealer(options, settings.num_workers, rates), now_s
        try:
            if isinstance(message, m.TokenRequest):
                self.dealer.request(process.rank, message, now_s)
            else:
                self.dealer.join(process.rank, message, now_s)
        except PeerError as error:
            return process.failure(Cause.PROTOCOL, str(error))
        except InputError as error:
            return process.failure(Cause.TOKENS, f"cannot have tokens: {error}")
        return self._left_behind(process)

    def check_joined(self, workers: Sequence[Process], now_s: float) -> Failure | None:
        """A worker whose script knows nothing of tokens would let the others wait for ever.

        One that still loads data has made no more calls than those that have joined.
        """
        if self.dealer is None or self._since_s is None or now_s - self._since_s <= self._settings.startup_s:
            return None
        if not self.dealer.missing:
            return None
        missing = set(self.dealer.missing)
        calls = min(worker.calls for worker in workers if worker.rank not in missing)
        training = [worker for worker in workers if worker.rank in missing and worker.calls > calls]
        if not training:
            return None
        others = f"and {listed([worker.name for worker in training[1:]])} " if training[1:] else ""
        return training[0].failure(Cause.TOKENS, f"{others}did not join those that compute tokens: {JOIN}")

    def with_token(self, failure: Failure, workers: Sequence[Process], is_own: bool) -> Failure:
        """The failure, which also says which token the worker held that it names, and counts iterations as tokens do.

        Exchanges have a count of their own. is_own: the process that failed says so itself; it knows best what it was about.
        """
        dealer = self.dealer
        if dealer is None:
            return failure
        rank = next((one.rank for one in workers if failure.is_of("worker", one.hello.node)), None)
        held = None if rank is None else dealer.held(rank)
        knows = is_own and failure.phase is not None and failure.iteration is not None
        knows |= failure.phase is Phase.END and failure.iteration is None  # after all iterations
        if not knows and (iteration := dealer.iteration_of(rank)) is not None:
            phase = Phase.FORWARD if held else failure.phase if failure.phase is Phase.EXCHANGE else None
            failure = replace(failure, phase=phase, iteration=iteration)
        return replace(failure, detail=f"{failure.detail}; it held token {held}") if held else failure

    def registers(self, process: Process) -> Failure | None:
        """A worker has made the calls of an iteration: it trains, and cannot join any more."""
        if self.dealer is None and self._settings.parallel is None:
            return None
        if self.dealer is None or process.rank in self.dealer.missing:
            return process.failure(
                Cause.TOKENS, f"trained without computing tokens, which others do or --parallel asked for: {JOIN}"
            )
        return None

    def leave(self, process: Process) -> Failure | None:
        """A worker ends in good order."""
        if failure := self.registers(process):
            return failure
        if self.dealer is not None:
            self.dealer.leave(process.rank)
        return self._left_behind(process)

    def _left_behind(self, process: Process) -> Failure | None:
        why = self.dealer.left_behind() if self.dealer else None
        return process.failure(Cause.UNEQUAL, f"cannot go on: {why}") if why else None
