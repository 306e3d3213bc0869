"""Divides a batch into parts of one size, whose gradients a script adds up.

A framework sets itself up for each new size of a batch, and gets memory for each new largest one. Where every part has the same
size, that happens once, whatever sizes the batches have. Pure.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from nalb.errors import InputError

__all__ = ["micro_batches"]  # what nalb.mxnet hands on

Ints = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]


def micro_batches(chosen: Sequence[int], size: int) -> Iterator[tuple[Ints, Weights]]:
    """The parts of a batch: `size` samples each, and the weight of each sample.

    chosen: the batch's samples, at least one. Weights are 1. Where samples do not fill the last part, it has some of them again
    with weight 0. So the weighted sum over all parts is the sum over the batch. Raises InputError for a size below 1.
    """
    if size < 1:
        raise InputError(f"micro-batches of {size} samples: give 1 or more")
    count = len(chosen)
    for start in range(0, count, size):
        place = np.arange(start, start + size)
        yield np.asarray(chosen, dtype=np.int64)[place % count], (place < count).astype(np.float32)
