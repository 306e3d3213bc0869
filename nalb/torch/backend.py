"""The backend "nalb" of torch.distributed: large sums of floats go by the plane, all else goes to gloo.

Groups of all ranks share the process's one job (job.py). A group of fewer ranks is gloo's alone, and so is each
group where NALB_SCHEME is gloo. How a sum travels is decided by dtype, operation and size, which are alike on all ranks.
"""

import atexit
import builtins
import functools
import gc
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from multiprocessing import process
from multiprocessing.util import Finalize
from time import sleep
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from msgspec.structs import replace

from nalb.errors import InputError, one_line
from nalb.failures import Cause, of_script
from nalb.options import options_in
from nalb.plane.front import Front
from nalb.process.address import own_name
from nalb.process.last_words import tell_launcher
from nalb.schemes import GLOO
from nalb.torch import NAME
from nalb.torch.gloo import Gloo
from nalb.torch.job import TorchJob, by_gloo_alone, machines_alike, meet, new_gloo
from nalb.torch.sums import add_up, in_whole
from nalb.torch.works import SumWork

KIND = dist.ProcessGroup.BackendType
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
REST_S = 0.02
LEAST_ELEMENTS = 1024  # smaller sums go to gloo, in one round trip without slices

# What c10d's C++ looks for in a Python group. Where it finds nothing it goes on to gloo with the interpreter's lock held, and waits
# there for a thread of gloo's that may wait for that lock. Those of the second line are here to be counted.
HANDED_ON = (
    "allgather", "allreduce_coalesced", "barrier", "broadcast", "reduce_scatter", "send", "recv",
    "reduce", "gather", "scatter", "alltoall", "allgather_coalesced", "reduce_scatter_single", "_reduce_scatter_base",
    "all_gather_single_coalesced", "all_to_all_single", "reduce_scatter_single_coalesced",
    "allgather_into_tensor_coalesced", "alltoall_base", "reduce_scatter_tensor_coalesced",
)  # fmt: skip
OF_TWO_RANKS = "send", "recv"
CHILDREN = "multiprocessing.popen_fork", "multiprocessing.forkserver"  # modules that run a child
GATHERED = "_allgather_base", "all_gather_single"  # to 2.12, and from then on

_job: TorchJob | None = None  # this process's
_exit: BaseException | None = None  # why the script's last call of sys.exit told of a failure
_meeting = ""  # the name of its default group's keys in the store
# Gloo's threads end with the last reference to their group. Python's reference lets go of the interpreter's lock meanwhile. Those
# of DDP's C++ do not, and a thread that waits for the lock, to end a comm hook's callback, would wait for ever. So Python's is the
# last.
kept_gloo: dict[int, Gloo] = {}
_unused: list[int] = []  # the keys of those whose groups are gone: a reference in their place would outlive kept_gloo's
_keys = itertools.count()


class NalbGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group. HANDED_ON goes to `inner`, allreduce to the plane, all else to the backend that is registered for the device."""

    def __init__(
        self,
        options: Any,
        store: dist.Store,
        job: TorchJob | None,
        gpus_by_plane: bool = False,
        nccl_options: Any = None,
    ):
        """gpus_by_plane: whether sums on GPUs go as those on CPUs, whatever torch.distributed was told.

        nccl_options: of the script's, where NCCL has the GPUs.
        """
        _let_go_of(_unused)
        super().__init__(options.group_rank, options.group_size)
        self._job = job if job is not None and job.is_needed else None  # None: all goes to gloo
        self._is_default = not options.global_ranks_in_group
        self._name = "" if self._is_default else options.group_id
        self._made_of = store, options.group_rank, options.group_size
        self._timeout, self._nccl_options = options.timeout, nccl_options
        self.gloo = new_gloo(dist.PrefixStore("gloo", store), *self._made_of[1:], options.timeout)
        key = next(_keys)
        kept_gloo[key] = self.gloo
        weakref.finalize(self, _unused.append, key).atexit = False
        self._inner = dist.ProcessGroup(*self._made_of)
        self._nccl: Any = None  # once it is asked for
        self._learning = threading.Lock()  # of each device's backend
        self._knows_devices, self._by_plane = gpus_by_plane, {"cpu", "cuda"} if gpus_by_plane else set[str]()
        if self._job is not None and self._is_default:  # a rank may end another group before all others do
            self._job.look_after(self.gloo, is_watched=self._job.machine is None)
        self._register("cpu", KIND.GLOO, self.gloo.group)
        if torch.cuda.is_available():
            if gpus_by_plane:
                self._register("cuda", KIND.GLOO, self.gloo.group)
            else:  # until torch's word is known: the first call may be one of C++'s, which does not come here
                self._register_backend(torch.device("cuda"), KIND.GLOO, self.gloo.group)
        for group in (self, self._inner):
            group._set_default_backend(KIND.GLOO)

    def _register(self, device: str, kind: dist.ProcessGroup.BackendType, backend: Any) -> None:
        for group in (self, self._inner):
            group._register_backend(torch.device(device), kind, backend)

    def _know_devices(self) -> None:
        """Learn each device's backend at the first call, as of "cpu:nalb,cuda:nccl": only a group that is made can be asked."""
        if self._knows_devices or self not in dist.distributed_c10d._world.pg_map:
            return
        with self._learning:
            if not self._knows_devices:
                self._learn_devices()
                self._knows_devices = True

    def _learn_devices(self) -> None:
        told = dict(pair.split(":") for pair in dist.get_backend_config(self).split(","))
        self._by_plane = {device for device, backend in told.items() if backend == NAME}
        if not torch.cuda.is_available() or "cuda" not in told:
            return
        if told["cuda"] == "nccl":
            self._nccl = self._new_nccl()
            if self.front is not None:
                self.front.spins = True  # in a wait for a GPU
            self._register("cuda", KIND.NCCL, self._nccl)
        else:
            self._register("cuda", KIND.GLOO, self.gloo.group)

    def _new_nccl(self) -> Any:
        """NCCL with the options of this group, as torch makes it."""
        store, rank, size = self._made_of
        options = dist.ProcessGroupNCCL.Options() if self._nccl_options is None else self._nccl_options
        options._timeout = self._timeout
        return dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, size, options)

    def _get_backend(self, device: torch.device) -> Any:
        """A device's backend, which torch also asks for while it makes the group."""
        self._know_devices()
        return super()._get_backend(device)

    def _note_caller(self) -> None:
        global _exit
        _exit = None  # the script goes on: it has caught that
        if (front := self.front) is not None:
            front.note_caller(self._name)

    def _await_sums(self) -> None:
        """Wait for the plane's sums, as gloo's barrier waits for gloo's: a script may take it for the end of what it has begun."""
        if self._job is not None and self._job.machine is not None:
            self._job.machine.await_sums()
        elif (front := self.front) is not None:
            front.await_sums()

    def _begun(self, work: dist.Work, of: Sequence[object]) -> dist.Work:
        """Note a work of these arguments where it is gloo's, and return it: to ask NCCL's breaks the capture of a graph."""
        return work if self._nccl is not None and _is_on_gpu(of) else self.gloo.begun(work)

    @contextmanager
    def _noted_by_gloo(self) -> Iterator[None]:
        """A collective of all ranks goes to gloo, which would wait for a rank that has left until its timeout."""
        if (front := self.front) is None:
            yield
            return
        front.note_by_gloo()
        try:
            yield
        except BaseException:  # it has not begun, and may on other ranks
            front.note_unordered()
            raise

    @property
    def front(self) -> Front | None:
        """This rank's end of the plane, where it has one."""
        return None if self._job is None else self._job.front

    def getBackendName(self) -> str:
        """By which c10d names it."""
        return NAME

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def allreduce(
        self,
        tensors: Sequence[torch.Tensor] | torch.Tensor,
        opts: dist.AllreduceOptions | dist.ReduceOp | None = None,
        timeout: timedelta | None = None,
        op: dist.ReduceOp | None = None,
    ) -> dist.Work:
        """Sum in place, or average, or combine as gloo does. As in groups of torch's, an operation may stand for options."""
        self._know_devices()
        self._note_caller()
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if not isinstance(opts, dist.AllreduceOptions):
            opts = _options_of(op if opts is None else opts, timeout)
        # As with gloo autograd sees no change: `detach` would share its count of them.
        tensor = tensors[0].data

        def by_gloo(summands: list[torch.Tensor] = tensors) -> dist.Work:
            return in_whole(summands, lambda whole: self._begun(self._inner.allreduce(whole, opts), whole))

        if opts.reduceOp == dist.ReduceOp.AVG and tensor.dtype != torch.bool:
            opts = _options_of(dist.ReduceOp.SUM, opts.timeout)  # the caller may use its own again
            if not tensor.is_floating_point() and not tensor.is_complex():  # whole numbers are divided after the sum
                wide = [one.long() for one in tensors]  # the sum may not fit into the tensors' own dtype
                with self._noted_by_gloo():
                    by_gloo(wide).wait()
                for one, total in zip(tensors, wide, strict=True):
                    one.data.copy_(total.div_(self.size(), rounding_mode="trunc"))
                work = SumWork(tensor)
                work.complete()
                return work
            for one in tensors:
                one.data.div_(self.size())
        if self._job is None or len(tensors) > 1 or opts.reduceOp != dist.ReduceOp.SUM or not self._suits(tensor):
            with self._noted_by_gloo():
                return by_gloo()
        if (machine := self._job.machine) is not None:
            return machine.add_up(tensor, self._name)
        assert self._job.front is not None
        return add_up(self._job.front, tensor, self._name, by_gloo)

    def _suits(self, tensor: torch.Tensor) -> bool:
        """By what is alike on all ranks: strides may differ."""
        if tensor.layout != torch.strided or tensor.dtype not in DTYPES or tensor.numel() < LEAST_ELEMENTS:
            return False
        return tensor.device.type in self._by_plane

    def shutdown(self) -> None:
        """Leave the job, with the default group.

        While an exception is handled, as in a `finally`, the end of the script leaves the job: it shows whether the script fails.
        """
        global _job
        if self._nccl is not None and hasattr(self._nccl, "shutdown"):  # older torch ends it, whose NCCL has none
            self._nccl.shutdown()
        if self._is_default and self._job is not None:
            if sys.exc_info()[1] is None:
                self._job.leave()
                _job = None
            elif self._job.front is not None:
                self._job.front.is_let_go = True
        self._job = None


