"""The Trainer that a script uses to train with tokens.

    trainer = fela.Trainer([front, middle, head], loss, "sgd", {"learning_rate": 0.1}, kvstore=store, total=512)
    for chosen in trainer.batches(len(images), seed=1):              # the indices of all workers' samples of an iteration
        trainer.step(lambda part: (to_input(images[part]), labels[part]))
    trainer.gather()                                                 # before parameters are read

A step asks the coordinator for tokens, computes them one by one, and ends when the coordinator says so. Meanwhile one thread sums
gradients and takes the optimizer's steps (summing.py), and another sends arrays to other workers (courier.py). So a worker that is
some iterations behind the others, as after a sleep, still takes part in their sums.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from kvstore_patch.fela.chunks import Chunks
from kvstore_patch.fela.compute import Compute, Loss
from kvstore_patch.fela.cutting import Blocks, check_arrays
from kvstore_patch.fela.gradients import Gradients, written
from kvstore_patch.fela.summing import Summing
from kvstore_patch.fela.updates import Updates
from kvstore_patch.store import ndarrays, script_end
from kvstore_patch.store.kvstore import required
from nalb.batching.stream import Stream
from nalb.errors import InputError, StoreError
from nalb.failures import Cause, Phase
from nalb.protocol import wire
from nalb.services.tokens import messages as m
from nalb.tokens.shape import Shape
from nalb.tokens.stragglers import Stragglers
from nalb.transport.courier import Courier, own_host
from nalb.transport.keys import own_keys
from nalb.transport.pieces import Sender, TokenPiece

THRESHOLD = 16  # samples: the smallest threshold that tells layers apart (Geng et al., IV-A)
BARRIER_KEY, LOSS_KEY = "fela.gather", "fela.loss"

Samples = Callable[[list[int]], tuple[NDArray, NDArray | npt.NDArray[Any]]]  # indices -> the samples and their labels


class Trainer:
    """Trains one net with tokens. Every worker makes one, from blocks of known shapes; all begin with rank 0's parameters."""

    def __init__(
        self,
        blocks: Sequence[mx.gluon.Block],
        loss: Loss,
        optimizer: str,
        optimizer_params: Mapping[str, Any],
        kvstore: KVStoreBase | str,
        total: int,
        threshold: int | None = None,
    ):
        """blocks: the sub-models, in order, from `partition` or cut by hand. loss: a function of outputs and labels that gives one
        number for each sample, as Gluon's losses do; a Block's own parameters are trained too. total: samples of an iteration,
        over all workers. threshold: the smallest batch at which the first sub-model computes at full speed, samples; default: the
        one that `partition` found, or THRESHOLD. optimizer, optimizer_params: as for Gluon's Trainer. kvstore: 'nalb', or a store
        of that kind.
        The learning rate may follow one of the optimizer's schedules; set it by hand only after `gather`. Raises InputError,
        StoreError.
        """
        store = required(mx.kv.create(kvstore) if isinstance(kvstore, str) else kvstore, "tokens are summed")
        self._store, self._client, self.total = store, store.client, total
        learning, running = learning_and_running(blocks, loss)
        summed = [[*a, *b] for a, b in zip(learning, running, strict=True)]  # by sub-model
        groups = parameters_of(blocks, loss)  # frozen ones too: all begin with rank 0's
        every = [one for group in groups for one in group]
        self.gluon = mx.gluon.Trainer(every, optimizer, optimizer_params, store, update_on_kvstore=False)
        self.gluon._init_kvstore()
        self.gluon._init_params()
        self._parameters = [[one.list_data()[0] for one in group] for group in groups]
        for arrays in self._parameters:
            ndarrays.wait_for_all(arrays)  # MXNet 1.9.1 does not order the first push after this pull
        settings = store.settings
        self._stragglers = Stragglers.read(settings.stragglers) if settings.stragglers else None
        self._staleness = settings.staleness
        self._chunks, gradients = Chunks(), Gradients(learning, running)
        self._compute = Compute(blocks, loss, self._chunks, gradients)
        host = os.environ.get("DMLC_NODE_HOST") or own_host(settings.endpoint)
        self._courier = Courier(host, own_keys(settings), self._fail, settings.deadline_s)
        keys = [[self.gluon._param2idx[one.name] for one in group] for group in summed]
        updates = Updates(self.gluon, learning, running, total)
        self._summing = Summing(store, self._courier, gradients, updates, keys)
        self._shapes: list[tuple[int, Shape]] = []  # (first iteration, shape), ascending
        self._chosen: dict[int, tuple[list[int], Samples]] = {}  # by iteration
        self._drawn: list[int] | None = None  # indices of the next step
        self._iteration, self._is_held = 0, False
        self._client.on(m.TokenShape, self._take_shape)
        self._client.on(m.SendPart, self._send)
        if threshold is None:
            threshold = blocks.threshold if isinstance(blocks, Blocks) else THRESHOLD
        self._client.send(m.JoinTokens(self._courier.address, len(blocks), total, threshold))
        sender = Sender(store.rank, store.exchange.session.welcome.job)
        self._courier.meet(sender, self._client.wait_for(m.TokenPeers).addresses)
        store.at_close(self._leave, self._courier.close)

    def batches(self, samples: int, seed: int = 0) -> "Batches":
        """A sampler of each iteration's indices, over a data set of `samples` samples, all of which every worker can read.

        seed: of the shuffles, alike on all workers.
        """
        return Batches(self, samples, seed)

    def step(self, samples: Samples) -> None:
        """Compute one iteration. samples: gives the samples and labels at some indices, perhaps those of an earlier iteration."""
        if self._drawn is None:
            raise StoreError("step without a batch: take one from trainer.batches for each step")
        script_end.goes_on()
        iteration, self._iteration = self._iteration, self._iteration + 1
        self._chosen[iteration], self._drawn = (self._drawn, samples), None
        self._summing.begin()
        self._go_on()
        if self._stragglers:
            time.sleep(self._stragglers.sleep_s(self._store.rank, iteration, self._store.num_workers))
        self._compute_tokens(iteration, drains=False)

    def loss_sum(self) -> float:
        """The sum of all samples' losses on all workers since the last call. Call it alike on every worker; it calls `gather`."""
        self.gather()
        losses = mx.nd.array([self._compute.take_loss()[0]], dtype="float64")
        self._store.add_up_once(LOSS_KEY, losses)
        return float(losses.asscalar())

    def gather(self) -> None:
        """Bring all parameters to this worker, as they are after its steps so far. Call it on every worker.

        The parameters stay so until the next step. Call it before parameters are read, as by an evaluation or a checkpoint. Without
        it steps may still be under way, other workers may be further, and a sub-model that only some workers compute is old here.
        """
        if self._is_held:
            return
        self._finish()
        self._summing.hold()
        self._is_held = True
        if self._iteration:
            self._summing.gather(self._iteration)
        everyone = mx.nd.zeros((1,))
        self._store.add_up_once(BARRIER_KEY, everyone)
        everyone.wait_to_read()

    # ---- the steps' course

    def _compute_tokens(self, iteration: int, drains: bool) -> None:
        request = m.TokenRequest(iteration, drains=drains)
        while isinstance(answer := self._ask(request), m.TokenWork):
            request = self._take_token(answer, iteration, drains)
        self._free(answer.complete)

    def _ask(self, request: m.TokenRequest) -> m.TokenWork | m.NextIteration:
        self._client.send(request)
        answer = self._client.wait_until(_choose)
        assert isinstance(answer, m.TokenWork | m.NextIteration)
        return answer

    def _take_token(self, work: m.TokenWork, iteration: int, drains: bool) -> m.TokenRequest:
        """Fetch a token's inputs and compute the token; returns the request that reports it."""
        start_s = time.monotonic()
        fetched = {
            (one.token, one.part): self._courier.take_piece(TokenPiece(one.token, one.part, work.token), one.source)
            for one in work.fetches
        }
        fetched_s = time.monotonic()
        number = work.token.iteration
        shape_from, shape = next(one for one in reversed(self._shapes) if one[0] <= number)
        sub_model = shape.sub_model(work.token.level)
        self._summing.wait(sub_model, number - 1 - self._staleness, shape_from)
        ndarrays.wait_for_all(self._parameters[sub_model])  # before the clock starts: waiting is not computing
        ready_s = time.monotonic()
        self._compute.run(work, shape, partial(self._batch, number, shape), fetched)
        return m.TokenRequest(
            iteration,
            work.token,
            drains,
            time.monotonic() - ready_s,
            fetched_s - start_s,
            sum(array.nbytes for array in fetched.values()),
        )

    def _batch(self, iteration: int, shape: Shape, chunks: Sequence[int]) -> tuple[NDArray, NDArray]:
        chosen, samples = self._chosen[iteration]
        x, y = samples([chosen[place] for chunk in chunks for place in shape.samples_of(chunk)])
        return x, y if isinstance(y, NDArray) else mx.nd.array(y, dtype=y.dtype)

    def _free(self, complete: int) -> None:
        self._compute.free(complete)
        self._courier.free(complete)
        self._chosen = {number: one for number, one in self._chosen.items() if number > complete}

    def _finish(self) -> None:
        """Wait until all iterations so far are complete and their steps are queued."""
        if self._iteration == 0:
            return
        if self._staleness:
            self._compute_tokens(self._iteration - 1, drains=True)
        # the coordinator tells a new shape before the last iteration of the old one ends, so all workers have the same one
        shape_from, shape = self._shapes[-1]
        for sub_model in range(shape.sub_models):
            self._summing.wait(sub_model, self._iteration - 1, shape_from)

    def _go_on(self) -> None:
        if self._is_held:
            self._is_held = False
            self._summing.go_on()

    def _leave(self) -> None:
        self._go_on()
        self._finish()
        self._summing.close()

    # ---- called on other threads

    def _take_shape(self, message: m.TokenShape) -> None:
        shape = Shape(self.total, message.chunks, tuple(message.weights))
        self._shapes.append((message.iteration, shape))
        self._summing.take_shape(message)

    def _send(self, message: m.SendPart) -> None:
        token, part, _ = message.fetch
        piece = TokenPiece(token, part, message.wanted_by)
        self._courier.send(message.worker, piece, lambda: self._chunks.read(token, part, message.chunks))

    def _fail(self, cause: Cause, why: str, iteration: int | None) -> None:
        phase = None if iteration is None else Phase.FORWARD
        self._client.fail(self._client.failure(cause, why, phase, iteration), 1)


