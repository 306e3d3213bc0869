"""How long a worker computes, without what it waits for and without holding anything up.

MXNet queues operations; nothing that Python sees ends when the computing does. So after the backward pass a tiny operation
that reads every gradient is queued, ahead of the pushes, and after the update one that reads every parameter. A thread
waits for each of the two in turn: computing lasts from the batch, or the last parameter of the iteration before,
whichever came later, to the last gradient. Gradients travel meanwhile as ever.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from nalb.errors import one_line
from nalb.failures import Cause, Failure
from nalb.process.last_words import die


class Instant(NamedTuple):
    """A moment, and the CPU seconds that this process had used by then (all threads; what psutil's cpu_times reads coarsely)."""

    at_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> "Instant":
        """This one, on the monotonic clock."""
        return cls(time.monotonic(), time.process_time())


class Computing(NamedTuple):
    """One iteration's computing."""

    elapsed_s: float
    cpu_share: float  # of the cores that this process may use; a quota or a competitor lowers it


OnComputed = Callable[[Computing], None]


class ComputeClock:
    """`begin` when a batch is handed out, `gradients` after backward, `parameters` after the update."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self._begun = self._updated = Instant.now()
        self._probes: queue.Queue[tuple[Instant, OnComputed | None, NDArray]] = queue.Queue()
        threading.Thread(target=self._run, name="nalb-compute-clock", daemon=True).start()

    def begin(self) -> None:
        """A batch is there."""
        self._begun = Instant.now()

    def gradients(self, arrays: Sequence[NDArray], on_computed: OnComputed) -> None:
        """The backward pass of the batch is queued, nothing that changes the gradients is; answers on a thread."""
        self._probes.put((self._begun, on_computed, ndarrays.Probe(arrays)()))

    def parameters(self, arrays: Sequence[NDArray]) -> None:
        """The update is queued."""
        self._probes.put((self._begun, None, ndarrays.Probe(arrays)()))

    def settle(self) -> None:
        """Wait until whatever was queued so far has been computed and answered."""
        self._probes.join()

    def _run(self) -> None:
        try:
            while True:
                self._answer(*self._probes.get())
                self._probes.task_done()
        except Exception as error:  # without reports every worker would wait for the next sizes
            die(Failure(cause=Cause.PROCESS, detail=f"the gradients could not be waited for: {one_line(error)}"), 1)

    def _answer(self, begun: Instant, on_computed: OnComputed | None, probe: NDArray) -> None:
        probe.wait_to_read()
        if on_computed is None:
            self._updated = Instant.now()
            return
        start, end = max(begun, self._updated), Instant.now()
        elapsed_s = end.at_s - start.at_s
        cpu_share = (end.cpu_s - start.cpu_s) / (elapsed_s * self._cores)
        on_computed(Computing(elapsed_s, min(1.0, cpu_share)))
