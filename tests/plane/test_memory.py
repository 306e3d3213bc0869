"""A segment of shared memory, and tensors in it."""

import os

import numpy as np
import pytest

from nalb.plane.memory import OwnSegment, mapped


def test_memory_is_free_whoever_has_it_mapped():
    segment = OwnSegment([(5000, np.dtype(np.float32)), (3000, np.dtype(np.float64))])
    taken = os.dup(segment.descriptor)
    tensor = np.frombuffer(mapped(segment.size_bytes, taken), np.float32, 5000)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(taken)  # taken descriptors do not pile up
    segment.array(0)[:] = 1.0
    assert tensor[4999] == 1.0
    assert os.fstat(segment.descriptor).st_blocks
    segment.free()
    assert not os.fstat(segment.descriptor).st_blocks
    os.close(segment.descriptor)
