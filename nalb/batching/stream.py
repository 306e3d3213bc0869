"""Decides which samples are in which batch, for sizes that may change at any time: one stream, cut anew in every iteration.

The stream is a sequence of epochs, each a shuffle of all samples. Iteration k is its stretch from k total to (k + 1) total, which
is cut among the workers by rank and size. So an iteration's samples are the same whatever the sizes, every epoch has every sample
once, and an iteration may span two epochs. Choice not taken: a part of the data for each worker, which faster workers would use up
sooner (partitions.py has it, for data that cannot be shared).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from nalb.errors import InputError

Shuffle = Callable[[int], npt.NDArray[np.int64]]  # epoch -> a permutation of all samples, always the same for one epoch


class Stream:
    """The samples of one training, in order. Raises InputError where an iteration is larger than the data."""

    def __init__(self, samples: int, total: int, shuffle: Shuffle):
        """samples: of the data. total: of an iteration, over all workers. shuffle: gives the order of an epoch's samples."""
        if not 1 <= total <= samples:
            raise InputError(f"{samples} samples for batches of {total} in total: give more data or smaller batches")
        self._samples, self._total, self._shuffle = samples, total, shuffle
        self._known: dict[int, npt.NDArray[np.int64]] = {}  # shuffles of the epochs last asked for

    def batch(self, iteration: int, start: int, stop: int) -> list[int]:
        """The indices of the iteration's samples [start, stop), within 0 to total.

        Cost: O(stop - start), and a shuffle per epoch.
        """
        first = iteration * self._total
        places = np.arange(first + start, first + stop)
        epochs, within = np.divmod(places, self._samples)
        self._known = {epoch: self._shuffled(epoch) for epoch in range(int(epochs[0]), int(epochs[-1]) + 1)}
        return [int(self._known[epoch][place]) for epoch, place in zip(epochs.tolist(), within.tolist(), strict=True)]

    def end_of_epoch(self, iteration: int) -> int:
        """The first iteration after the epoch of this one. An iteration that spans two epochs belongs to the later one."""
        epoch = ((iteration + 1) * self._total - 1) // self._samples
        return (epoch + 1) * self._samples // self._total

    def _shuffled(self, epoch: int) -> npt.NDArray[np.int64]:
        known = self._known.get(epoch)
        return self._shuffle(epoch) if known is None else known
