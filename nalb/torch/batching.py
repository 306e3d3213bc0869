"""Batches whose size changes while a script trains, so that slow machines compute fewer samples than fast ones.

    sizes = BatchSizes(dataset, batch_size=32)                       # after init_process_group
    for images, labels in DataLoader(dataset, batch_sampler=sizes):
        loss = cross_entropy(model(images), labels)                  # the mean over this batch, as PyTorch's losses are
        sizes.scale(loss).backward()

Why that is exact. Rank i of N has n_i of the n samples of an iteration, whose gradients are g_ij. DistributedDataParallel takes the
mean of the ranks' gradients. With losses scaled by N n_i / n it is the mean over the union of all batches, whatever their sizes:

    1/N sum_i (N n_i / n) (1/n_i) sum_j g_ij  =  1/n sum_ij g_ij

Choice not taken: to scale gradients in the backend, or in a comm hook. The backend cannot tell gradients from a script's other
sums, and does not see all of them. DDP has one hook per model, which a compression may need. A scaled loss is right under any
backend and hook.

Layers that use the whole batch (BatchNorm) see the local one. nalb/batching/stream.py describes which samples a batch has; every
rank must be able to read all of them.
"""

import os
import time
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from functools import partial

import numpy as np
import psutil
import torch
import torch.distributed as dist

from nalb.batching.sizes import Bounds
from nalb.batching.stream import Stream
from nalb.errors import InputError, StoreError
from nalb.options import BATCH_MOST
from nalb.plane.front import Front
from nalb.process.address import own_name
from nalb.protocol.wire import FOREVER
from nalb.services.batching import messages as m
from nalb.services.batching import profiling
from nalb.settings import Settings, for_agents
from nalb.torch.backend import current_job
from nalb.torch.gathering import rows_of_all

Work = Callable[[int], object]  # samples -> their forward and backward pass, outside DDP and without a step
LEAST_S = 1e-9  # of a measured time


@dataclass
class _Batch:
    """The batch drawn last."""

    iteration: int
    size: int
    period_s: float  # since the draw before it
    wait_s: float  # that its size was waited for
    begun_s: float
    begun_cpu_s: float
    waited_s: float  # for sums until it was drawn, see Front
    is_scaled: bool = False
    is_computed: bool = False


