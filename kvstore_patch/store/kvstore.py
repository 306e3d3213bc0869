"""The KVStore that Gluon sees as `kvstore='nalb'`: MXNet's API in front of the recorder and the exchange.

One call of pushpull is a group. The recorder learns from the groups what an iteration is (nalb/services/exchange/recorder.py) and
guesses nothing. The exchange sums each iteration by its plan (exchange.py).
Choice not taken: slices that span calls. A call's result must be queued when the call returns, or a reader sees stale sums.
"""

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import Any, NoReturn

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from kvstore_patch.keys.slots import DTYPES
from kvstore_patch.store import ndarrays
from kvstore_patch.store.calls import Arrays
from kvstore_patch.store.exchange import WorkerExchange
from kvstore_patch.store.names import NO_PUSH, TYPE
from nalb.errors import StoreError, listed
from nalb.services.exchange.recorder import IterationRecorder, Key
from nalb.settings import Settings, from_environment
from nalb.transport.client import Client

BARRIER = "barrier"  # the key of the barrier's sum
KEEPERS_OF_STATES = "the Trainer's save_states and load_states, or the Module's save_optimizer_states"


class NALB(KVStoreBase):
    """A KVStore of network-aware distributed sums. Optimizers run on the workers."""

    def __init__(self, settings: Settings | None = None):
        self.settings = settings or from_environment(os.environ, socket.gethostname())
        self._recorder, self.exchange = IterationRecorder(), WorkerExchange(self.settings)
        self._first_keys: dict[tuple[object, ...], int] = {}  # by a Trainer's parameters
        self._keys: dict[tuple[object, ...], int] = {}  # by a Module's parameter

    @property
    def client(self) -> Client:
        """This worker's end of the control plane."""
        return self.exchange.client

    # ---- the methods of KVStoreBase

    @property
    def type(self) -> str:
        """'dist_sync_nalb': 'dist' lets scripts split their data, and '_sync' lets Module divide by all workers' batches."""
        return TYPE

    @property
    def rank(self) -> int:
        """This worker's rank in ps-lite."""
        return self.exchange.rank

    @property
    def num_workers(self) -> int:
        """The number of workers that push."""
        return self.settings.num_workers

    @staticmethod
    def is_capable(capability: str) -> bool:
        """False for 'optimizer', since optimizers run on the workers. Raises StoreError for any other capability."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return False
        raise StoreError(f"unknown capability {capability!r}: a KVStore is asked for 'optimizer' only")

    def broadcast(self, key: Key | Sequence[Key], value: object, out: object, priority: int = 0) -> None:
        """Copy rank 0's value to `out` on every worker. Call it with the same keys in the same order on every worker.

        Values of a dtype that servers do not add up, such as whole numbers, travel as their 16-bit halves in float32.
        """
        del priority  # a broadcast happens before training, in the order of calls
        keys, values, outs = _as_lists(key, value, out)
        other = [index for index, (first, *_) in enumerate(values) if np.dtype(first.dtype).name not in DTYPES]
        sent, back = [*values], [*outs]
        for index in other:
            sent[index] = back[index] = [mx.nd.array(halves(values[index][0].asnumpy().tobytes()), dtype="float32")]
        self.exchange.broadcast(keys, sent, back)
        for index in other:
            for target in outs[index]:
                data = whole(back[index][0].asnumpy(), target.size * np.dtype(target.dtype).itemsize)
                ndarrays.write(target, np.frombuffer(data, target.dtype).reshape(target.shape))
        self._recorder.break_off()

    def pushpull(self, key: Key | Sequence[Key], value: object, out: object = None, priority: int = 0) -> None:
        """Sum over all workers and devices into `out` (default: in place). Make the same calls on every worker.

        key: one key (int or str) or a list; value, out: per key one NDArray or one per device. Keys of one call may share slices,
        so push arrays together that are ready together. priority: not used; earlier calls, and earlier keys of a call, go first.
        """
        del priority
        self._add_up(*_as_lists(key, value, out), are_gradients=False)

    def add_up_gradients(self, keys: Sequence[Key], gradients: Arrays) -> None:
        """`pushpull` in place, faster, of arrays that a backward pass writes and that no convolution reads while it infers.

        keys: at least one, each once. gradients: per key the arrays of all devices.
        """
        self._add_up(keys, gradients, gradients, are_gradients=True)

    def _add_up(self, keys: Sequence[Key], values: Arrays, outs: Arrays, are_gradients: bool) -> None:
        call = self.exchange.prepare(keys, values, outs)
        if call.arrays:  # else all are empty: nothing is to be summed, and no iteration can be planned of that alone
            self.exchange.add_up(call, self._recorder.place(call.group), are_gradients)

    def add_up_once(self, key: Key, array: NDArray) -> None:
        """Sum `array` over all workers in place, by a call that belongs to no iteration. Make the same call on every worker."""
        self.exchange.add_up_once(_as_key(key), array)
        self._recorder.break_off()

    def at_close(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Let a script that ends well call `before` before this worker says goodbye, and `after` once all workers have."""
        self.exchange.at_close(before, after)

    def first_key(self, parameters: tuple[object, ...]) -> int:
        """The first of a Trainer's keys: it has one for each parameter, and Trainers of other parameters have other keys."""
        return self._first_keys.setdefault(parameters, sum(map(len, self._first_keys)))

    def key_of(self, name: str, like: NDArray) -> int:
        """The key of a Module's parameter, numbered in the order in which parameters come: workers' automatic names may differ."""
        parameter = name, like.shape, like.dtype
        if parameter not in self._keys:
            self._keys[parameter] = self.first_key((parameter,))
        return self._keys[parameter]

    def check_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """Raise StoreError for an optimizer that draws random numbers where several workers would draw different ones."""
        if isinstance(optimizer, mx.optimizer.SGLD) and self.num_workers > 1:
            raise StoreError(
                f"optimizer {type(optimizer).__name__} draws random numbers, other ones on each of {self.num_workers} workers, "
                "so their weights would drift apart: choose another, or --scheme stock"
            )

    def _barrier(self) -> None:
        """Wait until every worker has called this, by a sum of one number."""
        array = mx.nd.zeros((1,))
        self.add_up_once(BARRIER, array)
        array.wait_to_read()

    # ---- further methods of MXNet's own stores, which raise StoreError

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

    def _set_updater(self, updater: object) -> None:
        """Not supported: the store only sums."""
        raise StoreError(
            f"kvstore 'nalb' has no updater: sum by pushpull, then call {type(updater).__name__} on the sums"
        )

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Not supported: optimizers run on the worker."""
        del dump_optimizer
        raise StoreError(f"{fname}: kvstore 'nalb' has no optimizer: save with {KEEPERS_OF_STATES}")

    def load_optimizer_states(self, fname: str) -> None:
        """Not supported: optimizers run on the worker."""
        raise StoreError(f"{fname}: kvstore 'nalb' has no optimizer: load with {KEEPERS_OF_STATES}")

    def init(self, key: Key, value: object) -> None:
        """Not supported: servers keep no values between sums."""
        del value
        raise StoreError(
            f"key {key!r}: kvstore 'nalb' keeps no values: leave init out; broadcast(key, value, out) gives all rank 0's"
        )

    def push(self, key: Key, *_: object, **__: object) -> None:
        """Not supported: only sparse gradients need a push without its pull."""
        raise StoreError(f"key {key!r}: {NO_PUSH}")

    pull = row_sparse_pull = push

    def _send_command_to_servers(self, head: int, body: str) -> None:
        """Not supported: servers obey the coordinator alone."""
        del body
        raise StoreError(f"command {head}: servers of kvstore 'nalb' take no commands from scripts: leave it out")

    @property
    def handle(self) -> NoReturn:
        """Not supported: MXNet's C functions would push without a plan."""
        raise AbsentError(
            "kvstore 'nalb' has no handle for MXNet's C functions: use its methods; profile workers, not servers"
        )


