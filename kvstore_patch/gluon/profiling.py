"""Measures a worker's compute time by batch size before training: LBB's profile (Yao et al., Algorithm 1)."""

import time
from collections.abc import Callable

import mxnet as mx

from nalb.batching.lbb import BatchProfile
from nalb.services.batching.sizer import SET_UP

ComputeBatch = Callable[[int], object]  # samples -> their forward and backward pass, without a step
TIMED = 2  # timed runs of a size, after the runs that set it up
Points = list[tuple[int, float]]  # samples, seconds


def measure(work: ComputeBatch, most: int) -> tuple[Points, int]:
    """Times batches of 4, 8, 16, ... samples up to `most` or up to what memory holds; returns the points and the largest size.

    Each size is computed SET_UP times untimed and then TIMED times, of which the fastest counts. In the first runs of a new size
    MXNet sets itself up and gets memory page by page: at 1024 samples of a CNN the first run had 16,000 page faults, the second had
    28,000 and took 3.5 times as long, and the third usually had none. Raises InputError where not one sample fits.
    """
    profile, points = BatchProfile(most), []
    while (size := profile.next_size) is not None:
        try:
            elapsed_s = best_time_s(work, size)
        except (MemoryError, mx.base.MXNetError) as error:
            if not _is_memory(error):
                raise
            profile.out_of_memory()
            continue
        profile.measured(elapsed_s)
        points.append((size, elapsed_s))
    return points, profile.limit


def best_time_s(work: ComputeBatch, size: int) -> float:
    """Seconds of the fastest of TIMED runs, after SET_UP runs that do not count."""
    return min([_run(work, size) for _ in range(SET_UP + TIMED)][SET_UP:])


def _run(work: ComputeBatch, size: int) -> float:
    begun_s = time.monotonic()
    work(size)
    mx.nd.waitall()
    return time.monotonic() - begun_s


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(word in str(error) for word in ("bad_alloc", "memory"))
