"""Checkpoints of a PyTorch training, alone or in a job of several ranks, under nalb or any other backend.

    checkpoints = Checkpoints(model, optimizer, every=100, seed=1)
    start = checkpoints.restore()                                   # Progress(0, 0, 0) where there is no checkpoint
    iteration = start.iteration
    for epoch in range(start.epoch, epochs):
        for batch in range(start.batch if epoch == start.epoch else 0, batches):
            ...
            optimizer.step()
            iteration += 1
            checkpoints.after_step(Progress(iteration, epoch, batch + 1))

All ranks have the same weights, so only rank 0 writes. All ranks go on from the newest checkpoint that any of them has. A file is
one of nalb's (nalb/checkpoints/file.py), in which the state dicts are one array of bytes, as torch.save writes them. They are read
with weights_only=True: nothing in a file is executed.

A checkpoint does not hold the states of random generators. Instead every rank seeds them anew from (seed, iteration, rank) at each
checkpoint that is written or restored: the numbers drawn after it are the same in both cases.
"""

import io
import logging
import os
import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nalb.checkpoints import folder as folders
from nalb.checkpoints import lock
from nalb.checkpoints.file import DIGEST_BYTES, Checkpoint, OptimizerState, Progress, Setting, decode
from nalb.errors import CheckpointError, one_line

STATES = "torch"  # the array of the state dicts' bytes

