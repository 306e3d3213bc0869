"""Measures a rank's computing time by batch size before training: LBB's profile (Yao et al., Algorithm 1)."""

import time
from collections.abc import Callable

import torch

from nalb.batching.lbb import BatchProfile
from nalb.services.batching.sizer import SET_UP

Work = Callable[[int], object]  # samples -> their forward and backward pass, outside DDP and without a step
TIMED = 2  # timed runs of a size, after the runs that set it up
Points = list[tuple[int, float]]  # samples, seconds


def measure(work: Work, most: int) -> tuple[Points, int]:
    """Time batches of 4, 8, 16, ... samples up to `most` or up to what memory holds; return the points and the largest size.

    Each size is computed SET_UP times untimed and then TIMED times, of which the fastest counts. Raises InputError where not one
    sample fits.
    """
    profile, points = BatchProfile(most), []
    while (size := profile.next_size) is not None:
        try:
            elapsed_s = min([_run(work, size) for _ in range(SET_UP + TIMED)][SET_UP:])
        except (MemoryError, torch.cuda.OutOfMemoryError):
            profile.out_of_memory()
            continue
        profile.measured(elapsed_s)
        points.append((size, elapsed_s))
    return points, profile.limit


def _run(work: Work, size: int) -> float:
    begun_s = time.monotonic()
    work(size)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.monotonic() - begun_s