class Batches(mx.gluon.data.sampler.Sampler):
    """Indices of each iteration, the same on every worker. Iterate it once per epoch; take one step per batch.

    After a loop that is left early, the next loop goes on where it stopped. The same seed gives the same samples.
    """

    def __init__(self, trainer: Trainer, samples: int, seed: int):
        self._trainer, self._next = trainer, 0
        self._stream = Stream(
            samples, trainer.total, lambda epoch: np.random.default_rng([seed, epoch]).permutation(samples)
        )

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            chosen = self._stream.batch(self._next, 0, self._trainer.total)
            self._next, self._trainer._drawn = self._next + 1, chosen
            yield chosen

    def go_to(self, iteration: int) -> None:
        """Make the next batch that of this iteration, as a training that goes on from a checkpoint needs."""
        self._next = iteration

    def __len__(self) -> int:
        """How many batches the epoch still has."""
        return self._stream.end_of_epoch(self._next) - self._next


def _choose(inbox: list[wire.Message]) -> wire.Message | None:
    index = next((i for i, one in enumerate(inbox) if isinstance(one, m.TokenWork | m.NextIteration)), None)
    return None if index is None else inbox.pop(index)


def parameters_of(blocks: Sequence[mx.gluon.Block], loss: Loss) -> list[list[mx.gluon.Parameter]]:
    """Per sub-model, its parameters; the loss's own are of the last one."""
    groups = [list(block.collect_params().values()) for block in blocks]
    if isinstance(loss, mx.gluon.Block):
        groups[-1] += [one for one in loss.collect_params().values() if one not in groups[-1]]
    return groups


