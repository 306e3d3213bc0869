"""torchft's ProcessGroup over nalb, for jobs whose replicas come and go: `Manager(pg=ProcessGroupNalb(), ...)`.

Each quorum is a job of its own, with new agents and a new coordinator. When one of its replicas fails, sums raise an error on the
others, which go on with the next quorum.
"""

import atexit
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import _DistributedBackendOptions
from torchft.process_group import ProcessGroupWrapper

from nalb.failures import Cause, Failure
from nalb.torch.backend import NalbGroup
from nalb.torch.job import TorchJob

__all__ = ["ProcessGroupNalb"]


class ProcessGroupNalb(ProcessGroupWrapper):  # type: ignore[misc]
    """The sums of one replica with the others."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60)):
        """timeout: of gloo's calls."""
        super().__init__(timeout)
        self._job: TorchJob | None = None
        atexit.register(self.shutdown)

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> NalbGroup:
        options = _DistributedBackendOptions()
        options.group_rank, options.group_size, options.timeout = rank, world_size, self._timeout
        self._job = TorchJob(dist.PrefixStore("job", store), rank, world_size, self._timeout, ends_script=False)
        return NalbGroup(options, store, self._job, gpus_by_plane=True)

    def abort(self, errored: bool = True) -> None:
        """Leave the quorum. The other replicas' sums raise an error: whoever is left forms another one.

        errored: whether an error is the reason, as torchft says.
        """
        super().abort(errored)
        self._leave("torchft forms another quorum")

    def shutdown(self) -> None:
        """Leave the last quorum, once all its replicas do."""
        self._leave(None)
        super().shutdown()

    def _leave(self, failed: str | None) -> None:
        leaving, self._job = self._job, None
        if leaving is not None:
            leaving.leave(None if failed is None else Failure(cause=Cause.SCRIPT, detail=failed))

    def getBackendName(self) -> str:
        """By which c10d names it."""
        return "torchft-nalb"
