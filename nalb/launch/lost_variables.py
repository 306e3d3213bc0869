"""Which of the job's variables a worker's processes lack: wrappers as `env -i`, sudo or a login shell drop them.

A process that has ended cannot be asked, so the launcher looks again and again until all have met.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nalb.errors import listed
from nalb.launch.processes import LocalProcess
from nalb.process.guardian import processes

EVERY_S = 0.5  # a look reads the states of all processes of this machine; an import of mxnet takes longer
NAMED = 4  # of the variables


class LostVariables:
    """What the last look that met a worker's living processes found, by worker."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}  # by slug
        self._looked_s = 0.0

    def look(self, workers: Sequence[LocalProcess]) -> None:
        """Look, if the last time was long enough ago."""
        if time.monotonic() - self._looked_s < EVERY_S:
            return
        self._looked_s = time.monotonic()
        parents = {pid: parent for pid, (parent, has_ended) in processes().items() if not has_ended}
        for worker in workers:
            if worker.popen.pid in parents:
                wanted = {name for name in worker.spec.environment if name.startswith(("DMLC_", "NALB_"))}
                found = [_lacks(pid, wanted) for pid in _descent(worker.popen.pid, parents)]
                told = [text for text in found if text is not None]
                if told:
                    self._found[worker.spec.slug] = next(filter(None, told), "")

    def of(self, worker: LocalProcess) -> str:
        """What to add to why it failed; nothing where all was there."""
        found = self._found.get(worker.spec.slug)
        return f" ({found}: have the command pass its environment on)" if found else ""


def _descent(top: int, parents: Mapping[int, int]) -> list[int]:
    """A process and all that descend from it."""
    pids = [top]
    for pid in pids:  # which grows
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


def _lacks(pid: int, wanted: set[str]) -> str | None:
    """What a living process lacks, in words, or that it lacks nothing; None where it ends meanwhile."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ").strip()
    except PermissionError:
        return f"process {pid} is another user's, as behind sudo, which drops LD_PRELOAD, DMLC_* and NALB_*"
    except OSError:
        return None
    if not command:  # it ends: what it had is gone from its memory
        return None
    lost = sorted(wanted - {word.partition("=")[0] for word in words})
    return f"its process {pid}, {command[:60]!r}, lacks {listed(lost, NAMED)}" if lost else ""
