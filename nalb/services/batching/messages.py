"""The messages of batch sizes. They have a count of iterations of their own, since a job may balance batches without plans.

W -> C  JoinBatching
C -> W  BatchSizes(k)      no worker draws batch k before this
W -> C  Computed(k)        the gradients of batch k are there
"""

from typing import Annotated

from msgspec import Meta

from nalb.protocol.wire import BatchSize, Count, Message, Seconds, Share

POWER_MOST = 1e30

Positive = Annotated[float, Meta(gt=0.0, le=1e9)]  # seconds
Power = Annotated[float, Meta(gt=0.0, le=POWER_MOST)]


class JoinBatching(Message, frozen=True):
    """The worker's batches may be sized by the coordinator; all workers must say so, or none."""

    batch_size: BatchSize  # to begin with, where the job does not say
    most: BatchSize | None  # what the worker can hold; None: no bound
    profile: Annotated[list[tuple[BatchSize, Positive]], Meta(max_length=64)] | None = None  # (samples, seconds) timed
    power: Power | None = None  # of this machine, in any one unit, e.g. its cores; None: not known


class Computed(Message, frozen=True):
    """A worker has all gradients of its batch."""

    iteration: Count  # counted from JoinBatching
    batch_size: BatchSize
    compute_s: Positive  # from the batch, or the last parameter, to the last gradient
    cpu_share: Share  # of the CPU time of the worker's cores that it got while computing
    memory_share: Share  # of the machine's memory in use
    period_s: Seconds  # from the batch before to this one; 0 for the first
    wait_s: Seconds  # spent waiting for this batch's size


class BatchSizes(Message, frozen=True):
    """How many samples every worker computes."""

    iteration: Count  # the first one
    until: Count  # the last one
    sizes: Annotated[list[BatchSize], Meta(min_length=1, max_length=100_000)]  # by worker rank


FROM_PROCESSES = (JoinBatching, Computed)
TO_PROCESSES = (BatchSizes,)
