"""Measures how long a worker computes, without the time that it waits, and without delaying the training.

MXNet queues operations, so Python code cannot see when computing ends. Therefore a tiny operation that reads every gradient is
queued after the backward pass, ahead of the pushes, and one that reads every parameter after the update. A thread waits for each of
them in turn. Computing begins when the batch is drawn or when the last parameter of the iteration before is updated, whichever is
later, and ends with the last gradient. Gradients are sent meanwhile.
The script's thread runs ahead of the engine, so it may load samples while the engine waits for sums. Its time from the batch to the
pushes, less its own waits for the engine, counts where it is longer.
"""

import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mxnet.base import _LIB
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from nalb.errors import one_line
from nalb.failures import Cause, Failure
from nalb.process.last_words import die


class Instant(NamedTuple):
    """A moment, and the CPU seconds of all threads that this process had used by then (psutil's cpu_times would be coarser)."""

    at_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> "Instant":
        """The present instant, on the monotonic clock."""
        return cls(time.monotonic(), time.process_time())


class Computing(NamedTuple):
    """The measured computing of one iteration."""

    elapsed_s: float
    cpu_share: float  # part of the cores that this process may use, 0 to 1; a quota or a competitor lowers it


OnComputed = Callable[[Computing], None]
WAITS = (
    "MXNDArraySyncCopyFromCPU",
    "MXNDArraySyncCopyToCPU",
    "MXNDArrayWaitToRead",
    "MXNDArrayWaitToWrite",
    "MXNDArrayWaitAll",
)


class _Waited(threading.local):
    """Seconds that this thread has waited for MXNet's engine, in WAITS."""

    seconds = 0.0


_waited = _Waited()


@functools.cache
def _count_waits() -> None:
    """Count every thread's waits from now on, in `_waited`."""
    for name in WAITS:
        setattr(_LIB, name, _counted(getattr(_LIB, name)))


def _counted(wait: Callable[..., int]) -> Callable[..., int]:
    def counted(*arguments: object) -> int:
        start_s = time.monotonic()
        code = wait(*arguments)
        _waited.seconds += time.monotonic() - start_s
        return code

    return counted


class ComputeClock:
    """Times a worker's computing. Call `begin` when a batch is drawn, `gradients` after backward, `parameters` after the update."""

    def __init__(self) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self._begun = self._updated = Instant.now()
        self._waited_s = _waited.seconds  # when the batch was drawn
        self._probes: queue.Queue[tuple[Instant, float, OnComputed | None, NDArray]] = queue.Queue()
        _count_waits()
        threading.Thread(target=self._run, name="nalb-compute-clock", daemon=True).start()

    def begin(self) -> None:
        """Note that a batch is drawn."""
        self._begun, self._waited_s = Instant.now(), _waited.seconds

    def gradients(self, arrays: Sequence[NDArray], on_computed: OnComputed) -> None:
        """Time the batch: call it when its backward pass is queued and nothing that changes the gradients is.

        on_computed: called with the result on the clock's thread.
        """
        busy_s = time.monotonic() - self._begun.at_s - (_waited.seconds - self._waited_s)
        self._probes.put((self._begun, busy_s, on_computed, ndarrays.Probe(arrays)()))

    def parameters(self, arrays: Sequence[NDArray]) -> None:
        """Note that the update is queued; the next computing begins no sooner than it ends."""
        self._probes.put((self._begun, 0.0, None, ndarrays.Probe(arrays)()))

    def settle(self) -> None:
        """Wait until all batches and updates noted so far are computed and reported."""
        self._probes.join()

    def _run(self) -> None:
        try:
            while True:
                self._answer(*self._probes.get())
                self._probes.task_done()
        except Exception as error:  # without reports every worker would wait for the next sizes
            die(Failure(cause=Cause.PROCESS, detail=f"the gradients could not be waited for: {one_line(error)}"), 1)

    def _answer(self, begun: Instant, busy_s: float, on_computed: OnComputed | None, probe: NDArray) -> None:
        probe.wait_to_read()
        if on_computed is None:
            self._updated = Instant.now()
            return
        start, end = max(begun, self._updated), Instant.now()
        if busy_s > (elapsed_s := end.at_s - start.at_s):
            start, elapsed_s = begun, busy_s  # a wait takes no CPU time
        cpu_share = (end.cpu_s - start.cpu_s) / (elapsed_s * self._cores)
        on_computed(Computing(elapsed_s, min(1.0, cpu_share)))
