"""Works of torch.distributed whose sums a thread of nalb's completes."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from copy import copy
from datetime import timedelta

import torch
import torch.distributed as dist

from nalb.errors import PeerError

# A Future runs its callbacks in the thread that completes it. Those of a comm hook may wait for another sum, as PowerSGD's do. So
# they must not hold up the thread that brings sums home, nor each other.
_callbacks = ThreadPoolExecutor(64, "nalb-callbacks")


def _renew_callbacks() -> None:
    """In a child of os.fork, which has none of these threads."""
    global _callbacks
    _callbacks = ThreadPoolExecutor(64, "nalb-callbacks")


os.register_at_fork(after_in_child=_renew_callbacks)
_last = threading.local()  # `work`: the last one that a thread has made


class SumMissing(PeerError, RuntimeError):
    """A sum has not come in time. A RuntimeError, as all errors of torch.distributed's collectives are."""


class SumWork(dist._Work):  # type: ignore[misc]
    """A sum under way. An error is raised by `wait`, by the Future, and so by the backward pass that waits for it.

    `Future.set_exception` makes the error the Future's value, which only Python's `wait` raises: DDP's C++ takes it for tensors,
    and the process ends. So the Future is a second one, whose callback raises; C++ sees that as an error.
    """

    def __init__(self, tensor: torch.Tensor):
        super().__init__()
        devices = [tensor.device] if tensor.device.type == "cuda" else []
        self._first: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)
        self._future = self._first.then(self._value)
        self._tensor = tensor
        self._is_done, self._lock = threading.Event(), threading.Lock()
        self._error: Exception | None = None
        if torch.__version__ < "2.7":  # where C++ does not keep it: DDP asks it for its Future after it may be done
            _last.work = self

    def complete(self, error: Exception | None = None) -> None:
        """The sum is in the tensor, or will not come. Only the first word counts."""
        with self._lock:
            if self._is_done.is_set():
                return
            self._error = error and error.with_traceback(None)  # whose frames may have this work: a cycle
            self._is_done.set()
        # what follows in a stream waits for what was queued in the stream of this thread
        stream = None
        try:
            stream = torch.cuda.current_stream(self._tensor.device) if self._tensor.is_cuda else None
            _callbacks.submit(self._call_back, stream)
        except RuntimeError:  # the interpreter ends, and takes no new work; or CUDA has failed
            self._call_back(stream)

    def _call_back(self, stream: "torch.cuda.Stream | None") -> None:
        try:
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                # A Future notes this stream only for tensors in its value. What its callbacks' streams do then waits for it.
                self._first.set_result([] if self._error is not None else [self._tensor])
        except RuntimeError as problem:  # CUDA's, which each later call of the GPU's raises too
            self._error = self._error or problem
            with suppress(RuntimeError):  # it is complete
                self._first.set_result([])

    def _value(self, _: "torch.futures.Future[list[torch.Tensor]]") -> list[torch.Tensor]:
        if self._error is not None:
            raise copy(self._error)
        return [self._tensor]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the sum. Raises its error, or SumMissing once `timeout` is over; none or 0: wait as long as it takes."""
        if not self._is_done.wait(timeout.total_seconds() if timeout else None):
            raise SumMissing(f"a sum of {self._tensor.numel()} elements has not come within {timeout}")
        if self._error is not None:
            raise copy(self._error)  # it will keep the frames that it passes, and these keep this work
        self._future.wait()  # it is being completed; on a GPU the current stream waits too
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
