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

All ranks have the same weights, so only rank 0 writes, and values that are sharded over ranks are refused. All ranks go on from
the newest checkpoint that any of them has. A file is one of nalb's (nalb/checkpoints/file.py), in which the state dicts are one
array of bytes, as torch.save writes them. They are read with weights_only=True: nothing in a file is executed. That reads tensors
and values of Python's own types alone. So NumPy's numbers are written as Python's own, and what could not be read back is refused
when it is to be written.

Where gradients are rounded on their way (`--precision`), each rank keeps what that took, and writes it to a file of its own beside
the checkpoint. A rank that does not find its file, as on another machine, has lost one rounding.

A checkpoint does not hold the states of random generators. Instead every rank seeds them anew from (seed, iteration, rank) at each
checkpoint that is written or restored: the numbers drawn after it are the same in both cases.
"""

import io
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nalb.checkpoints.file import DIGEST_BYTES, Checkpoint, OptimizerState, Progress, Setting
from nalb.checkpoints.keeper import Keeper
from nalb.errors import CheckpointError, one_line
from nalb.plane.front import Front
from nalb.torch.backend import current_job
from nalb.torch.gathering import device_of_numbers, rows_of_all
from nalb.torch.sharding import name_sharded

STATES = "torch"  # the array of the state dicts' bytes
KEPT = re.compile(r"kept-\d+-(\d+)\.npz(\.part)?")  # what rounding took on a rank; residuals.py writes it

log = logging.getLogger(__name__)


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
        self._keeper = Keeper(every, folder, keep, seed, settings)
        net = model.module if isinstance(model, DistributedDataParallel) else model
        self._parts: list[Stateful] = [net, optimizer, *others]
        self._kind = type(optimizer).__name__
        is_joined = dist.is_available() and dist.is_initialized()
        self._rank: int = dist.get_rank() if is_joined else 0
        self._ranks: int = dist.get_world_size() if is_joined else 1
        self._kept_files = keep + 1  # the newest checkpoint may be damaged

    def restore(self) -> Progress:
        """Restore the newest whole checkpoint, if there is one, and return its progress, the same on every rank.

        Call it once, before the first step. Files that are damaged or cannot be read are skipped with a warning. Raises
        CheckpointError where the checkpoint belongs to another training, or parameters are sharded over ranks.
        """
        if not self._keeper.every:
            return Progress()
        self._refuse_sharded()
        self._claim_folder()
        is_in_job = self._ranks > 1
        checkpoint = self._keeper.find(is_in_job, self._agree if is_in_job else None)
        if checkpoint is None:
            self._seed_random(0)
            return Progress()
        self._apply(checkpoint)
        if self._rank == 0:
            log.warning("goes on from checkpoint %s", self._keeper.path_of(checkpoint))
        self._seed_random(checkpoint.progress.iteration)
        if (front := self._front) is not None:
            front.read_kept(str(self._kept_path(checkpoint.progress.iteration)))
        return checkpoint.progress

    def after_step(self, progress: Progress) -> None:
        """Save if a checkpoint is due. progress: where training goes on from here."""
        if self.is_due(progress):
            self.save(progress)

    def is_due(self, progress: Progress) -> bool:
        """Whether a checkpoint is due at this progress."""
        return self._keeper.is_due(progress)

    def save(self, progress: Progress) -> None:
        """Save now. Call it on every rank; rank 0 writes.

        Raises CheckpointError where writing fails, or parameters are sharded over ranks. Older checkpoints stay.
        """
        self._refuse_sharded()  # on every rank, though one alone writes
        self._claim_folder()
        if self._rank == 0:
            self._write(progress)
        if (front := self._front) is not None:
            self._write_kept(front, progress.iteration)
        self._seed_random(progress.iteration)

    def _refuse_sharded(self) -> None:
        """Raise CheckpointError where rank 0 has not all values. It is alike on all ranks, so each of them says why it ends."""
        if self._ranks > 1 and (name := next(filter(None, map(name_sharded, self._parts)), None)):
            raise CheckpointError(
                f"{name} is sharded over ranks, of which one writes: use torch.distributed.checkpoint"
            )

    @property
    def _front(self) -> Front | None:
        """This rank's end of the plane; None where it has none, or has left the job."""
        job = current_job()
        return None if job is None else job.front

    def _write(self, progress: Progress) -> None:
        states = [_with_own_numbers(part.state_dict()) for part in self._parts]
        if (file := _saved(states)) is None:
            named = (_odd_one(state, type(part).__name__) for part, state in zip(self._parts, states, strict=True))
            odd = next(filter(None, named), "these states")
            raise CheckpointError(
                f"a checkpoint cannot hold {odd}: give tensors, numbers and texts, or allow its type by "
                "torch.serialization.add_safe_globals",
                progress.iteration,
            )
        arrays = {STATES: np.frombuffer(file.getbuffer(), np.uint8)}
        self._keeper.write(progress, OptimizerState(self._kind), arrays)

    def _write_kept(self, front: Front, iteration: int) -> None:
        """Have this rank's file written, and remove those that no checkpoint needs any more."""
        path = self._kept_path(iteration)
        front.write_kept(str(path))
        sweep_kept(path, self._rank, self._ranks, self._kept_files)

    def _kept_path(self, iteration: int) -> Path:
        return self._keeper.folder / f"kept-{iteration:012}-{self._rank}.npz"

    def _apply(self, checkpoint: Checkpoint) -> None:
        name = self._keeper.path_of(checkpoint)
        self._keeper.check(checkpoint, optimizer=(checkpoint.optimizer.kind, self._kind))
        if STATES not in checkpoint.arrays:
            raise CheckpointError(f"checkpoint {name} is of an MXNet training: use another folder")
        file = io.BytesIO(checkpoint.arrays[STATES].tobytes())
        try:
            states = torch.load(file, map_location="cpu", weights_only=True)
        except Exception:  # the file is whole: its digest says so
            raise CheckpointError(
                f"checkpoint {name} holds types that torch does not read with weights_only=True: use another folder, or allow "
                "them by torch.serialization.add_safe_globals"
            ) from None
        try:
            for part, state in zip(self._parts, states, strict=True):
                part.load_state_dict(state)
        except Exception as error:  # of any part's load_state_dict, which may be the script's own
            why = one_line(error).rstrip(".")
            raise CheckpointError(f"checkpoint {name} is of another training ({why}): use another folder") from None

    def _agree(self, iteration: int, data: bytes | None) -> bytes | None:
        """The newest file of all ranks, the same on each rank; None where no rank has one.

        data: this rank's newest file, saved after `iteration` steps; None: it has none.
        """
        own = torch.zeros(2 + DIGEST_BYTES, dtype=torch.int64)
        if data is not None:
            own[:] = torch.tensor([iteration + 1, len(data), *data[-DIGEST_BYTES:]])
        table = rows_of_all(own, self._ranks)
        files = {rank: one for rank, one in enumerate(table) if one[0]}
        if not files:
            return None
        holder = max(files, key=lambda rank: (files[rank][0], -rank))
        if all(one == files[holder] for one in table):
            return data
        sent = torch.empty(files[holder][1], dtype=torch.uint8)
        if data is not None and self._rank == holder:
            sent = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        sent = sent.to(device_of_numbers())
        dist.broadcast(sent, holder)
        found: bytes = sent.cpu().numpy().tobytes()
        return found

    def _seed_random(self, iteration: int) -> None:
        """Seed the random generators of PyTorch, NumPy and Python."""
        torch.manual_seed(self._keeper.seed_random(iteration, self._rank))

    def _claim_folder(self) -> None:
        self._keeper.claim("master", "MASTER_ADDR", "MASTER_PORT")


