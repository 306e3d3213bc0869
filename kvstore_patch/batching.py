"""Batches whose size changes while a Gluon script trains: with kvstore 'nalb', and with MXNet's own dist_sync or dist_async.

    balancer = batching.join(store, batch_size=32)      # this worker's first batch size
    batches = balancer.batches(len(images))
    for epoch in range(epochs):
        for chosen in batches:                          # indices; their number may change every time
            ...
            loss.backward()                             # one loss per sample, as Gluon's losses give
            trainer.step(balancer.total)                # the samples of all workers, not of this batch

Why that is exact. backward() of per-sample losses gives the sum of the samples' gradients, the KVStore adds up the workers'
sums, and step(n) divides by n: with n the total over all workers it is the mean over the union of the batches, whatever
their sizes: worker i counts x_i / total (Chen et al., Eq. 7; Yao et al., 3.2.4; Tyagi and Sharma divide by the number of
workers once more, which divides the learning rate alone). For a mean loss, multiply by len(chosen) first. Another n
would scale the learning rate, so the step is refused. Layers that use the whole batch (BatchNorm) see the local one.

nalb/batching/stream.py describes which samples a batch has. Every worker must be able to read every sample.
"""

import functools
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import mxnet as mx
import numpy as np
import psutil
from mxnet.kvstore.base import KVStoreBase

from kvstore_patch.gluon import agreement
from kvstore_patch.gluon.compute_clock import ComputeClock, Computing
from kvstore_patch.gluon.profiling import ComputeBatch, measure
from kvstore_patch.store import script_end
from kvstore_patch.store.kvstore import NALB
from nalb.batching.partitions import TRAVERSALS_APART, Ints, PartitionedStream
from nalb.batching.stream import Stream
from nalb.errors import InputError, StoreError
from nalb.options import BATCH_MOST
from nalb.protocol import wire
from nalb.services.batching import messages as m
from nalb.services.batching.profiling import joining
from nalb.settings import Settings, from_environment
from nalb.transport.client import Client, Drained

__all__ = ["Balancer", "BatchSampler", "PartitionSampler", "join"]  # what nalb.mxnet hands on


class SizeSource(Protocol):
    """The source of the workers' batch sizes; it receives their reports of computed iterations."""

    def sizes(self, iteration: int) -> list[int]:
        """The batch sizes of this iteration, by rank; waits until they are known."""
        ...

    def report(self, message: m.Computed) -> None:
        """Take the report that an iteration's gradients are computed. Any thread may call it."""
        ...


class FixedSizes:
    """Batch sizes that stay as the workers began, by rank."""

    def __init__(self, sizes: list[int]):
        self._sizes = sizes

    def sizes(self, iteration: int) -> list[int]:
        """See SizeSource."""
        del iteration
        return self._sizes

    def report(self, message: m.Computed) -> None:
        """See SizeSource."""


class ChosenSizes:
    """Batch sizes that the coordinator chooses."""

    def __init__(self, client: Client, joining: m.JoinBatching):
        self._client = client
        client.send(joining)
        self._present = client.wait_for(m.BatchSizes)

    def sizes(self, iteration: int) -> list[int]:
        """See SizeSource."""
        while self._present.until < iteration:
            self._present = self._client.wait_for(m.BatchSizes)  # the messages come in order
        return self._present.sizes

    def report(self, message: m.Computed) -> None:
        """See SizeSource."""
        self._client.send(message)


