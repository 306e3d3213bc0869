"""Measures a worker's compute time by batch size before training, for LBB's profile (nalb/services/batching/profiling.py)."""

import time
from collections.abc import Callable

import mxnet as mx

from nalb.services.batching import profiling
from nalb.services.batching.profiling import Points

ComputeBatch = Callable[[int], object]  # samples -> their forward and backward pass, without a step


def measure(work: ComputeBatch, most: int) -> tuple[Points, int]:
    """Times batches of 4, 8, 16, ... samples, as profiling.measure does. Raises InputError where not one sample fits.

    In the first runs of a new size MXNet sets itself up and gets memory page by page: at 1024 samples of a CNN the first run had
    16,000 page faults, the second had 28,000 and took 3.5 times as long, and the third usually had none.
    """
    return profiling.measure(lambda size: _run_s(work, size), most, _is_memory)


def best_time_s(work: ComputeBatch, size: int) -> float:
    """Seconds of the fastest of some runs, after those that do not count."""
    return profiling.best_time_s(lambda samples: _run_s(work, samples), size)


def _run_s(work: ComputeBatch, size: int) -> float:
    begun_s = time.monotonic()
    work(size)
    mx.nd.waitall()
    return time.monotonic() - begun_s


def _is_memory(error: Exception) -> bool:
    if isinstance(error, mx.base.MXNetError):
        return any(word in str(error) for word in ("bad_alloc", "memory"))
    return isinstance(error, MemoryError)
