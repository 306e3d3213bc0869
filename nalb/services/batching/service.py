"""Batch sizes as a service: who takes part, and how sizes reach the workers. No clock, no sockets.

The sizes themselves are the BatchSizer's. Where nobody chooses sizes, workers that ask for some are turned away.
"""

from collections.abc import Callable

from msgspec.structs import replace

from nalb.batching.joint_control import LinkKnowledge
from nalb.batching.speed import Predictor
from nalb.errors import InputError
from nalb.failures import Cause, Failure
from nalb.planning.nodes import Floats
from nalb.protocol.members import Members
from nalb.protocol.participant import Process
from nalb.protocol.service import Service
from nalb.protocol.wire import Message
from nalb.services.batching import messages as m
from nalb.services.batching.sizer import BatchSizer
from nalb.services.joining import Joining
from nalb.settings import Settings

JOIN = (
    "call nalb.mxnet.batching.join in every worker's script, or make nalb.torch.BatchSizes before the first step, or leave out "
    "--batching or --scheme joint"
)


class Batching(Service):
    """Chooses each worker's number of samples."""

    takes = m.FROM_PROCESSES
    sends = m.TO_PROCESSES
    options = ("batching", "batch_total", "batch_most", "startup_s")

    def __init__(
        self,
        settings: Settings,
        members: Members,
        network: Callable[[], LinkKnowledge | None],
        predictor: Callable[[int], Predictor] | None = None,
    ):
        """network, predictor: see BatchSizer."""
        super().__init__(members)
        is_asked = settings.batching is not None
        self.joining = Joining(Cause.BATCHING, "the batching", JOIN, is_asked, members, settings.startup_s)
        self._sizer: BatchSizer | None = None
        if settings.batching is not None:
            most = settings.batch_maxima
            workers, total = settings.num_workers, settings.batch_total
            self._sizer = BatchSizer(settings.batching, workers, total, most, predictor, network)

    def plan_shares(self) -> Floats | None:
        """The network's half of a joint plan, bytes per node; None where plans are not joint."""
        return None if self._sizer is None else self._sizer.plan_shares()

    def take(self, process: Process, message: Message, now_s: float) -> Failure | None:
        """A worker joins, or reports a batch."""
        sizer = self._sizer
        if sizer is None:
            detail = "asks for batch sizes, but nobody chooses them: launch with --batching"
            return process.failure(Cause.BATCHING, detail)
        try:
            if isinstance(message, m.Computed):
                if behind := sizer.computed(process.rank, message):
                    return self._unequal(*behind)
            elif isinstance(message, m.JoinBatching):
                self.joining.note(process, now_s)
                sizer.join(process.rank, message)
        except InputError as error:
            if isinstance(message, m.JoinBatching):  # what all ask for together cannot be
                return Failure(cause=Cause.BATCHING, detail=f"batches cannot be sized: {error}")
            return process.failure(Cause.BATCHING, f"cannot have its batch sized: {error}")
        for sizes in sizer.outbox:
            for worker in self.members.workers:
                self.send(worker, sizes)
        names = [worker.hello.node for worker in sorted(self.members.workers, key=lambda worker: worker.rank)]
        self.events += [replace(event, at_s=now_s, workers=names) for event in sizer.events]
        sizer.outbox.clear()
        sizer.events.clear()
        return None

    def tick(self, now_s: float) -> Failure | None:
        """Time has passed."""
        return self.joining.check_time(now_s)

    def leave(self, process: Process, now_s: float) -> Failure | None:
        """A process ends in good order."""
        del now_s
        if not process.is_worker or self._sizer is None:
            return None
        if failure := self.joining.check_training(process):
            return failure
        behind = self._sizer.leave(process.rank)
        return self._unequal(*behind) if behind else None

    def _unequal(self, rank: int, why: str) -> Failure:
        return self.members.worker_of_rank[rank].failure(Cause.UNEQUAL, why)
