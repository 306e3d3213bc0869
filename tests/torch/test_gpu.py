"""Copies of a GPU's tensors, with a CUDA that runs nothing by itself: a stream's work is done when somebody waits for it."""

from contextlib import contextmanager
from importlib.util import find_spec

import numpy as np
import pytest

if find_spec("torch") is not None:
    import torch

    from nalb.torch.gpu import GpuSums

pytestmark = pytest.mark.torch
ELEMENTS = 600_000  # three parts


class Cuda:
    """Streams, events and pinned memory. Copies between pinned memory and "the GPU" wait in the stream that is current."""

    def __init__(self):
        self.streams = [self.Stream(None)]
        self.Event = lambda: Cuda.Mark(self)

    class Stream:
        def __init__(self, device):
            self.work, self.device = [], device
            Cuda.newest = self

        def wait_stream(self, other):
            self.work.append(other.run)

        def run(self):
            while self.work:
                self.work.pop(0)()

    class Mark:
        def __init__(self, cuda):
            self.cuda, self.stream = cuda, None

        def record(self):
            self.stream = self.cuda.streams[-1]

        def synchronize(self):
            self.stream.run()

    def current_stream(self, device=None):
        assert device is None or device.type == "cuda"
        return self.streams[-1]

    @contextmanager
    def stream(self, one):
        self.streams.append(one)
        yield
        self.streams.pop()


class Way:
    """A sum by the plane, of two ranks that hold the same."""

    def __init__(self, elements, error=None):
        self.memory, self.error, self.parts = np.zeros(elements, np.float32), error, []
        self.failed = []
        self.fail = self.failed.append

    def begin(self, summed, ended):
        self.summed, self.ended = summed, ended

    def ready(self, elements):
        start = self.parts[-1] if self.parts else 0
        self.parts.append(elements)
        if self.error is not None:
            self.ended(self.error)
            raise self.error
        self.memory[start:elements] *= 2
        self.summed(start, elements)
        if elements == len(self.memory):
            self.ended(None)


def made(monkeypatch, new_pinned=lambda elements, dtype: torch.full((elements,), -1.0, dtype=dtype)):
    """What sums on the GPU that is not there, and its CUDA."""
    cuda = Cuda()
    copy = torch.Tensor.copy_

    def copied(target, source, non_blocking=False):
        if not non_blocking:
            return copy(target, source)
        cuda.streams[-1].work.append(lambda: copy(target, source))
        return target

    monkeypatch.setattr(torch.Tensor, "copy_", copied)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    return GpuSums(torch.device("cuda", 0), cuda, new_pinned), cuda


def test_a_sum_waits_for_the_scripts_stream_and_comes_back(monkeypatch):
    sums, cuda = made(monkeypatch)
    script, own = cuda.streams[0], Cuda.newest
    tensor, way = torch.zeros(ELEMENTS), Way(ELEMENTS)
    script.work.append(lambda: tensor.add_(3))  # the backward pass
    work = sums.add_up(tensor, way)
    assert work.wait()
    sums.close()
    assert way.parts == [1 << 18, 1 << 19, ELEMENTS]
    assert work.is_success()
    own.run()  # whoever waits for the Future lets his stream wait for this one
    assert torch.equal(tensor, torch.full((ELEMENTS,), 6.0))


def test_pinned_memory_is_used_again_once_it_has_been_read(monkeypatch):
    made_of = []
    sums, _ = made(
        monkeypatch, lambda elements, dtype: made_of.append((elements, dtype)) or torch.zeros(elements, dtype=dtype)
    )
    for dtype in (torch.float32, torch.bfloat16):  # pinned memory has the tensor's dtype: fewer bytes cross the bus
        for number in range(3):
            tensor = torch.full((5000,), float(number), dtype=dtype)
            assert sums.add_up(tensor, Way(5000)).wait()
            Cuda.newest.run()
            assert torch.equal(tensor, torch.full((5000,), 2.0 * number, dtype=dtype))
    sums.close()
    assert made_of == [(5000, torch.float32), (5000, torch.bfloat16)]


def test_an_error_reaches_the_work(monkeypatch):
    sums, _ = made(monkeypatch)
    work = sums.add_up(torch.ones(5000), Way(5000, ValueError("no agent")))
    with pytest.raises(ValueError, match="no agent"):
        work.wait()
    sums.close()


def test_a_copy_that_fails_is_told_to_the_other_ranks(monkeypatch):
    sums, _ = made(monkeypatch)
    way = Way(5000)
    way.memory = np.zeros(4999, np.float32)  # which the copy does not fit into
    work = sums.add_up(torch.ones(5000), way)
    with pytest.raises(RuntimeError, match="size"):
        work.wait()
    sums.close()
    assert isinstance(way.failed[0], RuntimeError)


def test_a_gpu_that_fails_leaves_no_sum_without_an_end(monkeypatch):
    sums, cuda = made(monkeypatch)

    class Broken(Cuda.Mark):
        def record(self):
            raise RuntimeError("CUDA error: an illegal memory access")

    way = Way(5000)
    way.ready = lambda _: None  # the sum is under way
    work = sums.add_up(torch.ones(5000), way)
    cuda.Event = lambda: Broken(cuda)
    way.ended(None)
    with pytest.raises(RuntimeError, match="illegal memory"):
        work.wait()
    sums.close()