def _end_groups_as_nccl() -> None:
    """Have a torch that ends groups of NCCL's alone, as 2.6 does, end nalb's too: others call each group's `shutdown`."""
    module = dist.distributed_c10d
    if (end := getattr(module, "_shutdown_backend", None)) is None:
        return

    def end_group(group: dist.ProcessGroup) -> None:
        end(group)
        if isinstance(group, NalbGroup):
            group.shutdown()

    module._shutdown_backend = end_group


_end_groups_as_nccl()


def _let_go_of(keys: list[int]) -> None:
    """End gloo's threads of these groups, but for those that would end only at gloo's timeout."""
    while keys:
        if (one := kept_gloo.pop(keys.pop(), None)) is not None:
            one.keep_where_cut_off()


def _forget_all() -> None:
    """In a child of os.fork: the job's threads stayed behind, so it is none of the child's."""
    global _job
    kept_gloo.clear()
    _unused.clear()
    _job = None


os.register_at_fork(after_in_child=_forget_all)


def _options_of(operation: dist.ReduceOp | None, timeout: timedelta | None) -> dist.AllreduceOptions:
    """The options of a sum; None: torch's defaults."""
    options = dist.AllreduceOptions()
    if operation is not None:
        options.reduceOp = operation
    if timeout is not None:
        options.timeout = timeout
    return options


def _hand_on(name: str) -> None:
    def call(self: NalbGroup, *args: Any, **named: Any) -> dist.Work:
        self._know_devices()
        self._note_caller()
        if name == "barrier":
            self._await_sums()
        if name in GATHERED:
            args, named = _in_a_row(*args, **named)
        with nullcontext() if name in OF_TWO_RANKS else self._noted_by_gloo():
            return self._begun(getattr(self._inner, name)(*args, **named), (*args, *named.values()))

    setattr(NalbGroup, name, torch.compiler.disable(call))


def _is_on_gpu(of: object) -> bool:
    """Whether a collective is a GPU's, by its arguments: tensors, lists of them, and options, which may name a device."""
    if isinstance(of, list | tuple):
        return any(map(_is_on_gpu, of))
    device = getattr(of, "device", None)
    return device is not None and device.type == "cuda"


def _in_a_row(output: torch.Tensor, input: torch.Tensor, *more: Any, **named: Any) -> tuple[tuple[Any, ...], Any]:
    """What to gather into a tensor of any shape: gloo cuts it along its first dimension, and SyncBatchNorm has one of length 1."""
    if output.is_contiguous():
        output, input = output.view(-1), input.reshape(-1)
    return (output, input, *more), named


for _name in (*HANDED_ON, *GATHERED):
    if hasattr(dist.ProcessGroup, _name):  # by torch's version
        _hand_on(_name)


def current_job() -> TorchJob | None:
    """This process's part in the job of its default group; None: it has none, or all goes to gloo."""
    return _job


