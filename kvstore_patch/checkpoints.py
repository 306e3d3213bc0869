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
import random
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import mxnet as mx
import numpy as np
from mxnet.kvstore.base import KVStoreBase

from kvstore_patch import fela
from kvstore_patch.gluon import agreement, training_state
from nalb.checkpoints import folder as folders
from nalb.checkpoints import lock
from nalb.checkpoints.file import Checkpoint, Progress, Setting, decode
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
        if every < 0 or keep < 1:
            raise CheckpointError(f"every={every}, keep={keep}: give every 0 or more, and keep 1 or more")
        self._gather = trainer.gather if isinstance(trainer, fela.Trainer) else None
        self._trainer = trainer.gluon if isinstance(trainer, fela.Trainer) else trainer
        self._net, self._every, self._keep, self._seed = net, every, keep, seed
        self._settings: dict[str, Setting] = {"seed": seed, **(settings or {})}
        place = folder or os.environ.get(folders.VARIABLE)
        if every and not place:
            raise CheckpointError(
                f"no folder for checkpoints: nalb launch --checkpoints DIR, or set {folders.VARIABLE}"
            )
        self._folder = Path(place or ".").expanduser().absolute()
        self._node = os.environ.get("NALB_NODE") or socket.gethostname()
        self._damaged: list[Path] = []
        self._claim: IO[bytes] | None = None  # held until this process ends

    def restore(self) -> Progress:
        """Restore the newest whole checkpoint, if there is one, and return its progress, the same on every worker.

        Call it once, before the first step. Files that are damaged or cannot be read are skipped with a warning. Raises
        CheckpointError where the checkpoint belongs to another training.
        """
        if not self._every:
            return Progress()
        store = self._join()
        folders.sweep(self._folder, self._node if store is None else None)  # safe: nobody writes before all have agreed
        found, skipped = folders.newest(self._folder)
        for one in skipped:
            log.warning("checkpoint %s is skipped: %s", one.path, one.why)
        self._damaged = [one.path for one in skipped if one.is_damaged]
        data = found.data if found else None
        if store is not None and store.num_workers > 1:
            data = agreement.agree(store, found.checkpoint.progress.iteration if found else 0, data)
        if data is None:
            self._seed_random(0)
            return Progress()
        checkpoint = found.checkpoint if found and data is found.data else decode(data)
        name = self._folder / folders.file_name(checkpoint.progress.iteration)
        for key in sorted(checkpoint.settings.keys() | self._settings.keys()):
            then, now = checkpoint.settings.get(key), self._settings.get(key)
            if then != now:
                raise CheckpointError(f"checkpoint {name}: {key} is {then} there and {now} here: use another folder")
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
        return bool(self._every) and progress.iteration % self._every == 0

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
        written = folders.write(self._folder, Checkpoint(progress, self._settings, optimizer, arrays), self._node)
        for path in self._damaged:
            if path.name != folders.file_name(progress.iteration):
                path.unlink(missing_ok=True)
        self._damaged = []
        folders.prune(written, self._keep)

    def _seed_random(self, iteration: int) -> None:
        """Seed the random generators of MXNet, NumPy and Python. It takes milliseconds: too long for every iteration."""
        store = self._trainer._kvstore
        words = np.random.SeedSequence([self._seed, iteration, store.rank if store else 0]).generate_state(1)
        mx.random.seed(int(words[0]) & 0x7FFFFFFF)
        np.random.seed(int(words[0]))
        random.seed(int(words[0]))

    def _join(self) -> KVStoreBase | None:
        """Claim the folder for this job, wait for the initial parameters, and return the Trainer's store."""
        self._claim = self._claim or lock.claim(self._folder, _job())
        trainer = self._trainer
        try:
            if not trainer._kv_initialized:
                trainer._init_kvstore()
        except mx.gluon.parameter.DeferredInitializationError:
            raise CheckpointError("the net's shapes are not known yet: let it see one batch before restore()") from None
        training_state.check_supported(trainer)
        if trainer._params_to_init:
            trainer._init_params()
        for parameter in trainer._params:
            for data in parameter.list_data():
                data.wait_to_read()  # MXNet 1.9.1 does not order the next write after the broadcast
        return trainer._kvstore

    def _is_writer(self) -> bool:
        return self._trainer._kvstore is None or self._trainer._kvstore.rank == 0


def _job() -> str:
    """The job's name in the folder's lock: the launcher's name for it, else its scheduler's address, else this process."""
    if name := os.environ.get(lock.VARIABLE):
        return name
    if host := os.environ.get("DMLC_PS_ROOT_URI"):
        return f"the job of scheduler {host}:{os.environ.get('DMLC_PS_ROOT_PORT')}"
    return f"process {os.getpid()} on {socket.gethostname()}"
