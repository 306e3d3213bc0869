"""The KVStore that Gluon sees as `kvstore='nalb'`: sums over slices that go where each iteration's plan says.

How it works. What a job pushes is learned, not declared: the first time that a group of keys (one pushpull call) is seen it
is summed by the direct path and recorded. When a recorded group comes again, the record is what an iteration consists of:
all workers register it, the coordinator says how to cut it into slices, and from there on every iteration travels by plan.
A call that does not fit the record, at any point, ends the iteration and starts a new record; nothing is ever guessed.
Choice not taken: filling slices across calls. A call's result must be queued when it returns, or a reader sees stale sums.
"""

import ctypes
import operator
import os
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import mxnet as mx
import numpy as np
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from kvstore_patch.gluon import script_end
from kvstore_patch.shim import Shim
from kvstore_patch.store import ndarrays
from kvstore_patch.store.direct import DirectPath
from kvstore_patch.store.exchange import Exchange, make_slots
from kvstore_patch.store.session import WorkerSession, check_encryption
from nalb.errors import StoreError, listed, one_line
from nalb.failures import Cause, Failure, Phase
from nalb.planning.slices import MAX_SLICE_ELEMENTS, Tensor, build_layout
from nalb.planning.slots import STOCK_KEYS
from nalb.protocol import messages as m
from nalb.schemes import by_name
from nalb.settings import Settings, from_environment
from nalb.transport.reachability import reach_kept

Key = int | str
Group = tuple[tuple[Key, int, str], ...]  # (key, elements, dtype) of one call


class JobFinished(Exception):
    """The job wants no further iteration; only held jobs (compare) end so."""


