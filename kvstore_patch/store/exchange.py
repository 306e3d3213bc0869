"""Sums of arrays over all workers, for any front end. MXNet's KVStore API is one (kvstore.py).

    exchange, recorder = Exchange(settings), IterationRecorder()     # one per process; waits for all processes of the job
    call = exchange.prepare(["weight", "bias"], gradients, gradients)
    exchange.add_up(call, recorder.place(call.group))                # queued: reading the arrays waits for the sums

Arrays are MXNet's; `mx.nd.from_dlpack` and `mx.nd.from_numpy` make them from other libraries' arrays without a copy. All workers
must make the same calls: where one does not, the job ends before a wrong sum is handed out (nalb/services/exchange/calls.py). A
front end that knows what its iterations are makes each PlaceInIteration itself and needs no recorder.

Each sum takes one of three ways. A call of no known iteration goes directly (direct.py), once all workers have announced the same
call. The calls of an iteration go as its plan says: cut into slices (sliced.py), or whole by MXNet's routing (whole_tensors.py).
"""

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Concatenate, ParamSpec

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray

from kvstore_patch.shim import Shim
from kvstore_patch.store import ndarrays, script_end
from kvstore_patch.store.calls import Arrays, Call, Calls, require_dense
from kvstore_patch.store.direct import DirectPath
from kvstore_patch.store.one_level import OneLevel
from kvstore_patch.store.ps_lite import PsLite, check_encryption
from kvstore_patch.store.sliced import SlicedPath
from kvstore_patch.store.slot_maker import Orders, SlotMaker
from kvstore_patch.store.two_levels import Levels, TwoLevels
from kvstore_patch.store.whole_tensors import WholeTensors
from nalb.errors import StoreError
from nalb.failures import Failure
from nalb.planning.slices import MAX_SLICE_ELEMENTS, Tensor
from nalb.planning.stock import STOCK_KEYS
from nalb.protocol import wire
from nalb.schemes import by_name
from nalb.services.exchange import messages as m
from nalb.services.exchange.calls import announcement
from nalb.services.exchange.recorder import Group, Key, PlaceInIteration
from nalb.services.exchange.worker_protocol import layout_by
from nalb.settings import Settings
from nalb.transport.client import Client
from nalb.transport.reachability import reach_kept
from nalb.transport.worker_session import WorkerSession

P = ParamSpec("P")


class JobFinished(Exception):
    """Raised where the job wants no further iteration. Only held jobs (`nalb compare`) end so."""


