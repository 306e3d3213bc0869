"""Segments of shared memory, and tensors in them."""

import os

import numpy as np
import pytest

from nalb.errors import PeerError
from nalb.plane.memory import OwnSegment, Segments


def descriptor_of(size_bytes):
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, size_bytes)
    return descriptor


def test_tensors_share_memory_and_outlive_their_segment():
    segments, descriptor = Segments(), descriptor_of(4096)
    other = os.dup(descriptor)
    segments.take(3, 4096, descriptor)
    tensor = segments.tensor(3, 64, 100, "float32")
    tensor[:] = np.arange(100)
    segments.take(3, 0, None)
    values = np.frombuffer(os.pread(other, 400, 64), np.float32)
    assert values.tolist() == list(range(100))
    os.close(other)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)  # taken descriptors do not pile up


def test_memory_is_free_whoever_has_it_mapped():
    segment, segments = OwnSegment(0, [(5000, np.dtype(np.float32)), (3000, np.dtype(np.float64))]), Segments()
    segments.take(0, segment.size_bytes, os.dup(segment.descriptor))
    tensor = segments.tensor(0, 0, 5000, "float32")
    segment.array(0)[:] = 1.0
    assert tensor[4999] == 1.0
    assert os.fstat(segment.descriptor).st_blocks
    segment.free()
    assert not os.fstat(segment.descriptor).st_blocks
    os.close(segment.descriptor)


def test_what_lies_outside_is_refused():
    segments = Segments()
    with pytest.raises(PeerError, match="smaller than 5000 bytes"):
        segments.take(0, 5000, descriptor_of(4096))
    segments.take(0, 4096, descriptor_of(4096))
    assert segments.tensor(0, 4096, 0, "float32").size == 0
    for number, offset_bytes, elements in ((0, 4, 1024), (1, 0, 1)):
        with pytest.raises(PeerError, match=f"lie in no segment {number}"):
            segments.tensor(number, offset_bytes, elements, "float32")
