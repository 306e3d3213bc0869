"""Finds the job's variables that a worker's processes lack: wrappers such as `env -i`, sudo or a login shell drop them.

The environment of an ended process cannot be read, so the launcher looks repeatedly until all processes have met.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nalb.errors import listed
from nalb.launch.processes import LocalProcess
from nalb.process.guardian import VARIABLE, processes

EVERY_S = 0.5  # a look reads the states of all processes on this machine; importing mxnet takes longer than this
NAMED = 4  # a message names at most this many variables


class LostVariables:
    """The variables that each worker's processes lacked at the last look that found some of them alive."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}  # by slug
        self._looked_s = 0.0

    def look(self, workers: Sequence[LocalProcess]) -> None:
        """Look at the workers' processes, unless the last look was less than EVERY_S ago."""
        if time.monotonic() - self._looked_s < EVERY_S:
            return
        self._looked_s = time.monotonic()
        parents = {pid: parent for pid, (parent, has_ended) in processes().items() if not has_ended}
        for worker in workers:
            if worker.popen.pid in parents:
                wanted = {VARIABLE, *(name for name in worker.spec.environment if name.startswith(("DMLC_", "NALB_")))}
                found = [_lacks(pid, wanted) for pid in _descent(worker.popen.pid, parents)]
                told = [text for text in found if text is not None]
                if told:
                    self._found[worker.spec.slug] = next(filter(None, told), "")

    def of(self, worker: LocalProcess) -> str:
        """A remark on the worker's lost variables, to append to its failure; empty where no variable is lost."""
        found = self._found.get(worker.spec.slug)
        return f" ({found}: have the command pass its environment on)" if found else ""


def _descent(top: int, parents: Mapping[int, int]) -> list[int]:
    """The ids of the process `top` and of all its descendants. `parents` gives each process's parent."""
    pids = [top]
    for pid in pids:  # the list grows while it is read
        pids += [child for child, parent in parents.items() if parent == pid]
    return pids


def _lacks(pid: int, wanted: set[str]) -> str | None:
    """A text that says what a living process lacks, empty if it lacks nothing; None where the process is ending."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace").split("\0")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").replace("\0", " ").strip()
    except PermissionError:
        return f"process {pid} is another user's, as behind sudo, which drops LD_PRELOAD, DMLC_* and NALB_*"
    except OSError:
        return None
    if not command:  # the process is ending and its environment is gone
        return None
    lost = sorted(wanted - {word.partition("=")[0] for word in words})
    return f"its process {pid}, {command[:60]!r}, lacks {listed(lost, NAMED)}" if lost else ""