class NALB(KVStoreBase):
    """Network-aware distributed sums; optimizers run on the workers."""

    def __init__(self, settings: Settings | None = None):
        self._settings = settings or from_environment(os.environ, socket.gethostname())
        self._scheme = by_name(self._settings.scheme)
        self._lock = threading.Lock()  # inner's calls, which the control thread also makes
        Shim.loaded()  # said before ps-lite has met, whose end would wait for the others
        with reach_kept(self._settings):
            check_encryption(self._settings)
            if not self._scheme.routes_itself:  # MXNet would split larger slices over all servers
                os.environ["MXNET_KVSTORE_BIGARRAY_BOUND"] = str(MAX_SLICE_ELEMENTS + 1)
            self._inner = mx.kvstore.create("dist_sync")
            self._session = WorkerSession(self._settings, ps_id=9 + 2 * self._inner.rank)
        self._session.client.on_prepare = self._prepare_slots
        self._num_servers = self._settings.num_servers
        self._direct = DirectPath(self._inner, self._num_servers)
        self._calls: dict[tuple[Key, ...], _Call] = {}  # by their keys, each as it was last
        self._shapes: dict[Key, tuple[tuple[int, ...], str]] = {}
        self._first_keys: dict[tuple, int] = {}  # of a Trainer's parameters
        self._record: list[Group] = []
        self._exchange: Exchange | None = None
        self._position = 0  # groups of this iteration already pushed
        self._plan: m.Plan | None = None
        self._plan_wait_s = 0.0
        self._stock_ready: set[int] = set()
        self._first_stock_key: dict[tuple[Tensor, ...], int] = {}  # by registered tensors, as the planner counts
        self._slot_makers: list[threading.Thread] = []
        self._closed = False
        script_end.at_exit(self._settings.node, self.close, self.fail)
        # MXNet's own handler of forks waits for the exchange under way too, but with the GIL held: no sign of life would go out
        os.register_at_fork(before=mx.nd.waitall, after_in_child=self._forget)

    # ---- what KVStoreBase asks for

    @property
    def type(self) -> str:
        """'nalb': not a 'dist' type, so that Gluon keeps the optimizer on the worker."""
        return "nalb"

    @property
    def rank(self) -> int:
        """This worker's rank in ps-lite."""
        return int(self._inner.rank)

    @property
    def num_workers(self) -> int:
        """How many workers push."""
        return self._settings.num_workers

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Optimizers run on the worker; anything else is unknown."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise StoreError(f"unknown capability {capability!r}: a KVStore is asked for 'optimizer' only")

    def broadcast(self, key: Key | Sequence[Key], value: object, out: object, priority: int = 0) -> None:
        """Rank 0's value to `out` on every worker. Call with the same keys, in the same order, everywhere."""
        del priority  # a broadcast happens before training: in order of calls
        keys, values, outs = _as_lists(key, value, out)
        self._note_call()
        self._end_iteration_early()
        for one, source, targets in zip(keys, values, outs, strict=True):
            self._check(one, [source[0], *targets])
            if self._scheme.ps_lite_kind:
                name = self._scheme.name
                raise StoreError(
                    f"scheme {name} runs replays in `nalb compare`; to train with it: nalb launch --scheme {name}"
                )
            with self._lock:
                self._direct.broadcast(one, source[0], targets)

    def pushpull(self, key: Key | Sequence[Key], value: object, out: object = None, priority: int = 0) -> None:
        """Sum over all workers and devices into `out` (default: in place). Call alike on every worker.

        key: one key (int or str) or a list; value, out: per key one NDArray or one per device. Keys of one call may share
        slices, so push together what is ready together. `priority` is the order of calls here: earlier keys go first.
        """
        del priority
        self._pushpull(key, value, out, are_gradients=False)

    def add_up_gradients(self, keys: Sequence[Key], gradients: Sequence[list[NDArray]]) -> None:
        """`pushpull` in place of what a backward pass writes, and no convolution reads while it infers."""
        self._pushpull(keys, gradients, None, are_gradients=True)

    def _pushpull(self, key: Key | Sequence[Key], value: object, out: object, are_gradients: bool) -> None:
        keys, values, outs = _as_lists(key, value, out)
        self._note_call()
        call = self._check_call(keys, values, outs)
        group = call.group
        if self._exchange is None and group in self._record:
            self._freeze(group)
        if self._exchange is not None and self._record[self._position] != group:
            self._end_iteration_early()
            self._exchange, self._record = None, []
            self._calls = {tuple(keys): call}  # the others' arrays would be kept for ever
        if self._exchange is None:
            self._record.append(group)
            if self._scheme.ps_lite_kind:  # it cuts and routes every array by itself: no slots, no direct path
                for one in keys:
                    if not isinstance(one, int) or not 0 <= one < STOCK_KEYS:
                        raise StoreError(
                            f"scheme {self._scheme.name!r} needs integer keys below {STOCK_KEYS}, got {one!r}"
                        )
                self._outs = []
                self._push_stock(keys, call, are_gradients)
                return
            with self._lock:
                for one, sources, targets in zip(keys, values, outs, strict=True):
                    self._direct.add_up(one, sources, targets)
            return
        self._push_planned(call, are_gradients)

    def add_up_once(self, key: Key, array: NDArray) -> None:
        """The sum over all workers into `array`, apart from what iterations consist of. Call alike on every worker."""
        self._note_call()
        self._end_iteration_early()
        with self._lock:
            self._direct.add_up(key, [array], [array])

    def first_key(self, parameters: tuple) -> int:
        """Where a Trainer's keys begin: it has one for each parameter, which no Trainer of other ones has."""
        return self._first_keys.setdefault(parameters, sum(map(len, self._first_keys)))

    def set_gradient_compression(self, compression_params: object) -> None:
        """Not supported: compressed gradients cannot be summed slice by slice."""
        raise StoreError(
            f"gradient compression ({compression_params}) is not supported by kvstore 'nalb': leave it out"
        )

    def set_optimizer(self, optimizer: object) -> None:
        """Not supported: optimizers run on the worker."""
        raise StoreError(
            f"kvstore 'nalb' updates on the worker, not {type(optimizer).__name__} on servers: "
            "pass update_on_kvstore=False or leave it out"
        )

    def push(self, key: Key, *_: object, **__: object) -> None:
        """Not supported: a push without its pull is what sparse gradients do."""
        raise StoreError(
            f"key {key!r}: kvstore 'nalb' has no separate push and pull (sparse gradients need them); "
            "use dense gradients (grad_stype='default')"
        )

    pull = row_sparse_pull = init = push

    def _note_call(self) -> None:
        self._session.client.calls += 1
        script_end.goes_on()

    # ---- the planned path

    def _check_call(self, keys: list[Key], values: list[list[NDArray]], outs: list[list[NDArray]]) -> "_Call":
        """What a call consists of. Arrays that are passed again and again, as by Gluon, are checked once."""
        known = self._calls.get(tuple(keys))
        if known is not None and _are_same(known.values, values) and _are_same(known.outs, outs):
            return known
        for one, sources, targets in zip(keys, values, outs, strict=True):
            self._check(one, sources + targets)
        firsts = [sources[0] for sources in values]
        group = tuple((one, int(a.size), ndarrays.dtype_name(a, one)) for one, a in zip(keys, firsts, strict=True))
        # MXNet sums in place where a value is one array, whatever out= says
        own = [
            [o[0]] if len(v) == 1 and all(one is not v[0] for one in o) else v
            for v, o in zip(values, outs, strict=True)
        ]
        copies = [(v[0], o[0]) for v, o in zip(values, own, strict=True) if o is not v and v[0].size]
        exchanged = [ndarrays.PushPull(self._inner, *both) for both in zip(own, outs, strict=True)]
        arrays = [array for one in (*values, *outs) for array in one if array.size]
        distinct = list({id(array): array for array in arrays}.values())
        call = self._calls[tuple(keys)] = _Call(values, outs, distinct, group, copies, exchanged)
        return call

    def _check(self, key: Key, arrays: list[NDArray]) -> None:
        first = arrays[0]
        for array in arrays:
            if not isinstance(array, NDArray):
                raise StoreError(f"key {key!r}: expected NDArrays, got {type(array).__name__}")
            if array.stype != "default":
                raise StoreError(
                    f"key {key!r} is {array.stype}: kvstore 'nalb' sums dense arrays only; set stype='default'"
                )
            if array.shape != first.shape or array.dtype != first.dtype:
                raise StoreError(
                    f"key {key!r}: arrays of one key differ: {first.shape} {np.dtype(first.dtype).name} and "
                    f"{array.shape} {np.dtype(array.dtype).name}"
                )
        seen = self._shapes.setdefault(key, (first.shape, ndarrays.dtype_name(first, key)))
        if seen != (first.shape, ndarrays.dtype_name(first, key)):
            raise StoreError(
                f"key {key!r} was {seen[1]} of shape {seen[0]} and is now {ndarrays.dtype_name(first, key)} of shape "
                f"{first.shape}: a key keeps its shape; use a new key"
            )

    def _freeze(self, group: Group) -> None:
        """The record is an iteration: agree with everyone on its slices."""
        self._record = self._record[self._record.index(group) :]  # what came once before the cycle is not part of it
        tensors = [
            m.TensorSpec(str(key)[: m.NAME_MOST], elements, dtype, index)  # for people: as much as a name may have
            for index, one in enumerate(self._record)
            for key, elements, dtype in one
        ]
        self._tensors = [Tensor(t.name, t.elements, t.dtype, t.group) for t in tensors]
        self._first_tensor = [0]
        for one in self._record:
            self._first_tensor.append(self._first_tensor[-1] + len(one))
        kept = self._first_stock_key
        self._first_key = kept.setdefault(tuple(self._tensors), sum(map(len, kept)))
        self._cut(self._session.register(tensors))

    def _cut(self, setup: m.Setup) -> None:
        """Make the slices that the coordinator counts on."""
        layout = build_layout(
            self._tensors,
            num_nodes=setup.num_nodes,
            num_servers=setup.num_servers,
            alpha_bytes=setup.alpha_bytes,
            fixed_slice_bytes=setup.fixed_slice_bytes,
            num_probe=setup.num_probe,
        )
        if layout.digest() != setup.digest:
            raise StoreError(
                "this worker cuts the tensors differently from the coordinator: install the same nalb everywhere"
            )
        self._exchange = Exchange(self._inner, self._lock, layout, self._num_servers, self._settings.verify_sums)
        self._position = 0

    def _push_planned(self, call: "_Call", are_gradients: bool) -> None:
        assert self._exchange is not None
        if self._position == 0:
            self._session.wait_finished()
            message, self._plan_wait_s = self._session.next_plan()
            while isinstance(message, m.Setup):
                self._cut(message)
                message, self._plan_wait_s = self._session.next_plan()
            if message is None:
                raise JobFinished
            self._plan = message
            self._outs: list[NDArray] = []
            self._computed: list[NDArray] = []
        assert self._plan is not None
        # backpropagation ends at one end of a group; queued before the sums, which are written into the same arrays
        self._computed.append(ndarrays.probe([call.values[0][0], call.values[-1][0]]))
        if self._plan.routes_itself:
            first = self._first_key + self._first_tensor[self._position]
            self._push_stock(range(first, first + len(call.group)), call, are_gradients)
        else:
            sources = [ndarrays.add_up(arrays) for arrays in call.values]
            self._exchange.push_group(self._plan, self._first_tensor[self._position], sources, call.outs)
        self._position += 1
        if self._position == len(self._record):
            self._finish_iteration()

    def _finish_iteration(self) -> None:
        assert self._exchange is not None
        assert self._plan is not None
        is_stock = self._plan.routes_itself
        wait = partial(ndarrays.wait_for_all, self._outs) if is_stock else self._exchange.wait
        sums = (lambda: None) if is_stock else partial(self._exchange.sums, self._plan.iteration)
        self._position = 0
        wait_computed = partial(ndarrays.wait_for_all, self._computed)
        self._session.finish(self._plan, wait_computed, wait, sums, self._plan_wait_s)

    def _end_iteration_early(self) -> None:
        if self._position:
            self._finish_iteration()
        self._session.wait_finished()

    def _push_stock(self, keys: Sequence[int], call: "_Call", are_gradients: bool) -> None:
        """What MXNet's own dist_sync does with Gluon's calls: one fused pushpull per tensor, its own routing.

        keys: of the tensors in their order; the script's may be words.
        """
        if keys[-1] >= STOCK_KEYS:
            raise StoreError(f"MXNet's own routing has {STOCK_KEYS} keys here, and this job pushes more tensors")
        for array in call.arrays:
            if not are_gradients:
                ndarrays.wait_until_sent(array)
            if not are_gradients or array.ndim > 1:  # a vector has one layout; but this may be a view of something else
                ndarrays.reorder(array)
        for source, target in call.copies:
            source.as_nd_ndarray().copyto(target.as_nd_ndarray())
        kept = [(key, place) for place, key in enumerate(keys) if call.values[place][0].size]
        with self._lock:
            if new := [(key, call.values[place][0]) for key, place in kept if key not in self._stock_ready]:
                self._inner.init(*map(list, zip(*new, strict=True)))
                self._stock_ready.update(key for key, _ in new)
            for key, place in kept:
                call.exchanged[place](key, -key)
        self._outs.append(ndarrays.probe(call.arrays))

    def _prepare_slots(self, message: m.PrepareSlots) -> None:
        if not self._session.protocol.is_new_order(message):
            return  # a second creation would count as a push

        def work() -> None:
            try:
                make_slots(self._inner, self._lock, message.slots, self._num_servers)
            except Exception as error:
                client, why = self._session.client, f"cannot make slots: {one_line(error)}"
                client.send(m.Failed(client.failure(Cause.PROCESS, why, Phase.PLAN, message.iteration)))
                return
            self._session.client.send(m.SlotsReady(message.iteration, message.layout_version))

        thread = threading.Thread(target=work, name="nalb-slots", daemon=True)  # signs of life go on meanwhile
        self._slot_makers.append(thread)
        thread.start()

    def close(self) -> None:
        """Leave the job: wait for what is under way, say goodbye, and let ps-lite finish with the others."""
        if self._closed:
            return
        self._end_iteration_early()
        mx.nd.waitall()  # raises what an operation that nobody waited for came to
        self._closed = True
        self._session.leave()
        for thread in self._slot_makers:
            thread.join()  # each holds the inner store, which must end here: the process would exit under ps-lite's threads
        with self._lock:
            del self._exchange, self._direct, self._calls
            del self._inner  # its destructor waits for all workers and stops the servers

    def _forget(self) -> None:
        """In a fork, where ps-lite has no threads: the store's end would wait for all workers, and C++'s end for those threads."""
        if not self._closed:
            self._inner.handle = None
        libc = ctypes.CDLL(None)
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)  # with the status, once Python has ended

    def fail(self, failure: Failure) -> None:
        """Leave the job in disorder: everyone must end, and the peers would wait for ever in ps-lite's barrier."""
        if not self._closed:
            self._closed = True
            self._session.client.close(m.Failed(failure))


