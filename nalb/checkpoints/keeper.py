"""A training's checkpoints in one folder, whatever its framework: when one is due, which is the newest, and how it is written."""

import logging
import os
import random
import secrets
import socket
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from nalb.checkpoints import folder as folders
from nalb.checkpoints import lock
from nalb.checkpoints.file import Checkpoint, OptimizerState, Progress, Setting, decode
from nalb.errors import CheckpointError
from nalb.process.address import LOOPBACK, own_name

# takes the iteration and the content of a process's own file, (0, None) where it has none; returns the content of the newest one
Agree = Callable[[int, bytes | None], bytes | None]

log = logging.getLogger(__name__)
_OWN = secrets.token_hex(4)  # in containers, process ids and names of hosts may be alike
_claims: dict[Path, IO[bytes]] = {}  # by folder, held until this process ends
_writers: "dict[Path, weakref.ref[Keeper]]" = {}  # by folder, the last one of this process that wrote there


class Keeper:
    """One process's part in it. All processes of the job make one alike."""

    def __init__(
        self,
        every: int,
        folder: str | Path | None,
        keep: int,
        seed: int,
        settings: Mapping[str, Setting] | None,
    ):
        """The arguments are those of a framework's Checkpoints. Raises CheckpointError."""
        if every < 0 or keep < 1:
            raise CheckpointError(f"every={every}, keep={keep}: give every 0 or more, and keep 1 or more")
        self.every, self._keep, self._seed = every, keep, seed
        self._settings: dict[str, Setting] = {"seed": seed, **(settings or {})}
        place = folder or os.environ.get(folders.VARIABLE)
        if every and not place:
            raise CheckpointError(
                f"no folder for checkpoints: nalb launch --checkpoints DIR, or set {folders.VARIABLE}"
            )
        self.folder = Path(place or ".").expanduser().absolute()
        self._node = own_name(os.environ)
        self._damaged: list[Path] = []

    def is_due(self, progress: Progress) -> bool:
        """Whether a checkpoint is due at this progress."""
        return bool(self.every) and progress.iteration % self.every == 0

    def claim(self, meeting: str, host: str, port: str) -> None:
        """Claim the folder for this job, until this process ends. Raises CheckpointError where another job has it.

        Without the launcher's name for it, the job is named by where its processes meet. A loopback address is any host's, so the
        host is named too. meeting: who is there, such as 'scheduler'. host, port: the environment variables that tell the address.
        """
        if self.folder in _claims:
            return
        job = f"process {os.getpid()} on {socket.gethostname()} ({_OWN})"
        if address := os.environ.get(host):
            job = f"the job of {meeting} {address}:{os.environ.get(port)}"
            job += f" on {socket.gethostname()}" if address.startswith(LOOPBACK) else ""
        claim = _claims[self.folder] = lock.claim(self.folder, os.environ.get(lock.VARIABLE) or job)
        os.register_at_fork(after_in_child=claim.close)  # else a child that outlives this process would keep the lock

    def find(self, is_in_job: bool, agree: Agree | None = None) -> Checkpoint | None:
        """Find the newest whole checkpoint; files that cannot be used are skipped with a warning. Raises CheckpointError.

        is_in_job: whether other processes call this too, and none of them writes before all have agreed. agree: lets all go on from
        the newest one that any of them has; None: this process goes on from its own.
        """
        folders.sweep(self.folder, None if is_in_job else self._node)
        found, skipped = folders.newest(self.folder)
        for one in skipped:
            log.warning("checkpoint %s is skipped: %s", one.path, one.why)
        self._damaged = [one.path for one in skipped if one.is_damaged]
        if agree is None:
            return found.checkpoint if found else None
        data = agree(found.checkpoint.progress.iteration, found.data) if found else agree(0, None)
        if data is None:
            return None
        return found.checkpoint if found and data is found.data else decode(data)

    def path_of(self, checkpoint: Checkpoint) -> Path:
        """Where the checkpoint lies, or would lie."""
        return self.folder / folders.file_name(checkpoint.progress.iteration)

    def check(self, checkpoint: Checkpoint, **more: tuple[Setting, Setting]) -> None:
        """Raise CheckpointError where the checkpoint's settings are not this training's. more: further ones, (there, here)."""
        then = checkpoint.settings | {key: there for key, (there, _) in more.items()}
        now = self._settings | {key: here for key, (_, here) in more.items()}
        for key in sorted(then.keys() | now.keys()):
            if then.get(key) != now.get(key):
                raise CheckpointError(
                    f"checkpoint {self.path_of(checkpoint)}: {key} is {then.get(key)} there and {now.get(key)} here: "
                    "use another folder"
                )

    def write(self, progress: Progress, optimizer: OptimizerState, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Write a checkpoint, and remove those that it replaces. Raises CheckpointError; older ones then stay."""
        writer = _writers[self.folder]() if self.folder in _writers else None
        if writer not in (self, None):
            raise CheckpointError(
                f"{self.folder}: this script's other Checkpoints write there: give each a folder of its own"
            )
        _writers[self.folder] = weakref.ref(self)
        written = folders.write(self.folder, Checkpoint(progress, self._settings, optimizer, arrays), self._node)
        for path in self._damaged:
            if path.name != folders.file_name(progress.iteration):
                path.unlink(missing_ok=True)
        self._damaged = []
        folders.prune(written, self._keep)

    def seed_random(self, iteration: int, rank: int) -> int:
        """Seed the random generators of NumPy and Python; returns the same seed for the framework's, of 32 bits."""
        (word,) = np.random.SeedSequence([self._seed, iteration, rank]).generate_state(1).tolist()
        np.random.seed(word)
        random.seed(word)
        return int(word)
