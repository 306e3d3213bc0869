"""Measures a rank's computing time by batch size before training, for LBB's profile (nalb/services/batching/profiling.py)."""

import time
from collections.abc import Callable

import torch

from nalb.services.batching import profiling
from nalb.services.batching.profiling import Points

Work = Callable[[int], object]  # samples -> their forward and backward pass, outside DDP and without a step


def measure(work: Work, most: int) -> tuple[Points, int]:
    """Time batches of 4, 8, 16, ... samples, as profiling.measure does. Raises InputError where not one sample fits."""

    def run_s(size: int) -> float:
        begun_s = time.monotonic()
        work(size)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.monotonic() - begun_s

    return profiling.measure(run_s, most, lambda error: isinstance(error, MemoryError | torch.cuda.OutOfMemoryError))