class BatchSizes:
    """A batch sampler for a DataLoader. Iterate it once per epoch; after a loop that is left early, the next loop goes on there.

    rank: this rank's. total: samples of an iteration over all ranks, which never change. sizes: samples of each rank in the batch
    drawn last, by rank.
    """

    def __init__(
        self,
        dataset: Sized | int,
        batch_size: int,
        seed: int = 0,
        most: int | None = None,
        power: float | None = None,
        profile: Work | None = None,
    ):
        """Every rank makes one, after `init_process_group` and before the first step.

        dataset: the data set, or how many samples it has. batch_size: this rank's first one; it stays without
        `nalb launch --batching`. seed: of the shuffles, alike on all ranks. most: the largest batch that this rank can hold.
        power: of this machine, e.g. its cores; `static` and `dynamic` begin in proportion to it; all ranks give it, or none.
        profile: a function of n that runs forward and backward passes of any n samples outside DDP, and takes no step; `lbb` times
        it first. Raises InputError.
        """
        if not all(1 <= size <= BATCH_MOST for size in (batch_size, 1 if most is None else most)):
            raise InputError(f"batch_size {batch_size}, most {most}: give 1 to {BATCH_MOST} samples")
        if power is not None and not 0 < power <= m.POWER_MOST:
            raise InputError(f"power {power}: give a positive number of one unit on all machines, e.g. cores")
        is_joined = dist.is_available() and dist.is_initialized()
        self.rank: int = dist.get_rank() if is_joined else 0
        self._ranks: int = dist.get_world_size() if is_joined else 1
        settings = for_agents(os.environ, node=own_name(os.environ), endpoint="", size=self._ranks, role="worker")
        total, own = batch_size * (settings.first_workers or self._ranks), batch_size
        if settings.first_workers:  # some are left out after a restart, and the others compute their samples
            if len(given := set(gathered(batch_size, self._ranks))) > 1:
                raise InputError(
                    f"batch_size differs between ranks ({', '.join(map(str, sorted(given)))}), and some are left out after a "
                    "restart: nobody knows what these had. Give all ranks the same one where --min-nodes is used"
                )
            own = total // self._ranks + (self.rank < total % self._ranks)
        is_alone = is_joined and self._ranks == 1  # nobody to share samples with, as after a restart that left one node
        if is_alone and settings.batching:
            own = settings.batch_total or own
            told = settings.batch_maxima or [own]
            Bounds.of(own, 1, [min(told[0], most or own, own)])  # raises here if the total is too large
        self._front = None if settings.batching is None or is_alone else _front(settings)
        if self._front is None:
            self._present = m.BatchSizes(0, FOREVER, gathered(own, self._ranks))
        else:
            timed = None if profile is None else partial(measure, profile)
            self._front.send(profiling.joining(settings, self.rank, own, total, most, power, timed))
            self._present = self._front.next_batch_sizes()
        self.sizes = self._present.sizes
        self.total = sum(self.sizes)
        samples = dataset if isinstance(dataset, int) else len(dataset)
        self._stream = Stream(
            samples, self.total, lambda epoch: np.random.default_rng([seed, epoch]).permutation(samples)
        )
        self._next = 0  # iteration of the stream
        self._batch: _Batch | None = None
        self._cores = len(os.sched_getaffinity(0))

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            start, stop = self._draw()
            self._next += 1
            yield self._stream.batch(self._next - 1, start, stop)

    def __len__(self) -> int:
        """How many batches the epoch still has."""
        return self._stream.end_of_epoch(self._next) - self._next

    def go_to(self, iteration: int) -> None:
        """Make the next batch that of this iteration, as a training that goes on from a checkpoint needs."""
        self._next = iteration

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Weight the mean loss of the batch drawn last; call `backward` on the result, once. Raises StoreError."""
        batch = self._batch
        if batch is None or batch.is_scaled:
            raise StoreError("scale() comes once per batch, after it is drawn: scale the sum of its losses")
        batch.is_scaled = True
        scaled = loss * (self._ranks * batch.size / self.total)
        # Called at the end of the backward pass, and before DDP's own call that waits for its sums, since that is queued later.
        engine = torch.autograd.Variable._execution_engine
        scaled.register_hook(lambda _: engine.queue_callback(lambda: self._computed(batch, loss)))
        return scaled

    def _draw(self) -> tuple[int, int]:
        """(start, end): the next batch's place among the `total` samples of its iteration."""
        before = self._batch
        if before is not None and not before.is_computed:
            raise StoreError(
                f"batch {before.iteration + 1} is drawn before sizes.scale(loss).backward() of batch {before.iteration}: scale the "
                "loss of each batch, and let no DataLoader draw ahead (num_workers=0)"
            )
        iteration, asked_s = 0 if before is None else before.iteration + 1, time.monotonic()
        while self._present.until < iteration:
            assert self._front is not None
            self._present = self._front.next_batch_sizes()  # they come in order
        now_s = time.monotonic()
        self.sizes = self._present.sizes
        size, start = self.sizes[self.rank], sum(self.sizes[: self.rank])
        period_s = 0.0 if before is None else now_s - before.begun_s
        waited_s = 0.0 if self._front is None else self._front.waited_s
        self._batch = _Batch(iteration, size, period_s, now_s - asked_s, now_s, time.process_time(), waited_s)
        return start, start + size

    def _computed(self, batch: _Batch, loss: torch.Tensor) -> None:
        """All gradients of the batch are there; their sums may be under way."""
        if batch.is_computed:
            return
        batch.is_computed = True
        if self._front is None:
            return
        if loss.is_cuda:
            torch.cuda.current_stream(loss.device).synchronize()
        elapsed_s = time.monotonic() - batch.begun_s - (self._front.waited_s - batch.waited_s)
        elapsed_s, cpu_s = max(elapsed_s, LEAST_S), time.process_time() - batch.begun_cpu_s
        cpu_share = min(1.0, cpu_s / (elapsed_s * self._cores))
        memory_share = psutil.virtual_memory().percent / 100  # of the whole machine, not of this process
        self._front.send(
            m.Computed(batch.iteration, batch.size, elapsed_s, cpu_share, memory_share, batch.period_s, batch.wait_s)
        )


def _front(settings: Settings) -> Front:
    """This rank's end of the plane, by which sizes come. Raises InputError where it has none."""
    job, what = current_job(), f"batch sizes ({settings.batching})"
    if job is None:
        raise InputError(f"{what} are chosen in jobs of nalb alone: call init_process_group('nalb') first")
    if job.front is None or job.machine is not None:
        raise InputError(f"{what} are chosen for one rank on each machine: start no more, or leave out --batching")
    return job.front


def measure(work: Work, most: int) -> tuple[profiling.Points, int]:
    """Time batches of 4, 8, 16, ... samples for the profile of LBB. Raises InputError where not one sample fits."""

    def run_s(size: int) -> float:
        begun_s = time.monotonic()
        work(size)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.monotonic() - begun_s

    return profiling.measure(run_s, most, lambda error: isinstance(error, MemoryError | torch.cuda.OutOfMemoryError))


def gathered(own: int, ranks: int) -> list[int]:
    """Each rank's number, by rank."""
    return [number for (number,) in rows_of_all(torch.tensor([own]), ranks)]
