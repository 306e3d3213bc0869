"""The backend "nalb" of torch.distributed: large sums of float32 go by the plane, all else goes to gloo.

A group of all ranks shares the process's one Front (nalb/plane/front.py). A group of fewer ranks is gloo's alone, and so is each
group where NALB_SCHEME is gloo. How a sum travels is decided by dtype, operation and size, which are alike on all ranks.
"""

import atexit
import json
import os
import socket
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from nalb.errors import one_line
from nalb.plane import orders as o
from nalb.plane.address import own_address
from nalb.plane.front import PART_ELEMENTS, Front, PlaneSum, RingSum
from nalb.settings import for_agents
from nalb.torch import NAME
from nalb.torch.works import SumWork

GLOO_ALONE = "gloo"  # the value of NALB_SCHEME that leaves all to gloo
LEAST_ELEMENTS = 1024  # smaller sums go to gloo, in one round trip without slices

# What c10d's C++ looks for in a Python group. Where it finds nothing it goes on to gloo with the interpreter's lock held, and waits
# there for a thread of gloo's that may wait for that lock.
HANDED_ON = (
    "allgather", "allreduce_coalesced", "barrier", "broadcast", "reduce_scatter", "send", "recv",
    "all_gather_single_coalesced", "all_to_all_single", "reduce_scatter_single_coalesced",
    "allgather_into_tensor_coalesced", "alltoall_base", "reduce_scatter_tensor_coalesced",
)  # fmt: skip

_front: Front | None = None  # this process's
_generation = 0  # how many default groups this process has made: names in the store


class NalbGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group. HANDED_ON goes to `inner`, allreduce to the plane, all else to the backend that is registered for the device."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, timeout: timedelta, front: Front | None, is_default: bool
    ):
        super().__init__(rank, size)
        # None: all goes to gloo
        self.front, self._is_default = front, is_default
        gloo = _new_gloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        self._inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self._inner):
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)

    def getBackendName(self) -> str:
        """By which c10d names it."""
        return NAME

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def allreduce(self, tensors: list[torch.Tensor], opts: dist.AllreduceOptions) -> dist.Work:
        """Sum in place, or average, or combine as gloo does."""
        tensor = tensors[0].detach()
        is_average = opts.reduceOp == dist.ReduceOp.AVG
        if is_average:
            for one in tensors:
                one.detach().div_(self.size())
            opts.reduceOp = dist.ReduceOp.SUM
        if self.front is None or len(tensors) > 1 or opts.reduceOp != dist.ReduceOp.SUM or not _suits(tensor):
            return self._inner.allreduce(tensors, opts)
        way = self.front.place(tensor.numel(), "float32")
        if isinstance(way, PlaneSum):
            return _add_up(tensor, way)
        work = self._inner.allreduce(tensors, opts)
        if isinstance(way, RingSum):
            work.get_future().add_done_callback(lambda _, done=way.done: done())
        return work

    def shutdown(self) -> None:
        """Leave the job, with the default group."""
        global _front
        if self._is_default and self.front is not None:
            self.front.close()
            _front = None
        self.front = None


def _hand_on(name: str) -> None:
    def call(self: NalbGroup, *args: Any, **kwargs: Any) -> dist.Work:
        return getattr(self._inner, name)(*args, **kwargs)

    setattr(NalbGroup, name, torch.compiler.disable(call))


for _name in HANDED_ON:
    _hand_on(_name)


def _suits(tensor: torch.Tensor) -> bool:
    """By what is alike on all ranks: strides may differ."""
    is_of_kind = (tensor.layout, tensor.dtype, tensor.device.type) == (torch.strided, torch.float32, "cpu")
    return bool(is_of_kind and tensor.numel() >= LEAST_ELEMENTS)


def _add_up(tensor: torch.Tensor, way: PlaneSum) -> SumWork:
    """Copy the tensor into the plane's memory; a thread of the front's copies the sum back."""
    work = SumWork(tensor)
    flat = tensor.contiguous().view(-1)
    shared = torch.from_numpy(way.memory)
    copied = 0

    def summed(elements: int) -> None:
        nonlocal copied
        flat[copied:elements].copy_(shared[copied:elements])
        copied = elements
        if elements == len(flat) and not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))

    way.begin(summed, work.complete)
    for start in range(0, len(flat), PART_ELEMENTS):
        stop = min(start + PART_ELEMENTS, len(flat))
        shared[start:stop].copy_(flat[start:stop])
        way.ready(stop)
    return work


def _new_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=own_address())]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _join(store: dist.Store, rank: int, size: int) -> Front:
    """Start this rank's agent, and let it join the job with those of all ranks."""
    address, host = own_address(), os.environ.get("NALB_NODE") or socket.gethostname()
    hosts = _tell_all(store, "host", rank, size, host)
    node = host if hosts.count(host) == 1 else f"{host}.{rank}"
    coordinator = os.environ.get("NALB_COORDINATOR")
    settings = for_agents(os.environ, node=node, endpoint="", size=size, role="agent")
    start = o.Start(rank, size, node, address, rank == 0 and not coordinator)
    front = Front(start, settings.startup_s, settings.silence_s)
    agents = _tell_all(
        store, "agent", rank, size, [front.listening.address, front.listening.coordinator or coordinator]
    )
    front.join([one for one, _ in agents], agents[0][1])
    return front


def _leave() -> None:
    """The script ends: in good order, or by an exception, which Python keeps as `sys.last_value`."""
    if _front is not None:
        error = getattr(sys, "last_value", None)
        _front.close(None if error is None else f"failed: {one_line(error)}")


atexit.register(_leave)  # a thread that the interpreter's end meets within torch would end the process by SIGABRT


def _tell_all(store: dist.Store, name: str, rank: int, size: int, own: Any) -> list[Any]:
    """What all ranks tell, by rank."""
    store.set(f"{name}{rank}", json.dumps(own))
    return [json.loads(store.get(f"{name}{one}")) for one in range(size)]


def create(options: Any, _backend_options: object) -> NalbGroup:
    """Make a group; torch.distributed calls it for each."""
    global _front, _generation
    rank, size, store = options.group_rank, options.group_size, options.store
    is_default = not options.global_ranks_in_group
    if is_default:
        _generation += 1
        if size > 1 and os.environ.get("NALB_SCHEME") != GLOO_ALONE:
            _front = _join(dist.PrefixStore(f"{NAME}{_generation}", store), rank, size)
    front = _front if is_default or size == dist.get_world_size() else None
    return NalbGroup(dist.PrefixStore(str(_generation), store), rank, size, options.timeout, front, is_default)