class Balancer:
    """This worker's part in the choice of batch sizes. `join` makes it.

    total: samples of an iteration over all workers; it never changes. sizes: the samples of each worker in the batch drawn last,
    by rank.
    """

    def __init__(self, rank: int, source: SizeSource, clock: ComputeClock):
        """rank: this worker's. source: says how many samples each worker computes. clock: times what this one computes."""
        self.rank, self._source, self._clock = rank, source, clock
        self.total = sum(source.sizes(0))  # samples of an iteration over all workers
        self._iteration = -1  # of the batch drawn last
        self._is_drawn = False  # whether that batch's step is still to come
        self._size = 0
        self.sizes: list[int] = []  # by rank, of the batch drawn last
        self._drawn_s = self._period_s = self._wait_s = 0.0

    def batches(self, samples: int, seed: int = 0) -> "BatchSampler":
        """A batch sampler over a data set of `samples` samples, all of which every worker can read.

        seed: of the shuffles, alike on all workers. Raises InputError where `samples` are fewer than `total`.
        """
        return BatchSampler(self, samples, seed)

    def partitioned_batches(
        self, partitions: Sequence[Ints], seed: int = 0, threshold: float = TRAVERSALS_APART
    ) -> "PartitionSampler":
        """A batch sampler over this worker's part of the data.

        partitions: the indices of each worker's samples, by rank, alike on all workers. seed: of the shuffles. threshold: passes
        over its data by which one part may be ahead of another before samples move.
        """
        return PartitionSampler(self, partitions, seed, threshold)

    def draw(self) -> tuple[int, int]:
        """(start, end): the next batch's place among the `total` samples of its iteration. StoreError before the last step."""
        if self._is_drawn:
            raise StoreError(
                f"batch {self._iteration + 1} is drawn before trainer.step of batch {self._iteration}: take one step per "
                "batch, and let no DataLoader draw ahead (num_workers=0)"
            )
        script_end.goes_on()
        asked_s = time.monotonic()
        sizes = self._source.sizes(self._iteration + 1)
        self._iteration, self._is_drawn, self._size = self._iteration + 1, True, sizes[self.rank]
        self.sizes = sizes
        now_s = time.monotonic()
        self._wait_s, self._period_s = now_s - asked_s, now_s - self._drawn_s if self._iteration else 0.0
        self._drawn_s = now_s
        self._clock.begin()
        start = sum(sizes[: self.rank])
        return start, start + self._size

    # ---- called by Trainer's patched methods (_watch_trainers)

    def check_step(self, batch_size: float) -> None:
        """Raise StoreError unless the step divides by the total. batch_size: the number that the script gave to `trainer.step`."""
        if abs(batch_size - self.total) > 1e-6 * self.total:
            raise StoreError(
                f"trainer.step({batch_size:g}): batches are unequal and gradients are sums over all workers, so only "
                f"step(balancer.total), which is {self.total}, gives their mean; for a mean loss, multiply it by len(batch)"
            )

    def before_push(self, trainer: mx.gluon.Trainer) -> None:
        """Queue the measurement of the trainer's computing: the backward pass is queued, and no gradient is pushed yet."""
        if not self._is_drawn:
            return
        self._is_drawn = False
        if self._iteration == 0:
            # MXNet 1.9.1 does not order the first push behind the pull of the initial parameters; on dist_sync with updates
            # on the worker, a pull that comes late is answered with the sum of the gradients
            for parameter in trainer._params:
                for data in parameter.list_data():
                    data.wait_to_read()
        # copies: this thread may have drawn the next batch by the time of the report
        drawn = (self._iteration, self._size, self._period_s, self._wait_s)
        gradients = [g for p in trainer._params if p.grad_req != "null" for g in p.list_grad()]
        self._clock.gradients(gradients, lambda computing: self._report(computing, *drawn))

    def after_update(self, trainer: mx.gluon.Trainer) -> None:
        """Note that the update of the trainer's parameters is queued: the next iteration's computing begins after it."""
        self._clock.parameters([d for p in trainer._params if p.grad_req != "null" for d in p.list_data()])

    def _report(self, computing: Computing, iteration: int, size: int, period_s: float, wait_s: float) -> None:
        memory_share = psutil.virtual_memory().percent / 100  # of the whole machine, not of this process
        elapsed_s, cpu_share = computing
        self._source.report(m.Computed(iteration, size, elapsed_s, cpu_share, memory_share, period_s, wait_s))