def halves(data: bytes) -> npt.NDArray[np.float32]:
    """Some bytes as 16-bit numbers, which float32 holds and servers add up exactly."""
    return np.frombuffer(data + b"\0" * (len(data) % 2), np.uint16).astype(np.float32)


def whole(numbers: npt.NDArray[Any], size_bytes: int) -> bytes:
    """The bytes that `halves` took apart."""
    return numbers.astype(np.uint16).tobytes()[:size_bytes]


class AbsentError(StoreError, AttributeError):
    """Raised for an attribute that the store does not have; an AttributeError too, so hasattr gives False."""


def _as_lists(
    key: Key | Sequence[Key], value: object, out: object
) -> tuple[list[Key], list[list[NDArray]], list[list[NDArray]]]:
    """(keys, values, outs) as lists; values and outs hold per key the arrays of its devices. Raises StoreError."""
    if isinstance(key, str | bytes) or not isinstance(key, Iterable):
        keys, values, outs = [_as_key(key)], [value], [value if out is None else out]
    else:
        keys = [_as_key(one) for one in key]
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
    return keys, [*map(_as_list, keys, values)], [*map(_as_list, keys, outs)]


def _as_key(key: object) -> Key:
    if isinstance(key, str):
        return key
    if isinstance(key, Integral):
        return int(key)
    raise StoreError(f"key {key!r} is of type {type(key).__name__}: give an integer or a string")


def _as_list(key: Key, arrays: object) -> list[NDArray]:
    if not isinstance(arrays, list | tuple):
        return [arrays]  # type: ignore[list-item]
    if not arrays:
        raise StoreError(f"key {key!r} has no array: give one, or one per device")
    return list(arrays)


def required(store: KVStoreBase, what: str) -> NALB:
    """The store, which must be kvstore 'nalb'. what: what needs it, as a sentence's beginning. Raises StoreError."""
    if not isinstance(store, NALB):
        raise StoreError(f"{what} with kvstore 'nalb': create that one, without --scheme stock and NALB_ALONE")
    return store