def sweep_kept(written: Path, rank: int, ranks: int, keep: int) -> None:
    """Remove a rank's files but for the newest `keep`, and what it left unfinished; rank 0 also those of ranks that are gone.

    written: the rank's newest file.
    """
    found = [(one, int(match[1]), match[2]) for one in written.parent.iterdir() if (match := KEPT.fullmatch(one.name))]
    own = [one for one, whose, unfinished in found if whose == rank and not unfinished and one != written]
    # by age: the newest by number may be of checkpoints that were damaged, and came before this one
    own.sort(key=lambda one: (one.stat().st_mtime_ns, one.name), reverse=True)
    left = [one for one, whose, unfinished in found if (whose == rank and unfinished) or (rank == 0 and whose >= ranks)]
    for one in (*own[keep - 1 :], *left):
        one.unlink(missing_ok=True)


def _with_own_numbers(value: Any) -> Any:
    """The state with Python's own numbers in place of NumPy's. Times stay: `item` would make some of them whole numbers."""
    if isinstance(value, np.generic) and value.dtype.kind not in "mM":
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_with_own_numbers, value))
    if not isinstance(value, dict):
        return value
    whole = copy(value)  # with its attributes: a module's state has its version there
    whole.clear()
    whole.update((_with_own_numbers(key), _with_own_numbers(one)) for key, one in value.items())
    return whole


def _saved(value: Any) -> io.BytesIO | None:
    """The value as torch.save writes it; None where torch would not read that with weights_only=True."""
    file = io.BytesIO()
    try:
        torch.save(value, file)
    except MemoryError:
        raise
    except Exception:  # some values cannot be pickled
        return None
    for device in ("meta", "cpu"):  # for meta torch skips tensors' values, but meta lacks some layouts
        file.seek(0)
        with suppress(Exception):
            torch.load(file, map_location=device, weights_only=True)
            return file
    return None


def _odd_one(value: Any, name: str) -> str | None:
    """Name what cannot be read back, this value or one in it, for people; None: all can be."""
    if _saved(value) is not None:
        return None
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    inner = (_odd_one(one, f"{name}[{key!r}]") for key, one in pairs)
    return next(filter(None, inner), f"{name} ({type(value).__name__})")