def _leave() -> None:
    """The script ends: in good order, or by an exception."""
    global _job
    leaving, _job = _job, None
    if leaving is not None:
        error = _end_of_script()
        if error is not None:  # to collect PyTorch's objects takes the interpreter a second at its end, and others wait
            gc.freeze()
        leaving.leave(None if error is None else of_script(error, f"failed: {one_line(error)}"))


_OWNER = os.getpid()  # a process that the script forks is no rank


@atexit.register
def _tell_launcher_why() -> None:
    """Tell the launcher why a script ends which has no job, or has left it, where the script's own words say less.

    Wrong input would end another attempt alike, and a checkpoint that cannot be written has an iteration. After `_leave`, which
    runs before, it tells the same.
    """
    error = _end_of_script()
    if os.getpid() == _OWNER and error is not None:
        failure = of_script(error, f"failed: {one_line(error)}")
        if failure.cause is not Cause.SCRIPT:
            tell_launcher(replace(failure, node=own_name(os.environ)))


def _end_of_script() -> BaseException | None:
    """The exception that ends the script; None: it ends in good order.

    Python keeps it as `sys.last_value`. In a process of multiprocessing it is under way still. `torch.multiprocessing.spawn` has
    `sys.exit(1)` in its place.
    """
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return (error.__context__ or error) if error.code else None
    return error or getattr(sys, "last_value", None) or _exit or _exit_of_child()


def _exit_of_child() -> BaseException | None:
    """What tells that a child of multiprocessing fails; None: nothing does.

    From Python 3.13 on its exit functions run once it has handled the exception, with the exit code in a variable of the caller's.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not process.BaseProcess._bootstrap.__code__:  # type: ignore[attr-defined]
        if frame.f_globals.get("__name__") in CHILDREN and (code := frame.f_locals.get("code")):
            return SystemExit(code)
        frame = frame.f_back
    return None


@functools.cache  # once in a process
def _note_exits() -> None:
    """Note what the main thread's calls of `sys.exit` tell: Python keeps no SystemExit, so one that is raised is not seen."""
    exit_now = sys.exit

    def note_exit(status: str | int | None = None) -> NoReturn:
        global _exit
        if threading.current_thread() is threading.main_thread():
            _exit = (sys.exc_info()[1] or SystemExit(status)) if status else None
        exit_now(status)

    sys.exit = note_exit
    for name in ("exit", "quit"):
        setattr(builtins, name, note_exit)


@atexit.register
def _rest() -> None:
    """Let gloo's threads end their last callbacks: one that the interpreter's end meets within Python would abort the process.

    A callback may have a reference to the group too, and a thread that drops the last one would wait for itself. So first they get
    time.
    """
    sleep(REST_S)
    _let_go_of(list(kept_gloo))


def create(options: Any, backend_options: object) -> NalbGroup:
    """Make a group; torch.distributed calls it for each. Raises InputError where another backend has the default group."""
    global _job, _meeting
    rank, size, store = options.group_rank, options.group_size, options.store
    is_default = not options.global_ranks_in_group
    if not is_default and not isinstance(dist.group.WORLD, NalbGroup):
        raise InputError(
            f'backend "nalb": the default group has backend {dist.get_backend()}, so there are no agents: '
            'write init_process_group("nalb")'
        )
    if is_default:
        if _job is not None:  # its group was destroyed while an exception was handled, and the script has gone on
            _job.leave()
            _job = None
        _let_go_of(list(kept_gloo))
        _meeting = meet(dist.PrefixStore(NAME, store), rank, size)
        of_job = dist.PrefixStore(f"{NAME}{_meeting}", store)
        if size == 1:
            options_in(os.environ)  # else `machines_alike` reads them
        if size > 1 and by_gloo_alone():
            machines_alike(of_job, rank, size)  # other ranks may wait for this one's agent
            if "NALB_KEYS" in os.environ:
                raise InputError(f"NALB_SCHEME={GLOO.name} does not encrypt: unset NALB_KEYS, or choose another scheme")
        elif size > 1:
            _job = TorchJob(of_job, rank, size, options.timeout)
            _note_exits()
            # A thread that the interpreter's end meets within torch would end the process by SIGABRT. A child that multiprocessing
            # has forked runs finalizers at its end, and nothing of atexit.
            atexit.register(_leave)
            Finalize(None, _leave, exitpriority=0)
    job = _job if is_default or size == dist.get_world_size() else None
    return NalbGroup(options, dist.PrefixStore(_meeting, store), job, nccl_options=backend_options)
