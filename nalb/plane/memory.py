"""The gradients that a training process shares with its agent: tensors in a segment of memory.

The training process makes a segment and sends its descriptor; the agent maps it. The next segment takes its place in both.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from nalb.process.kernel_calls import memory_file

ALIGNED_BYTES = 64


class OwnSegment:
    """A segment of the training process's, with a place for each tensor of an iteration."""

    def __init__(self, tensors: Sequence[tuple[int, np.dtype[Any]]]):
        self.offsets, self._tensors = list[int](), tensors
        size = 0
        for elements, dtype in tensors:
            self.offsets.append(size)
            size += -(-elements * dtype.itemsize // ALIGNED_BYTES) * ALIGNED_BYTES
        self.size_bytes = size
        self.descriptor = memory_file("nalb")
        os.ftruncate(self.descriptor, size)
        self._map = mmap.mmap(self.descriptor, size)  # unmapped once no array is left

    def array(self, tensor: int) -> npt.NDArray[Any]:
        """The place of one tensor."""
        elements, dtype = self._tensors[tensor]
        return np.frombuffer(self._map, dtype, elements, self.offsets[tensor])

    def free(self) -> None:
        """Free the memory, whoever has it mapped: children that the script has forked, as a DataLoader's, may live long."""
        with suppress(OSError):  # a kernel that cannot: then it is free once nobody has it mapped
            self._map.madvise(mmap.MADV_REMOVE)


def mapped(size_bytes: int, descriptor: int) -> mmap.mmap:
    """Another process's segment, which stays mapped while tensors lie in it; closes the descriptor."""
    try:
        return mmap.mmap(descriptor, size_bytes)
    finally:
        os.close(descriptor)
