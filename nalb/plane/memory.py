"""The gradients that a training process shares with its agent: tensors in segments of memory.

The training process makes a segment and sends its descriptor; the agent maps it.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from nalb.errors import PeerError
from nalb.process.kernel_calls import memory_file

ALIGNED_BYTES = 64


class OwnSegment:
    """A segment of the training process's, with a place for each tensor of an iteration."""

    def __init__(self, number: int, tensors: Sequence[tuple[int, np.dtype[Any]]]):
        self.number, self.offsets, self._tensors = number, [], tensors
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


class Segments:
    """The segments that an agent has mapped, by number. One that is given up stays mapped while tensors lie in it."""

    def __init__(self) -> None:
        self._by_number: dict[int, mmap.mmap] = {}

    def take(self, number: int, size_bytes: int, descriptor: int | None) -> None:
        """Map a segment, and close its descriptor; forget one without a size. Raises PeerError where it is smaller than said."""
        if not size_bytes or descriptor is None:
            self._by_number.pop(number, None)
            return
        try:
            if os.fstat(descriptor).st_size < size_bytes:
                raise PeerError(f"segment {number} is smaller than {size_bytes} bytes")
            self._by_number[number] = mmap.mmap(descriptor, size_bytes)
        finally:
            os.close(descriptor)

    def tensor(self, number: int, offset_bytes: int, elements: int, dtype: str) -> npt.NDArray[Any]:
        """A tensor in a segment. Raises PeerError where it does not lie in one."""
        segment = self._by_number.get(number)
        end_bytes = offset_bytes + elements * np.dtype(dtype).itemsize
        if segment is None or end_bytes > len(segment):
            raise PeerError(f"bytes {offset_bytes} to {end_bytes} lie in no segment {number}")
        return np.frombuffer(segment, dtype, elements, offset_bytes)