class _Call(NamedTuple):
    """A checked call of pushpull."""

    values: list[list[NDArray]]  # per key, one for each device
    outs: list[list[NDArray]]  # likewise
    arrays: list[NDArray]  # all of both, once each, that are not empty
    group: Group
    copies: list[tuple[NDArray, NDArray]]  # to be made before MXNet's own routing, which sums in place
    exchanged: list[ndarrays.PushPull]  # per key, for MXNet's own routing


def _are_same(known: list[list[NDArray]], arrays: list[list[NDArray]]) -> bool:
    """Whether all are the same objects, in the same places."""
    return len(known) == len(arrays) and all(
        len(one) == len(other) and all(map(operator.is_, one, other)) for one, other in zip(known, arrays, strict=True)
    )


def _as_lists(
    key: Key | Sequence[Key], value: object, out: object
) -> tuple[list[Key], list[list[NDArray]], list[list[NDArray]]]:
    """Keys, and per key the arrays of its devices."""
    if isinstance(key, int | str):
        keys, values, outs = [key], [value], [value if out is None else out]
    else:
        keys = list(key)
        values = list(value)  # type: ignore[call-overload]
        outs = values if out is None else list(out)  # type: ignore[call-overload]
    if not keys:
        raise StoreError("pushpull and broadcast need at least one key")
    if repeated := [str(one) for one, count in Counter(keys).items() if count > 1]:
        raise StoreError(f"keys that occur twice in one call: {listed(repeated)}: give each once")
    if not len(keys) == len(values) == len(outs):
        raise StoreError(
            f"{len(keys)} keys, {len(values)} values and {len(outs)} outs in one call: give one of each per key"
        )
    return keys, [_as_list(v) for v in values], [_as_list(o) for o in outs]


def _as_list(arrays: object) -> list[NDArray]:
    return list(arrays) if isinstance(arrays, list | tuple) else [arrays]  # type: ignore[list-item]
