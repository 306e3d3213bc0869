"""Sums of tensors on a GPU: copied to pinned memory and back on a stream of their own, so that the script's stream goes on.

the script's stream   gradients .. event
a stream of our own              wait, copy part 1, event, copy part 2, event ..          .. copy sums back, event of the Future
a thread                                            part 1 to the plane, part 2 to the plane   (there as float32)
the front's thread                                                              sums into pinned memory
"""

from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from nalb.plane.front import PlaneSum, parts
from nalb.torch.works import SumWork


def _pinned(elements: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(elements, dtype=dtype, device="cpu", pin_memory=True)  # whatever the script's default device is


class GpuSums:
    """Sums of one device's tensors."""

    def __init__(
        self,
        device: torch.device,
        cuda: Any = torch.cuda,
        new_pinned: Callable[[int, torch.dtype], torch.Tensor] = _pinned,
    ):
        self._device, self._cuda, self._new_pinned = device, cuda, new_pinned
        self._stream = cuda.Stream(device)
        self._thread = ThreadPoolExecutor(1, "nalb-gpu")
        # pinned memory that is not in use, by elements and dtype, and the event after which it may be written
        self._free: dict[tuple[int, torch.dtype], list[tuple[torch.Tensor, Any]]] = defaultdict(list)

    def add_up(self, tensor: torch.Tensor, way: PlaneSum) -> SumWork:
        """Queue the copies, and return at once."""
        work, flat = SumWork(tensor), tensor.contiguous().view(-1)
        with torch.inference_mode(False):  # threads write to these, and later sums
            shared, pinned = torch.from_numpy(way.memory), self._take(len(flat), flat.dtype)
        self._stream.wait_stream(self._cuda.current_stream(self._device))
        events = []
        with self._cuda.stream(self._stream):
            for start, stop in parts(len(flat)):
                pinned[start:stop].copy_(flat[start:stop], non_blocking=True)
                events.append((start, stop, self._cuda.Event()))
                events[-1][2].record()
        flat.record_stream(self._stream)

        def hand_in() -> None:
            try:
                for start, stop, event in events:
                    event.synchronize()
                    shared[start:stop].copy_(pinned[start:stop])
                    way.ready(stop)
            except Exception as error:
                work.complete(error)
                way.fail(error)

        def summed(start: int, stop: int) -> None:
            pinned[start:stop].copy_(shared[start:stop])
            with self._cuda.stream(self._stream), torch.inference_mode(flat.is_inference()):
                flat[start:stop].copy_(pinned[start:stop], non_blocking=True)

        def ended(error: Exception | None) -> None:
            try:
                with self._cuda.stream(self._stream), torch.inference_mode(tensor.is_inference()):
                    if error is None and not tensor.is_contiguous():
                        tensor.copy_(flat.view(tensor.shape))
                    after = self._cuda.Event()
                    after.record()
                    self._free[len(flat), flat.dtype].append((pinned, after))
                    work.complete(error)  # the Future notes this stream: whoever waits for it lets his own stream wait
            except Exception as problem:  # CUDA's, which each later call of the GPU's raises too
                work.complete(error or problem)

        way.begin(summed, ended)
        self._thread.submit(hand_in)
        return work

    def _take(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        if not self._free[elements, dtype]:
            return self._new_pinned(elements, dtype)
        pinned, after = self._free[elements, dtype].pop()
        after.synchronize()
        return pinned

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()
