"""Works of torch.distributed whose sums a thread of nalb's completes."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from nalb.errors import PeerError


class SumWork(dist._Work):  # type: ignore[misc]
    """A sum under way. An error is raised by `wait`, by the Future, and so by the backward pass that waits for it.

    A subclass, since an error in a Future behind `_create_work_from_future` would end the process within DDP's backward pass.
    """

    def __init__(self, tensor: torch.Tensor):
        super().__init__()
        devices = [tensor.device] if tensor.device.type == "cuda" else []
        self._future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)
        self._tensor = tensor
        self._is_done = threading.Event()
        self._error: Exception | None = None

    def complete(self, error: Exception | None = None) -> None:
        """The sum is in the tensor, or will not come."""
        self._error = error
        self._is_done.set()
        if error is None:
            self._future.set_result([self._tensor])
        else:
            self._future.set_exception(error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the sum. Raises its error, or PeerError once `timeout` is over; none or 0: wait as long as it takes."""
        if not self._is_done.wait(timeout.total_seconds() if timeout else None):
            raise PeerError(f"a sum of {self._tensor.numel()} elements has not come within {timeout}")
        if self._error is not None:
            raise self._error
        if self._tensor.device.type == "cuda":
            self._future.wait()  # lets the current stream wait
        return True

    def get_future(self) -> "torch.futures.Future[list[torch.Tensor]]":
        """Its value is [tensor]."""
        return self._future

    def is_completed(self) -> bool:
        """Whether the sum is there, or failed."""
        return self._is_done.is_set()

    def is_success(self) -> bool:
        """Whether the sum is there."""
        return self._is_done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """Why the sum will not come."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensor with the sum in it."""
        self.wait()
        return [self._tensor]

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()
