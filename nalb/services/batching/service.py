"""Where the coordinator deals with batch sizes: who joins, who is missing, and why a job cannot go on. No clock, no sockets.

The sizes themselves are BatchSizeManager's. Where nobody chooses sizes, workers that ask for some are turned away.
"""

from collections.abc import Callable, Sequence

from nalb.batching.joint_control import LinkKnowledge
from nalb.batching.speed import Predictor
from nalb.errors import InputError, listed
from nalb.failures import Cause, Failure
from nalb.protocol import messages as m
from nalb.protocol.participant import Process
from nalb.services.batching.sizer import BatchSizeManager
from nalb.settings import Settings

JOIN = "call nalb.mxnet.batching.join in every worker's script, or leave out --batching or --scheme joint"


class BatchAdmission:
    """Workers by rank. Each method returns why the job must end, or None."""

    def __init__(
        self,
        settings: Settings,
        predictor: Callable[[int], Predictor] | None = None,
        network: Callable[[], LinkKnowledge | None] = lambda: None,
    ):
        self._startup_s = settings.startup_s
        self._since_s: float | None = None  # the first worker joined
        self.manager: BatchSizeManager | None = None
        if settings.batching is not None:
            self.manager = BatchSizeManager(
                settings.batching,
                settings.num_workers,
                settings.batch_total,
                settings.batch_maxima,
                predictor,
                network,
            )

    def take(self, process: Process, message: m.JoinBatching | m.Computed, now_s: float) -> Failure | None:
        """A worker joins or reports a batch; what follows from it is in the manager's outbox and events."""
        if self.manager is None:
            return process.failure(
                Cause.BATCHING, "asks for batch sizes, but nobody chooses them: launch with --batching"
            )
        try:
            if isinstance(message, m.Computed):
                self.manager.computed(process.rank, message)
            else:
                self._since_s = self._since_s or now_s
                self.manager.join(process.rank, message)
        except InputError as error:
            return process.failure(Cause.BATCHING, f"cannot have its batch sized: {error}")
        return None

    def check_joined(self, workers: Sequence[Process], now_s: float) -> Failure | None:
        """A worker whose script knows nothing of batching would let the others wait for ever.

        One that still times its profile or loads data has made no more calls than those that have joined.
        """
        if self.manager is None or not self.manager.missing or self._since_s is None:
            return None
        if now_s - self._since_s <= self._startup_s:  # all have reported their calls since
            return None
        missing = set(self.manager.missing)
        calls = min(worker.calls for worker in workers if worker.rank not in missing)
        training = [worker for worker in workers if worker.rank in missing and worker.calls > calls]
        if not training:
            return None
        others = f"and {listed([worker.name for worker in training[1:]])} " if training[1:] else ""
        return training[0].failure(Cause.BATCHING, f"{others}did not join the batching: {JOIN}")

    def registers(self, process: Process) -> Failure | None:
        """A worker has made the calls of an iteration: it trains, and cannot join any more."""
        if self.manager is None or process.rank not in self.manager.missing:
            return None
        return process.failure(Cause.BATCHING, f"trained without joining the batching that was asked for: {JOIN}")

    def leave(self, process: Process) -> Failure | None:
        """A worker ends in good order."""
        if self.manager is None:
            return None
        if failure := self.registers(process):
            return failure
        why = self.manager.leave(process.rank)
        return process.failure(Cause.UNEQUAL, f"left: {why}") if why else None