def learning_and_running(
    blocks: Sequence[mx.gluon.Block], loss: Loss
) -> tuple[list[list[mx.gluon.Parameter]], list[list[mx.gluon.Parameter]]]:
    """Per sub-model, the parameters with a gradient, and those that a forward pass changes.

    Raises InputError for parameters or blocks that cannot be trained with tokens.
    """
    check_arrays()
    groups = parameters_of(blocks, loss)
    times = Counter(one.name for group in groups for one in group)
    for one in (one for group in groups for one in group):
        if one._data is None:
            raise InputError(
                f"parameter {one.name}: its shape or value is not known: let the blocks see one batch first"
            )
        if times[one.name] > 1:
            raise InputError(f"parameter {one.name} is in several blocks: join those")
        if one.grad_req == "add" or one._grad_stype != "default" or len(one.list_data()) > 1:
            raise InputError(f"parameter {one.name}: give it dense gradients, grad_req='write', and one device")
    learning = [[one for one in group if one.grad_req != "null"] for group in groups]
    changed = [written(block) for block in blocks]
    if isinstance(loss, mx.gluon.Block):
        changed[-1] |= written(loss)
    running = [[one for one in group if one.name in names] for group, names in zip(groups, changed, strict=True)]
    for number, group in enumerate(learning, 1):
        if not group:
            raise InputError(f"block {number} has no parameter that learns: join it with a neighbour")
    return learning, running