log = logging.getLogger(__name__)
_claims: dict[Path, IO[bytes]] = {}  # by folder


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler."""

    def state_dict(self) -> Any:
        """Its state."""
        ...

    def load_state_dict(self, state_dict: Any) -> object:
        """Take the state."""
        ...


class Checkpoints:
    """Saves and restores model, optimizer and progress. Every rank makes one alike, after `init_process_group`."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        every: int,
        folder: str | Path | None = None,
        keep: int = 2,
        seed: int = 0,
        settings: Mapping[str, Setting] | None = None,
        others: Sequence[Stateful] = (),
    ):
        """model, optimizer: their state is saved. The model may be in DistributedDataParallel.

        every: steps between two checkpoints; 0: none are written or read. folder: default NALB_CHECKPOINTS, which
        `nalb launch` sets. keep: how many of the newest checkpoints stay. seed: of the random generators. settings: values by
        name, such as the global batch size, that must be the same when training goes on. others: what else has a state, such as a
        learning rate's schedule or a GradScaler. Raises CheckpointError.
        """
        if every < 0 or keep < 1:
            raise CheckpointError(f"every={every}, keep={keep}: give every 0 or more, and keep 1 or more")
        net = model.module if isinstance(model, DistributedDataParallel) else model
        self._parts: list[Stateful] = [net, optimizer, *others]
        self._kind = type(optimizer).__name__
        self._every, self._keep, self._seed = every, keep, seed
        self._settings: dict[str, Setting] = {"seed": seed, **(settings or {})}
        place = folder or os.environ.get(folders.VARIABLE)
        if every and not place:
            raise CheckpointError(
                f"no folder for checkpoints: nalb launch --checkpoints DIR, or set {folders.VARIABLE}"
            )
        self._folder = Path(place or ".").expanduser().absolute()
        self._node = os.environ.get("NALB_NODE") or socket.gethostname()
        is_joined = dist.is_available() and dist.is_initialized()
        self._rank: int = dist.get_rank() if is_joined else 0
        self._ranks: int = dist.get_world_size() if is_joined else 1
        self._damaged: list[Path] = []

    def restore(self) -> Progress:
        """Restore the newest whole checkpoint, if there is one, and return its progress, the same on every rank.

        Call it once, before the first step. Files that are damaged or cannot be read are skipped with a warning. Raises
        CheckpointError where the checkpoint belongs to another training.
        """
        if not self._every:
            return Progress()
        self._claim_folder()
        folders.sweep(self._folder, self._node if self._ranks > 1 else None)  # nobody writes before all have agreed
        found, skipped = folders.newest(self._folder)
        for one in skipped:
            log.warning("checkpoint %s is skipped: %s", one.path, one.why)
        self._damaged = [one.path for one in skipped if one.is_damaged]
        data = found.data if found else None
        if self._ranks > 1:
            data = self._agree(found.checkpoint.progress.iteration if found else 0, data)
        if data is None:
            self._seed_random(0)
            return Progress()
        checkpoint = found.checkpoint if found and data is found.data else decode(data)
        self._apply(checkpoint)
        if self._rank == 0:
            log.warning("goes on from checkpoint %s", self._path(checkpoint))
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
        """Save now. Call it on every rank; rank 0 writes. Raises CheckpointError where writing fails; older checkpoints stay."""
        self._claim_folder()
        if self._rank == 0:
            self._write(progress)
        self._seed_random(progress.iteration)

    def _write(self, progress: Progress) -> None:
        file = io.BytesIO()
        torch.save([part.state_dict() for part in self._parts], file)
        arrays = {STATES: np.frombuffer(file.getbuffer(), np.uint8)}
        checkpoint = Checkpoint(progress, self._settings, OptimizerState(self._kind), arrays)
        written = folders.write(self._folder, checkpoint, self._node)
        for path in self._damaged:
            if path.name != folders.file_name(progress.iteration):
                path.unlink(missing_ok=True)
        self._damaged = []
        folders.prune(written, self._keep)

    def _apply(self, checkpoint: Checkpoint) -> None:
        name = self._path(checkpoint)
        then = checkpoint.settings | {"optimizer": checkpoint.optimizer.kind}
        now = self._settings | {"optimizer": self._kind}
        for key in sorted(then.keys() | now.keys()):
            if then.get(key) != now.get(key):
                raise CheckpointError(
                    f"checkpoint {name}: {key} is {then.get(key)} there and {now.get(key)} here: use another folder"
                )
        if STATES not in checkpoint.arrays:
            raise CheckpointError(f"checkpoint {name} is of an MXNet training: use another folder")
        try:
            states = torch.load(io.BytesIO(checkpoint.arrays[STATES].tobytes()), map_location="cpu", weights_only=True)
            for part, state in zip(self._parts, states, strict=True):
                part.load_state_dict(state)
        except Exception as error:  # of torch's reader, or of any part's load_state_dict, which may be the script's own
            raise CheckpointError(f"checkpoint {name} is of another training ({one_line(error)})") from None

    def _path(self, checkpoint: Checkpoint) -> Path:
        return self._folder / folders.file_name(checkpoint.progress.iteration)

    def _agree(self, iteration: int, data: bytes | None) -> bytes | None:
        """The newest file of all ranks, the same on each rank; None where no rank has one.

        data: this rank's newest file, saved after `iteration` steps; None: it has none.
        """
        own = None if data is None else (iteration, data[-DIGEST_BYTES:])
        table: list[tuple[int, bytes] | None] = [None] * self._ranks
        dist.all_gather_object(table, own)
        files = {rank: one for rank, one in enumerate(table) if one is not None}
        if not files:
            return None
        holder = max(files, key=lambda rank: (files[rank][0], -rank))
        if all(one == files[holder] for one in table):
            return data
        sent = [data if self._rank == holder else None]
        dist.broadcast_object_list(sent, holder)
        return sent[0]

    def _seed_random(self, iteration: int) -> None:
        """Seed the random generators of PyTorch, NumPy and Python."""
        words = np.random.SeedSequence([self._seed, iteration, self._rank]).generate_state(1)
        torch.manual_seed(int(words[0]))
        np.random.seed(int(words[0]))
        random.seed(int(words[0]))

    def _claim_folder(self) -> None:
        """Claim the folder for this job, until this process ends."""
        if self._folder not in _claims:
            _claims[self._folder] = lock.claim(self._folder, _job())


def _job() -> str:
    """The job's name in the folder's lock: the launcher's name for it, else its master's address, else this process."""
    if name := os.environ.get(lock.VARIABLE):
        return name
    if host := os.environ.get("MASTER_ADDR"):
        return f"the job of master {host}:{os.environ.get('MASTER_PORT')}"
    return f"process {os.getpid()} on {socket.gethostname()}"