class BatchSampler(mx.gluon.data.sampler.Sampler):
    """Indices of this worker's batches. Iterate it once per epoch, or give it to a DataLoader as batch_sampler.

    After a loop that is left early, the next loop goes on where it stopped. The same seed gives the same stream on every worker.
    """

    def __init__(self, balancer: Balancer, samples: int, seed: int):
        """balancer: says how many samples each batch has. samples: of the data set. seed: of the shuffles."""
        self._balancer, self._drawn = balancer, 0
        self._stream = Stream(
            samples, balancer.total, lambda epoch: np.random.default_rng([seed, epoch]).permutation(samples)
        )

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            start, stop = self._balancer.draw()
            self._drawn += 1
            yield self._stream.batch(self._drawn - 1, start, stop)

    def go_to(self, iteration: int) -> None:
        """Make the next batch that of this iteration, as a training that goes on from a checkpoint needs."""
        self._drawn = iteration

    def __len__(self) -> int:
        """How many batches the epoch still has."""
        return self._stream.end_of_epoch(self._drawn) - self._drawn


class PartitionSampler(mx.gluon.data.sampler.Sampler):
    """Indices of this worker's batches, from its own partition alone. `Balancer.partitioned_batches` makes it.

    An epoch has as many iterations as all workers together need to compute all samples once. `stream.moves` lists the moves of
    samples between workers so far: a worker whose data lie on its own disk must fetch the samples that it is given.
    """

    def __init__(self, balancer: Balancer, partitions: Sequence[Ints], seed: int, threshold: float):
        """balancer: says how many samples each batch has. partitions, seed, threshold: as of `Balancer.partitioned_batches`."""

        def shuffle(moves: int, passes: int, samples: int) -> Ints:
            return np.random.default_rng([seed, balancer.rank, moves, passes]).permutation(samples)

        self._balancer = balancer
        self.stream = PartitionedStream(partitions, balancer.rank, shuffle, threshold)
        self._batches = max(1, sum(map(len, partitions)) // balancer.total)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            self._balancer.draw()
            yield self.stream.batch(self._balancer.sizes)

    def go_to(self, iteration: int) -> None:
        """Raise InputError unless `iteration` is 0: the partitions depend on the sizes of all iterations before."""
        if iteration:
            raise InputError(f"partitioned data cannot go on from iteration {iteration}: begin without a checkpoint")

    def __len__(self) -> int:
        return self._batches


def equal_part(total: int, workers: int, rank: int) -> int:
    """How many of `total` samples a worker gets. Parts are equal, and the lowest ranks get one more each of the remainder."""
    return total // workers + (rank < total % workers)


def first_sizes(store: KVStoreBase, own: int, total: int) -> list[int]:
    """The workers' first batch sizes, by rank. Call it on every worker, before the first step.

    own: this worker's size. total: samples over all workers if all sizes are equal. Servers of dist_async cannot add up sizes, so
    with it sizes are equal; raises InputError where `total` differs from rank 0's.
    """
    if isinstance(store, mx.kvstore.KVStore) and store.type == "dist_async":
        seen = mx.nd.array([total])
        store.init(agreement.SIZES_KEY, seen)  # rank 0's
        store.pull(agreement.SIZES_KEY, out=seen)
        if seen.asscalar() != total:
            raise InputError(
                f"batch_size: {total} samples in all here and {seen.asscalar():.0f} on rank 0: with dist_async and without "
                "--batching give the same on all workers"
            )
        return [equal_part(total, store.num_workers, rank) for rank in range(store.num_workers)]
    sizes = np.zeros(store.num_workers, np.float32)
    sizes[store.rank] = own
    return [int(size) for size in agreement.add_up(store, agreement.SIZES_KEY, sizes)]


def _check_equal(store: KVStoreBase, batch_size: int) -> None:
    """Raise InputError where workers give unequal first sizes: nobody knows what those had that are left out after a restart."""
    if len(given := set(first_sizes(store, batch_size, batch_size * store.num_workers))) > 1:
        raise InputError(
            f"batch_size differs between workers ({', '.join(map(str, sorted(given)))}), and some are left out after a "
            "restart: nobody knows what these had. Give all workers the same one where --min-nodes is used"
        )


def join(
    store: KVStoreBase,
    batch_size: int,
    most: int | None = None,
    profile: ComputeBatch | None = None,
    power: float | None = None,
) -> Balancer:
    """Take part in the choice of batch sizes; call it once, in every worker, before the first batch.

    store: kvstore 'nalb', or MXNet's own 'dist_sync' or 'dist_async'; of one process, where the first size stays.
    batch_size: this worker's first batch size, samples; without `nalb launch --batching` it never changes. most: the largest
    batch that this worker can hold. profile: a function of n that computes the gradients of any n samples and takes no step;
    `lbb` times it first, up to the total or the first size that memory does not hold, and then stays at most at half of that
    size. power: of this machine, e.g. its cores; `static` and `dynamic` begin in proportion to it; all workers give it, or none.
    From here on Trainer's steps must divide by `balancer.total`. Raises InputError.
    """
    if not all(1 <= size <= BATCH_MOST for size in (batch_size, 1 if most is None else most)):
        raise InputError(f"batch_size {batch_size}, most {most}: give 1 to {BATCH_MOST} samples")
    if power is not None and not 0 < power <= m.POWER_MOST:
        raise InputError(f"power {power}: give a positive number of one unit on all machines, e.g. cores")
    if not isinstance(store, NALB) and "dist" not in store.type:  # of one process, as with NALB_ALONE=1
        balancer = Balancer(store.rank, FixedSizes([batch_size]), ComputeClock())
        _watch_trainers(balancer)
        return balancer
    settings = store.settings if isinstance(store, NALB) else from_environment(os.environ, socket.gethostname())
    if settings.batching == "lb-bsp-federated":
        raise InputError("--batching lb-bsp-federated averages models: call nalb.mxnet.federated.join")
    workers, own, parts = store.num_workers, batch_size, None
    total = batch_size * (settings.first_workers or workers)
    if settings.first_workers:  # some are left out after a restart, and the others compute their samples
        if not (settings.batching and settings.batch_total):
            _check_equal(store, batch_size)
        parts = [equal_part(total, workers, rank) for rank in range(workers)]
        own = parts[store.rank]
    clock = ComputeClock()
    if isinstance(store, NALB):
        store.at_close(clock.settle, lambda: None)
    if settings.batching is None:
        source: SizeSource = FixedSizes(parts or first_sizes(store, own, total))
    else:
        client = store.client if isinstance(store, NALB) else _client_alone(settings, store.rank, clock)
        timed = None if profile is None else functools.partial(measure, profile)
        source = ChosenSizes(client, joining(settings, store.rank, own, total, most, power, timed))
    balancer = Balancer(store.rank, source, clock)
    _watch_trainers(balancer)
    return balancer


def _client_alone(settings: Settings, rank: int, clock: ComputeClock) -> Client:
    """A control client of a worker without shim and plans; it says goodbye when the script ends well."""
    hello = wire.Hello(wire.VERSION, "worker", settings.node, rank, os.getpid())
    client = Client.of(settings, hello, lambda: Drained([]))
    client.wait_for(wire.Welcome)

    def leave() -> None:
        clock.settle()
        mx.nd.waitall()
        client.send(wire.Goodbye())
        client.wait_for(wire.Farewell)
        client.close()

    script_end.at_exit(settings.node, leave, lambda failure: client.close(wire.Failed(failure)))
    return client


def _watch_trainers(balancer: Balancer) -> None:
    """Let Gluon's Trainer tell the balancer of its steps: one check and two probes, none of which waits."""
    trainer = mx.gluon.Trainer
    check, allreduce, update = trainer._check_and_rescale_grad, trainer._allreduce_grads, trainer._update

    @functools.wraps(check)
    def check_and_rescale_grad(self: mx.gluon.Trainer, scale: float) -> None:
        balancer.check_step(self._scale / scale)
        check(self, scale)

    @functools.wraps(allreduce)
    def allreduce_grads(self: mx.gluon.Trainer) -> None:
        balancer.before_push(self)
        allreduce(self)

    @functools.wraps(update)
    def update_parameters(self: mx.gluon.Trainer, ignore_stale_grad: bool = False) -> None:
        update(self, ignore_stale_grad)
        balancer.after_update(self)

    trainer._check_and_rescale_grad = check_and_rescale_grad
    trainer._allreduce_grads, trainer._update = allreduce_grads, update_parameters
