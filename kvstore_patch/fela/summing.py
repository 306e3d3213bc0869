"""Sums gradients over workers and takes the steps, on a thread of its own: a worker takes part also while it sleeps or computes.

The coordinator orders sums in the same order on all workers: iterations ascending, and within one sub-models M to 1. A sum over all
workers is one call of the nalb store, which takes the calls of an iteration as one cycle. A sum over some of the workers goes
through the couriers (subset_sum.py).

An operation counts as done once it is queued with MXNet's engine: whoever reads the parameters later waits for it.
"""

import queue
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy.typing as npt

from kvstore_patch.fela.gradients import Gradients
from kvstore_patch.fela.subset_sum import add_up_among
from kvstore_patch.fela.updates import Updates
from kvstore_patch.store.kvstore import NALB
from nalb.errors import one_line
from nalb.failures import Cause, Phase
from nalb.services.tokens import messages as m
from nalb.transport.courier import Courier
from nalb.transport.pieces import Occasion, StatePiece


class Summing:
    """The thread that obeys the coordinator's orders to sum. Only it calls the store, until `hold` returns.

    keys: per sub-model, the store's key of each array that is summed.
    """

    def __init__(
        self, store: NALB, courier: Courier, gradients: Gradients, updates: Updates, keys: Sequence[Sequence[int]]
    ):
        self._store, self._courier, self._gradients, self._updates = store, courier, gradients, updates
        self._keys, self._rank, self._workers = keys, store.rank, store.num_workers
        self._members: list[list[int]] | None = None  # by sub-model, the ranks with its present parameters
        self._updated, self._shape_from = [-1] * len(keys), -1  # iterations of the last steps; the shape's first
        self._progress = threading.Condition()
        self._turn, self._is_held = threading.Lock(), False  # _turn: held while an order is obeyed
        self._has_begun = False  # before that the script may restore a checkpoint by the store
        self._orders: queue.SimpleQueue[m.SumGradients | m.TokenShape | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="nalb-sums", daemon=True)
        self._thread.start()
        store.exchange.may_call = self._may_call
        store.client.on(m.SumGradients, self._orders.put)

    def begin(self) -> None:
        """The training begins: from here on only `hold` lets other threads call the store."""
        self._has_begun = True

    def take_shape(self, shape: m.TokenShape) -> None:
        """Queue a change of the sub-models' members behind the sums ordered before it. Call it in the order of the messages."""
        self._orders.put(shape)

    def wait(self, sub_model: int, iteration: int, shape_from: int) -> None:
        """Wait until the sub-model's step of this iteration is queued, and its new members under this shape have its parameters."""
        with self._progress:
            while self._updated[sub_model] < iteration or self._shape_from < shape_from:
                self._progress.wait(timeout=1.0)

    def hold(self) -> None:
        """Let no order be obeyed until `go_on`; waits for the one under way."""
        self._turn.acquire()
        self._is_held = True

    def go_on(self) -> None:
        """Let orders be obeyed again."""
        self._is_held = False
        self._turn.release()

    def gather(self, iteration: int) -> None:
        """Give every worker all sub-models. Every worker calls it between `hold` and `go_on`, after all steps of this iteration."""
        everyone = list(range(self._workers))
        for sub_model, members in enumerate(self._members or []):
            self._hand_over(sub_model, members, everyone, StatePiece(iteration, sub_model, Occasion.GATHER, 0))

    def close(self) -> None:
        """Wait until all orders are obeyed, and end the thread."""
        self._orders.put(None)
        self._thread.join()

    def _may_call(self) -> bool:
        """Whether this thread may call the store now."""
        is_idle = not self._has_begun or self._is_held or not self._thread.is_alive()
        return is_idle or threading.current_thread() is self._thread

    # ---- the thread

    def _run(self) -> None:
        order: m.SumGradients | m.TokenShape | None = None
        try:
            while (order := self._orders.get()) is not None:
                with self._turn:
                    if isinstance(order, m.TokenShape):
                        self._change_members(order)
                    else:
                        self._add_up(order)
        except Exception as error:
            client = self._store.client
            moment = (Phase.EXCHANGE, order.iteration) if order else (None, None)
            client.fail(client.failure(Cause.PROCESS, f"cannot sum: {one_line(error)}", *moment), 1)

    def _add_up(self, order: m.SumGradients) -> None:
        self.begin()  # other workers may have computed all of the first iteration
        with self._gradients.queueing:
            sums = self._gradients.take_sums(order.iteration, order.sub_model)
        if self._rank in order.workers:
            if 1 < len(order.workers) < self._workers:
                add_up_among(self._courier, self._rank, order, sums.arrays)
            elif len(order.workers) > 1:
                self._store.add_up_gradients(self._keys[order.sub_model], [[array] for array in sums.arrays])
            with self._gradients.queueing:
                self._updates.apply(order.sub_model, sums)
        self._gradients.give_back(order.sub_model, sums)
        with self._progress:
            self._updated[order.sub_model] = order.iteration
            self._progress.notify_all()

    def _change_members(self, shape: m.TokenShape) -> None:
        for sub_model, new in enumerate(shape.eligible):
            old = self._members[sub_model] if self._members else new
            self._hand_over(sub_model, old, new, StatePiece(shape.iteration, sub_model, Occasion.JOINS, 0))
        self._members = shape.eligible
        with self._progress:
            self._shape_from = shape.iteration
            self._progress.notify_all()

    def _hand_over(self, sub_model: int, holders: Sequence[int], takers: Sequence[int], piece: StatePiece) -> None:
        """The first holder sends the sub-model to the takers that lack it; they put it in place."""
        lacking = [rank for rank in takers if rank not in holders]
        if self._rank == holders[0] and lacking:
            for number, array in enumerate(self._updates.collect(sub_model)):
                for rank in lacking:
                    self._courier.send(rank, _numbered(piece, number), partial(_same, array))
        elif self._rank in lacking:
            pieces = [_numbered(piece, number) for number in range(self._updates.count(sub_model))]
            self._updates.put(sub_model, [self._courier.take_piece(one, holders[0]) for one in pieces])


def _numbered(piece: StatePiece, number: int) -> StatePiece:
    return StatePiece(piece.iteration, piece.sub_model, piece.occasion, number)


def _same(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array
