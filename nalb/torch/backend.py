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
from multiprocessing.util import Finalize
from typing import Any

import torch
import torch.distributed as dist

from nalb.errors import one_line
from nalb.failures import JobFailed
from nalb.plane import orders as o
from nalb.plane.address import own_address
from nalb.plane.front import PART_ELEMENTS, Front, PlaneSum, RingSum
from nalb.settings import for_agents
from nalb.torch import NAME
from nalb.torch.gpu import GpuSums
from nalb.torch.works import SumWork

GLOO_ALONE = "gloo"  # the value of NALB_SCHEME that leaves all to gloo
KIND = dist.ProcessGroup.BackendType
LEAST_ELEMENTS = 1024  # smaller sums go to gloo, in one round trip without slices

# What c10d's C++ looks for in a Python group. Where it finds nothing it goes on to gloo with the interpreter's lock held, and waits
# there for a thread of gloo's that may wait for that lock.
HANDED_ON = (
    "allgather", "allreduce_coalesced", "barrier", "broadcast", "reduce_scatter", "send", "recv",
    "all_gather_single_coalesced", "all_to_all_single", "reduce_scatter_single_coalesced",
    "allgather_into_tensor_coalesced", "alltoall_base", "reduce_scatter_tensor_coalesced",
)  # fmt: skip

_front: Front | None = None  # this process's
_on_gpus: dict[torch.device, GpuSums] = {}
_generation = 0  # how many default groups this process has made: names in the store


class NalbGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group. HANDED_ON goes to `inner`, allreduce to the plane, all else to the backend that is registered for the device."""

    def __init__(self, options: Any, store: dist.Store, front: Front | None):
        super().__init__(options.group_rank, options.group_size)
        self.front = front  # None: all goes to gloo
        self._is_default = not options.global_ranks_in_group
        self._made_of = store, options.group_rank, options.group_size
        self._gloo = _new_gloo(dist.PrefixStore("gloo", store), *self._made_of[1:], options.timeout)
        self._inner = dist.ProcessGroup(*self._made_of)
        self._sums_cuda, self._knows_cuda = False, not torch.cuda.is_available()
        self._register("cpu", KIND.GLOO, self._gloo)
        for group in (self, self._inner):
            group._set_default_backend(KIND.GLOO)

    def _register(self, device: str, kind: dist.ProcessGroup.BackendType, backend: Any) -> None:
        for group in (self, self._inner):
            group._register_backend(torch.device(device), kind, backend)

    def _know_cuda(self) -> None:
        """Register CUDA's backend at the first call: only a group that is made can be asked which, as for "cpu:nalb,cuda:nccl"."""
        if self._knows_cuda:
            return
        self._knows_cuda = True
        told = dict(pair.split(":") for pair in dist.get_backend_config(self).split(","))
        if told.get("cuda") == "nccl":
            store, rank, size = self._made_of
            self._register("cuda", KIND.NCCL, dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size))
        elif "cuda" in told:
            self._register("cuda", KIND.GLOO, self._gloo)
            self._sums_cuda = told["cuda"] == NAME

    def getBackendName(self) -> str:
        """By which c10d names it."""
        return NAME

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def allreduce(self, tensors: list[torch.Tensor], opts: dist.AllreduceOptions) -> dist.Work:
        """Sum in place, or average, or combine as gloo does."""
        self._know_cuda()
        tensor = tensors[0].detach()
        if opts.reduceOp == dist.ReduceOp.AVG:
            for one in tensors:
                one.detach().div_(self.size())
            opts.reduceOp = dist.ReduceOp.SUM
        if self.front is None or len(tensors) > 1 or opts.reduceOp != dist.ReduceOp.SUM or not self._suits(tensor):
            return self._inner.allreduce(tensors, opts)
        try:
            way = self.front.place(tensor.numel(), "float32")
        except JobFailed as error:  # raised here within a backward pass, it would leave DDP in disorder
            failed = SumWork(tensor)
            failed.complete(error)
            return failed
        if isinstance(way, PlaneSum):
            return _add_up_on_gpu(tensor, way) if tensor.is_cuda else _add_up(tensor, way)
        work = self._inner.allreduce(tensors, opts)
        if isinstance(way, RingSum):
            work.get_future().add_done_callback(lambda _, done=way.done: done())
        return work

    def _suits(self, tensor: torch.Tensor) -> bool:
        """By what is alike on all ranks: strides may differ."""
        if tensor.layout != torch.strided or tensor.dtype != torch.float32 or tensor.numel() < LEAST_ELEMENTS:
            return False
        return tensor.device.type == "cpu" or bool(tensor.is_cuda and self._sums_cuda)

    def shutdown(self) -> None:
        """Leave the job, with the default group."""
        global _front
        if self._is_default and self.front is not None:
            self.front.close()
            _front = None
            while _on_gpus:
                _on_gpus.popitem()[1].close()
        self.front = None


def _hand_on(name: str) -> None:
    def call(self: NalbGroup, *args: Any, **kwargs: Any) -> dist.Work:
        self._know_cuda()
        return getattr(self._inner, name)(*args, **kwargs)

    setattr(NalbGroup, name, torch.compiler.disable(call))


for _name in HANDED_ON:
    _hand_on(_name)


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


def _add_up_on_gpu(tensor: torch.Tensor, way: PlaneSum) -> SumWork:
    if tensor.device not in _on_gpus:
        _on_gpus[tensor.device] = GpuSums(tensor.device)
    return _on_gpus[tensor.device].add_up(tensor, way)


def _new_gloo(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroupGloo:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=_address(store))]
    options._timeout = timeout
    return dist.ProcessGroupGloo(store, rank, size, options)


def _address(store: dist.Store) -> str:
    """This rank's, on the way to the store where it has a host."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return own_address(os.environ, store.host if isinstance(store, dist.TCPStore) else None)


def _join(store: dist.Store, rank: int, size: int) -> Front:
    """Start this rank's agent, and let it join the job with those of all ranks."""
    address, host = _address(store), os.environ.get("NALB_NODE") or socket.gethostname()
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
    # A thread that the interpreter's end meets within torch would end the process by SIGABRT. A child that multiprocessing has
    # forked runs finalizers at its end, and nothing of atexit.
    atexit.register(_leave)
    Finalize(None, _leave, exitpriority=0)
    return front


def _leave() -> None:
    """The script ends: in good order, or by an exception, which Python keeps as `sys.last_value`."""
    global _front
    leaving, _front = _front, None
    if leaving is not None:
        error = getattr(sys, "last_value", None)
        leaving.close(None if error is None else f"failed: {one_line(error)}")


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
    return NalbGroup(options, dist.PrefixStore(str(_generation), store), front)
