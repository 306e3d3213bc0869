"""The KVStore that Gluon sees as `kvstore='nalb'`: MXNet's API in front of the recorder and the exchange.

One call of pushpull is a group. The recorder learns from the groups what an iteration is (nalb/protocol/recorder.py); nothing is
guessed. The exchange sums each iteration by its plan (exchange.py).
Choice not taken: filling slices across calls. A call's result must be queued when it returns, or a reader sees stale sums.
"""

import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NoReturn

import mxnet as mx
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from kvstore_patch.store.calls import Arrays
from kvstore_patch.store.exchange import Exchange
from kvstore_patch.store.names import TYPE
from nalb.errors import StoreError, listed
from nalb.protocol.recorder import IterationRecorder, Key
from nalb.settings import Settings, from_environment
from nalb.transport.client import Client

BARRIER = "barrier"  # its key
KEEPERS_OF_STATES = "the Trainer's save_states and load_states, or the Module's save_optimizer_states"


class NALB(KVStoreBase):
    """Network-aware distributed sums; optimizers run on the workers."""

    def __init__(self, settings: Settings | None = None):
        self.settings = settings or from_environment(os.environ, socket.gethostname())
        self._recorder, self._exchange = IterationRecorder(), Exchange(self.settings)
        self._first_keys: dict[tuple[object, ...], int] = {}  # of a Trainer's parameters
        self._keys: dict[tuple[object, ...], int] = {}  # of a Module's

    @property
    def client(self) -> Client:
        """This worker's end of the control plane."""
        return self._exchange.client

    # ---- what KVStoreBase asks for

    @property
    def type(self) -> str:
        """'dist_sync_nalb': by it scripts split their data, and Module divides by all workers' batches."""
        return TYPE

    @property
    def rank(self) -> int:
        """This worker's rank in ps-lite."""
        return self._exchange.rank

    @property
    def num_workers(self) -> int:
        """How many workers push."""
        return self.settings.num_workers

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
        self._exchange.broadcast(keys, values, outs)
        self._recorder.break_off()

    def pushpull(self, key: Key | Sequence[Key], value: object, out: object = None, priority: int = 0) -> None:
        """Sum over all workers and devices into `out` (default: in place). Call alike on every worker.

        key: one key (int or str) or a list; value, out: per key one NDArray or one per device. Keys of one call may share
        slices, so push together what is ready together. `priority` is the order of calls here: earlier keys go first.
        """
        del priority
        self._add_up(*_as_lists(key, value, out), are_gradients=False)

    def add_up_gradients(self, keys: Sequence[Key], gradients: Arrays) -> None:
        """`pushpull` in place of what a backward pass writes, and no convolution reads while it infers.

        keys: at least one, each once. gradients: per key those of all devices.
        """
        self._add_up(keys, gradients, gradients, are_gradients=True)

    def _add_up(self, keys: Sequence[Key], values: Arrays, outs: Arrays, are_gradients: bool) -> None:
        call = self._exchange.prepare(keys, values, outs)
        self._exchange.add_up(call, self._recorder.place(call.group), are_gradients)

    def add_up_once(self, key: Key, array: NDArray) -> None:
        """The sum over all workers into `array`, apart from what iterations consist of. Call alike on every worker."""
        self._exchange.add_up_once(key, array)
        self._recorder.break_off()

    def at_close(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """What to do when the script has ended well, before this worker says goodbye, and once all have."""
        self._exchange.at_close(before, after)

    def first_key(self, parameters: tuple[object, ...]) -> int:
        """Where a Trainer's keys begin: it has one for each parameter, which no Trainer of other ones has."""
        return self._first_keys.setdefault(parameters, sum(map(len, self._first_keys)))

    def key_of(self, name: str, like: NDArray) -> int:
        """The key of a Module's parameter, by the order in which parameters came: workers' names differ if they are automatic."""
        parameter = name, like.shape, like.dtype
        if parameter not in self._keys:
            self._keys[parameter] = self.first_key((parameter,))
        return self._keys[parameter]

    def _barrier(self) -> None:
        """Wait until every worker has come here, by a sum of one number. Call alike on every worker."""
        array = mx.nd.zeros((1,))
        self.add_up_once(BARRIER, array)
        array.wait_to_read()

    # ---- what MXNet's own stores have beside; one sentence each

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
        """Not supported: sums are all that the store makes."""
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
        """Not supported: a push without its pull is what sparse gradients do."""
        raise StoreError(
            f"key {key!r}: kvstore 'nalb' has no separate push and pull (sparse gradients need them): call "
            "pushpull(key, value, out) with dense arrays (grad_stype='default')"
        )

    pull = row_sparse_pull = push

    def _send_command_to_servers(self, head: int, body: str) -> None:
        """Not supported: servers obey the coordinator alone."""
        del body
        raise StoreError(f"command {head}: servers of kvstore 'nalb' take no commands from scripts: leave it out")

    @property
    def handle(self) -> NoReturn:
        """Not there: C functions of MXNet's would push past the plan."""
        raise AbsentError(
            "kvstore 'nalb' has no handle for MXNet's C functions: use its methods; profile workers, not servers"
        )


class AbsentError(StoreError, AttributeError):
    """The store has no such attribute; hasattr says so too."""


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
