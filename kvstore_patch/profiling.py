"""A worker's compute time by batch size, measured before training: LBB's profile (Yao et al., Algorithm 1)."""

import time
from collections.abc import Callable

import mxnet as mx

from nalb.batching.lbb import Profile

Work = Callable[[int], object]  # forward and backward pass of so many samples, without a step
Points = list[tuple[int, float]]  # samples, seconds


def measure(work: Work, most: int) -> tuple[Points, int]:
    """Times 4, 8, 16, ... samples up to `most`, or what memory holds; returns the points and the largest size.

    Each size is computed twice and the second one timed: MXNet sets itself up for a new size. Raises InputError where
    not one sample fits.
    """
    profile, points = Profile(most), []
    while (size := profile.next_size) is not None:
        try:
            _run(work, size)
            elapsed_s = _run(work, size)
        except (MemoryError, mx.base.MXNetError) as error:
            if not _is_memory(error):
                raise
            profile.out_of_memory()
            continue
        profile.measured(elapsed_s)
        points.append((size, elapsed_s))
    return points, profile.limit


def _run(work: Work, size: int) -> float:
    begun_s = time.monotonic()
    work(size)
    mx.nd.waitall()
    return time.monotonic() - begun_s


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(word in str(error) for word in ("bad_alloc", "memory"))
