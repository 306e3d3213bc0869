"""One sum: by the plane, or by gloo where the front says so."""

from collections.abc import Callable
from contextlib import suppress

import torch
import torch.distributed as dist

from nalb.failures import JobFailed
from nalb.plane.front import Front, PlaneSum, RingSum
from nalb.torch.gpu import GpuSums
from nalb.torch.works import SumWork

_on_gpus: dict[torch.device, GpuSums] = {}


def add_up(front: Front, tensor: torch.Tensor, group: str, by_gloo: Callable[[], dist.Work]) -> dist.Work:
    """Begin the sum over all ranks that have a front. group: its name. by_gloo: begins it among these ranks by gloo."""
    try:
        way = front.place(tensor.numel(), str(tensor.dtype).removeprefix("torch."), group)
        if isinstance(way, PlaneSum):
            return _on_gpu(tensor, way) if tensor.is_cuda else _on_cpu(tensor, way)
        by_ring = by_gloo()
        if isinstance(way, RingSum):
            by_ring.get_future().add_done_callback(lambda _, done=way.done: done())
        return by_ring
    except JobFailed as error:  # raised here within a backward pass, it would leave DDP in disorder
        work = SumWork(tensor)
        work.complete(error)
        return work
    except BaseException as error:  # as a handler of signals raises it
        front.fail_in_sum(error)
        raise


def in_whole(tensors: list[torch.Tensor], begin: Callable[[list[torch.Tensor]], dist.Work]) -> dist.Work:
    """What `begin` begins, with contiguous copies of tensors that are not: gloo sums memory as it lies, whatever the strides.

    Where it copied, the work is done when this returns.
    """
    whole = [one.contiguous() if one.layout == torch.strided else one for one in tensors]
    work = begin(whole)
    changed = [pair for pair in zip(tensors, whole, strict=True) if pair[0] is not pair[1]]
    if changed:
        work.wait()
        for one, copy in changed:
            one.data.copy_(copy)
    return work


def close_gpus() -> None:
    """End the threads of sums on GPUs."""
    while _on_gpus:
        _on_gpus.popitem()[1].close()


def _on_cpu(tensor: torch.Tensor, way: PlaneSum) -> SumWork:
    """Copy the tensor into the plane's memory, which is float32; a thread of the front's copies the sum back."""
    work = SumWork(tensor)
    flat = tensor.contiguous().view(-1)
    shared = torch.from_numpy(way.memory)

    def summed(start: int, stop: int) -> None:
        with torch.inference_mode(flat.is_inference()):  # which is each thread's own
            flat[start:stop].copy_(shared[start:stop])
        if stop == len(flat) and not tensor.is_contiguous():
            with torch.inference_mode(tensor.is_inference()):
                tensor.copy_(flat.view(tensor.shape))

    way.begin(summed, work.complete)
    with suppress(JobFailed):  # the front tells the work
        way.write(lambda start, stop: shared[start:stop].copy_(flat[start:stop]))
    return work


def _on_gpu(tensor: torch.Tensor, way: PlaneSum) -> SumWork:
    if tensor.device not in _on_gpus:
        _on_gpus[tensor.device] = GpuSums(tensor.device)
    return _on_gpus[tensor.device].add_up(tensor, way)
