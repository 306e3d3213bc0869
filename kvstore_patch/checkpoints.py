"""Checkpoints of a Gluon training with kvstore 'nalb', with one of MXNet's own kvstores, or without one.

    checkpoints = Checkpoints(net, trainer, every=100, seed=1)      # after the net's first forward pass
    start = checkpoints.restore()                                   # Progress(0, 0, 0) where there is no checkpoint
    iteration = start.iteration
    for epoch in range(start.epoch, epochs):
        for batch in range(start.batch if epoch == start.epoch else 0, batches):
            ...
            trainer.step(...)
            iteration += 1
            checkpoints.after_step(Progress(iteration, epoch, batch + 1))

All workers have the same weights, so only rank 0 writes. All workers go on from the newest checkpoint that any of them has
(agreement.py). A checkpoint does not hold the states of random generators. Instead every worker seeds them anew from
(seed, iteration, rank) at each checkpoint that is written or restored: the numbers drawn after it are the same in both cases.
"""

import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import mxnet as mx
from mxnet.kvstore.base import KVStoreBase

from kvstore_patch import fela
from kvstore_patch.gluon import agreement, training_state
from kvstore_patch.store import names
from nalb.checkpoints.file import Progress, Setting
from nalb.checkpoints.keeper import Keeper
from nalb.errors import CheckpointError

__all__ = ["Checkpoints", "Progress"]

log = logging.getLogger(__name__)


class Checkpoints:
    """Saves and restores net, optimizer and progress. Every worker makes one alike, after the net's first forward pass."""

    def __init__(
        self,
        net: mx.gluon.Block,
        trainer: mx.gluon.Trainer | fela.Trainer,
        every: int,
        folder: str | Path | None = None,
        keep: int = 2,
        seed: int = 0,
        settings: Mapping[str, Setting] | None = None,
    ):
        """net, trainer: their state is saved; fela.Trainer's too.

        every: steps between two checkpoints; 0: none are written or read. folder: default NALB_CHECKPOINTS, which
        `nalb launch` sets. keep: how many of the newest checkpoints stay. seed: of the random generators. settings: values by
        name, such as the global batch size, that must be the same when training goes on. Raises CheckpointError.
        """
        self._keeper = Keeper(every, folder, keep, seed, settings)
        self._gather = trainer.gather if isinstance(trainer, fela.Trainer) else None
        self._trainer = trainer.gluon if isinstance(trainer, fela.Trainer) else trainer
        self._net = net

    def restore(self) -> Progress:
        """Restore the newest whole checkpoint, if there is one, and return its progress, the same on every worker.

        Call it once, before the first step. Files that are damaged or cannot be read are skipped with a warning. Raises
        CheckpointError where the checkpoint belongs to another training.
        """
        if not self._keeper.every:
            return Progress()
        store = self._join()
        if self._gather:
            self._gather()  # workers that go on at once would take this one's tokens, and have it step meanwhile
        agree = partial(agreement.agree, store) if store is not None and store.num_workers > 1 else None
        checkpoint = self._keeper.find(store is not None, agree)
        if checkpoint is None:
            self._seed_random(0)
            return Progress()
        name = self._keeper.path_of(checkpoint)
        self._keeper.check(checkpoint)
        try:
            training_state.apply(self._net, self._trainer, checkpoint.arrays, checkpoint.optimizer)
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {name}: {error}") from None
        if self._is_writer():
            log.warning("goes on from checkpoint %s", name)
        self._seed_random(checkpoint.progress.iteration)
        return checkpoint.progress

    def after_step(self, progress: Progress) -> None:
        """Save if a checkpoint is due. progress: where training goes on from here."""
        if self.is_due(progress):
            self.save(progress)

    def is_due(self, progress: Progress) -> bool:
        """Whether a checkpoint is due at this progress."""
        return self._keeper.is_due(progress)

    def save(self, progress: Progress) -> None:
        """Save now. Call it on every worker; rank 0 writes. Raises CheckpointError where writing fails; older checkpoints stay."""
        self._join()
        if self._gather:
            self._gather()  # the worker that writes may lack parts of the net that others computed
        if self._is_writer():
            self._write(progress)
        self._seed_random(progress.iteration)

    def _write(self, progress: Progress) -> None:
        arrays, optimizer = training_state.collect(self._net, self._trainer)
        self._keeper.write(progress, optimizer, arrays)

    def _seed_random(self, iteration: int) -> None:
        """Seed the random generators of MXNet, NumPy and Python. It takes milliseconds: too long for every iteration."""
        store = self._trainer._kvstore
        mx.random.seed(self._keeper.seed_random(iteration, store.rank if store else 0) & 0x7FFFFFFF)

    def _join(self) -> KVStoreBase | None:
        """Claim the folder for this job, wait for the initial parameters, and return the Trainer's store."""
        self._keeper.claim("scheduler", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
        trainer = self._trainer
        try:
            if not trainer._kv_initialized:
                trainer._init_kvstore()
        except mx.gluon.parameter.DeferredInitializationError:
            raise CheckpointError("the net's shapes are not known yet: let it see one batch before restore()") from None
        if trainer._kvstore is None and names.is_in_job(os.environ):
            raise CheckpointError(
                "the Trainer has no store, so nobody would agree on a checkpoint: save the net in the script"
            )
        training_state.check_supported(trainer)
        if trainer._params_to_init:
            trainer._init_params()
        for parameter in trainer._params:
            for data in parameter.list_data():
                data.wait_to_read()  # MXNet 1.9.1 does not order the next write after the broadcast
        return trainer._kvstore

    def _is_writer(self) -> bool:
        return self._trainer._kvstore is None or self._trainer._kvstore.rank == 0