def _unrecorded(
    method: Callable[Concatenate["WorkerExchange", P], None],
) -> Callable[Concatenate["WorkerExchange", P], None]:
    """Keep autograd from recording the copies of a call that the script makes while it records."""

    @functools.wraps(method)
    def call(self: "WorkerExchange", /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not mx.autograd.is_recording():
            method(self, *args, **kwargs)
            return
        with mx.autograd.pause():
            method(self, *args, **kwargs)

    return call


class WorkerExchange:
    """Makes a worker's sums. Only one thread may call it; the script's end closes it."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._scheme = by_name(settings.scheme)
        self._lock = threading.Lock()  # guards calls of `inner`, which the thread that makes slots calls too
        shim = Shim.loaded()  # raises before ps-lite has started, whose end would wait for the other processes
        orders = Orders()
        with reach_kept(settings):
            check_encryption(settings)
            if not self._scheme.routes_itself:  # MXNet would split larger slices over all servers
                os.environ["MXNET_KVSTORE_BIGARRAY_BOUND"] = str(MAX_SLICE_ELEMENTS + 1)
            inner = mx.kvstore.base.create("dist_sync")  # mx.kvstore.create, patched, refuses this name
            assert isinstance(inner, mx.kvstore.KVStore)
            self.inner = inner
            self.session = WorkerSession(settings, int(inner.rank), PsLite(shim, orders.put))
        self.rank = int(self.inner.rank)  # this worker's rank in ps-lite
        self._levels = self._levels_of(self.session.welcome)
        self.slot_maker = SlotMaker(orders, self.session, self.inner, self._lock, self._levels)
        self._calls_made = 0
        self._calls = Calls(self.inner)
        self.direct = DirectPath(self.inner, self._levels)
        self._own = WholeTensors(self.inner, self._lock)
        self._sliced: SlicedPath | None = None  # for the registered tensors
        self._tensors: list[Tensor] = []  # the registered ones
        self._first_tensor: list[int] = []  # index of each group's first tensor
        self._own_keys: list[int] = []  # of the tensors, where MXNet routes
        self._plan: m.Plan | None = None  # of the iteration under way
        self._plan_wait_s = 0.0  # of the iteration under way
        self._computed: list[NDArray] = []  # arrays that are ready with the gradients of this iteration
        self._outs: list[NDArray] = []  # arrays that are ready with its sums, where MXNet routes
        self._closed = False
        self._unread: Exception | None = None  # the error of an operation that nobody had read when the script forked
        self._is_broken = False  # a call failed half-way
        self.may_call: Callable[[], bool] = lambda: True  # whether this thread may; Fela's sums have one of their own
        self._before_leaving: list[Callable[[], None]] = []
        self._after_leaving: list[Callable[[], None]] = []
        script_end.at_exit(settings.node, self.close, self.fail)
        # MXNet's own fork handler also waits for the exchange under way, but holds the GIL: no sign of life would go out
        os.register_at_fork(before=self._wait_before_fork, after_in_child=self._forget)

    def _levels_of(self, welcome: wire.Welcome) -> Levels:
        if welcome.levels is None:
            return OneLevel(self.inner, self._settings.num_servers)
        node = welcome.nodes.index(self._settings.node)
        return TwoLevels(self.inner, welcome.levels, node, self._settings.num_servers)

    @property
    def client(self) -> Client:
        """This worker's end of the control plane."""
        return self.session.client

    def prepare(self, keys: Sequence[Key], values: Arrays, outs: Arrays) -> Call:
        """Prepare a call. values: per key the arrays to be summed, one per device. outs: per key the arrays that get the sum.

        The same arrays give the same call again, at once. Keys of one call may share slices, so put arrays into one call that are
        ready together; earlier keys go first. Raises StoreError for arrays that cannot be summed.
        """
        self._require_turn()
        return self._calls.prepare(keys, values, outs)

    @_unrecorded
    def add_up(self, call: Call, place: PlaceInIteration, are_gradients: bool = False) -> None:
        """Queue the call's sums. Raises JobFinished instead of beginning an iteration when the job wants none.

        place: the call's place in an iteration. are_gradients: a backward pass writes the arrays, and no convolution reads them
        while it infers.
        """
        is_planned = place.number >= 0
        self._begin_call(None if is_planned else "sum", call.group)
        if place.breaks_off:
            self._end_iteration()
            self._sliced = None
            self._calls.forget_all()
        if place.learned:
            self._register(place.learned)
        if is_planned:
            self._add_up_as_planned(call, place, are_gradients)
            return
        self._calls.forget(call)
        with self._travelling_directly([one[0] for one in call.values], call.arrays):
            if self._scheme.ps_lite_kind:  # such a ps-lite cuts and routes every array itself, without slots
                self._own.push([self._own_key(key) for key in call.keys], call, are_gradients)
            else:
                with self._lock:
                    for key, values, outs in zip(call.keys, call.values, call.outs, strict=True):
                        self.direct.add_up(key, values, outs)

    @_unrecorded
    def add_up_once(self, key: Key, array: NDArray) -> None:
        """Queue one sum into `array`, by a call that belongs to no iteration. Raises StoreError."""
        self._require_turn()
        require_dense(key, array)
        self._begin_call("single sum", ((key, int(array.size), ndarrays.dtype_name(array, key)),))
        self._end_iteration()
        with self._travelling_directly([array], [array]), self._lock:
            self.direct.add_up(key, [array], [array])

    @_unrecorded
    def broadcast(self, keys: Sequence[Key], values: Arrays, outs: Arrays) -> None:
        """Queue copies of rank 0's `values` to `outs` on every worker. Raises StoreError."""
        self._require_turn()
        if self._scheme.ps_lite_kind:
            name = self._scheme.name
            raise StoreError(
                f"scheme {name} runs replays in `nalb compare`; to train with it: nalb launch --scheme {name}"
            )
        for key, sources, targets in zip(keys, values, outs, strict=True):
            self._calls.check(key, [sources[0], *targets])
        firsts = [(key, sources[0]) for key, sources in zip(keys, values, strict=True)]
        self._begin_call(
            "broadcast", tuple((key, int(first.size), ndarrays.dtype_name(first, key)) for key, first in firsts)
        )
        self._end_iteration()
        with self._travelling_directly([first for _, first in firsts], list(chain.from_iterable(outs))), self._lock:
            for (key, first), targets in zip(firsts, outs, strict=True):
                self.direct.broadcast(key, first, targets)

    def at_close(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Let `close` call `before` first, and `after` once every worker has said goodbye."""
        self._before_leaving.append(before)
        self._after_leaving.append(after)

    def close(self) -> None:
        """Leave the job: wait for operations under way, say goodbye, and end ps-lite together with the other workers."""
        if self._closed:
            return
        for act in self._before_leaving:
            act()
        self._end_iteration()
        self._raise_unread()
        mx.nd.waitall()  # raises errors of operations that nobody waited for
        self._closed = True
        self.session.leave()
        for act in self._after_leaving:
            act()
        self.slot_maker.close()
        handle = self.inner.handle
        self.inner.handle = None  # keeps other references to the store from ending it again
        check_call(_LIB.MXKVStoreFree(handle))  # waits for all workers and stops the servers

    def fail(self, failure: Failure) -> None:
        """Leave the job after a failure: tell the coordinator, so that the others end instead of waiting in ps-lite's barrier."""
        if not self._closed:
            self._closed = True
            self.client.close(wire.Failed(failure))

    # ---- the planned path

    def _register(self, groups: Sequence[Group]) -> None:
        """Register the groups that every iteration consists of, and cut their tensors as all workers do."""
        tensors = [
            m.TensorSpec(str(key)[: m.NAME_MOST], elements, dtype, index)  # the name is for people
            for index, one in enumerate(groups)
            for key, elements, dtype in one
        ]
        self._tensors = [Tensor(t.name, t.elements, t.dtype, t.group) for t in tensors]
        self._first_tensor = [0]
        for one in groups:
            self._first_tensor.append(self._first_tensor[-1] + len(one))
        self._own_keys = self._own.keys_of(self._tensors)
        self._cut(self.session.register(tensors))

    def _cut(self, setup: m.Setup) -> None:
        """Cut the tensors into the slices that the coordinator expects. Raises StoreError where they differ."""
        layout = layout_by(setup, self._tensors, "this worker")
        self._sliced = SlicedPath(self._lock, layout, self._levels, self.rank, self._settings.verify_sums)

    def _begin_iteration(self) -> m.Plan:
        self.session.wait_finished()
        message, self._plan_wait_s = self.session.next_plan()
        while isinstance(message, m.Setup):
            self._cut(message)
            message, self._plan_wait_s = self.session.next_plan()
        if message is None:
            raise JobFinished
        self._outs, self._computed = [], []
        return message

    def _add_up_as_planned(self, call: Call, place: PlaceInIteration, are_gradients: bool) -> None:
        plan = self._plan = self._plan or self._begin_iteration()
        assert self._sliced is not None
        first = self._first_tensor[place.number]
        self._computed.append(call.is_computed())  # queued before the sums overwrite the arrays
        if plan.routes_itself:
            keys = self._own_keys[first : first + len(call.group)]
            self._outs.append(self._own.push(keys, call, are_gradients))
        else:
            sources = [ndarrays.add_up(arrays) for arrays in call.values]
            self._sliced.push_group(plan, first, sources, call.outs)
        if place.is_last:
            self._finish_iteration(plan, is_whole=True)

    def _finish_iteration(self, plan: m.Plan, is_whole: bool) -> None:
        assert self._sliced is not None
        is_stock = plan.routes_itself
        wait = partial(ndarrays.wait_for_all, self._outs) if is_stock else self._sliced.wait
        sums = (lambda: None) if is_stock else partial(self._sliced.sums, plan.iteration)
        self._plan = None
        wait_computed = partial(ndarrays.wait_for_all, self._computed)
        self.session.finish(plan, wait_computed, wait, sums, self._plan_wait_s, is_whole)

    def _end_iteration(self) -> None:
        """Break off the iteration under way, if any, after the calls made so far, and wait for its sums."""
        if self._plan is not None:
            self._finish_iteration(self._plan, is_whole=False)
        self.session.wait_finished()

    def _own_key(self, key: Key) -> int:
        if not isinstance(key, int) or not 0 <= key < STOCK_KEYS:
            raise StoreError(f"scheme {self._scheme.name!r} needs integer keys below {STOCK_KEYS}, got {key!r}")
        return key

    def _begin_call(self, announced_as: m.CallKind | None, group: Group) -> None:
        """Announce a call that is not planned, then count it: no report may tell of a call that is not announced yet."""
        if self._closed:
            raise StoreError("this worker has left the job: make no sums once the script ends")
        self._raise_unread()
        if self._is_broken:
            raise StoreError(
                "a sum before this one failed while it was queued, and other workers wait for it: start again"
            )
        if announced_as:
            self.client.send(announcement(self._calls_made, announced_as, group))
        self._calls_made += 1
        self.client.note(calls=self._calls_made)
        script_end.goes_on()

    @contextmanager
    def _travelling_directly(self, values: Sequence[NDArray], arrays: Sequence[NDArray]) -> Iterator[None]:
        """Enclose a call's pushes: wait first until all workers have announced the same call, so that only its arrays are summed.

        Reports tell when `values` are ready, so that only the sums are missing, and when the sums are back in `arrays`. DirectPath
        waits for operations that read its arrays too, as a first forward pass reads weights. So its values are ready at its end.
        """
        number = self._calls_made - 1
        self.client.wait_for(m.CallAgreed, lambda agreed: agreed.number == number)
        if self._scheme.ps_lite_kind:
            self.session.note_once(_ready(values), ready=number + 1)
        self._is_broken = True  # until all is pushed: the other workers wait for it
        yield
        self._is_broken = False
        if not self._scheme.ps_lite_kind:
            self.session.note_once(lambda: None, ready=number + 1)
        self.session.note_once(_ready(arrays), summed=number + 1)

    def _require_turn(self) -> None:
        if not self.may_call():
            raise StoreError(
                "Fela sums gradients on this store now: call trainer.gather() first, and use the store before the next step"
            )

    def _wait_before_fork(self) -> None:
        try:
            mx.nd.waitall()
        except Exception as error:  # Python would print it, and go on; MXNet has forgotten it by now
            self._unread = error

    def _raise_unread(self) -> None:
        error, self._unread = self._unread, None
        if error is not None:
            raise error

    def _forget(self) -> None:
        """Forget the store in a forked process: it has no threads of ps-lite, so its end must not wait for them or for workers."""
        self.inner.handle = None
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)  # exits with the status once Python has ended


def _ready(arrays: Sequence[NDArray]) -> Callable[[], None]:
    """A function that waits until the writes queued so far into these arrays are done, and for no later ones."""
    some = [array for array in arrays if array.size]
    return ndarrays.Probe(some)().wait_to_read if some else lambda: None
