"""Creates MXNet's own store under `nalb launch --scheme stock`, and patches three faults of it in MXNet 1.9.1.

1. A push cannot read oneDNN's layout, which a convolution gives its weight when it infers. Rank 0's init then fails, the others'
   pull finds nothing, and a server aborts: "init 5 first". So the patch brings values into MXNet's layout before an init.
2. A worker's first push is not ordered after its pull of the parameters, so servers might answer the pull with sums of gradients.
   The patched broadcast waits for the arrays that it pulls.
3. Servers do not give out an optimizer's state. The patch raises an error that says what to do.
"""

import functools
import os
import socket
from collections.abc import Callable, Iterator

import mxnet as mx
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays, script_end
from nalb.batching.schemes import BASELINES
from nalb.errors import StoreError
from nalb.process.last_words import die
from nalb.settings import from_environment
from nalb.transport.reachability import Reachability

NO_STATES = (
    "the optimizer runs on the servers, which do not give its state: pass update_on_kvstore=False to Trainer, or set "
    "MXNET_UPDATE_ON_KVSTORE=0"
)


def creator() -> Callable[[], KVStoreBase]:
    """A function that creates the process's one store at its first call, and gives it at every call."""
    baseline = BASELINES.get(os.environ.get("NALB_BATCHING", ""))
    # The list keeps the store until the script has ended: destroying the store waits for all workers, for ever if this one failed.
    # It must not keep the store longer, or ps-lite's threads would outlive the script.
    alive: list[KVStoreBase] = []

    def create() -> KVStoreBase:
        if not alive:
            settings = from_environment(os.environ, socket.gethostname())
            Reachability(settings, die)
            alive.append(mx.kvstore.create(baseline.kvstore if baseline else "dist_sync"))
            script_end.at_exit(settings.node, alive.clear, lambda _: None)  # no message: the launcher sees the exit
        return alive[0]

    return create


def install() -> None:
    """Patch MXNet's KVStore; once per process."""
    store = mx.kvstore.KVStore
    init, broadcast = store.init, store.broadcast
    save, load = store.save_optimizer_states, store.load_optimizer_states

    @functools.wraps(init)
    def init_settled(self: mx.kvstore.KVStore, key: object, value: object) -> None:
        _settle(value)
        init(self, key, value)

    @functools.wraps(broadcast)
    def broadcast_settled(self: mx.kvstore.KVStore, key: object, value: object, out: object, priority: int = 0) -> None:
        _settle(value)
        broadcast(self, key, value, out, priority)
        for array in _arrays(out):
            array.wait_to_read()

    @functools.wraps(save)
    def save_optimizer_states(self: mx.kvstore.KVStore, fname: str, dump_optimizer: bool = False) -> None:
        _check_updates_here(self)
        save(self, fname, dump_optimizer)

    @functools.wraps(load)
    def load_optimizer_states(self: mx.kvstore.KVStore, fname: str) -> None:
        _check_updates_here(self)
        load(self, fname)

    store.init, store.broadcast = init_settled, broadcast_settled
    store.save_optimizer_states, store.load_optimizer_states = save_optimizer_states, load_optimizer_states


def _settle(value: object) -> None:
    for array in _arrays(value):
        if array.stype == "default":
            ndarrays.settle(array)


def _arrays(value: object) -> Iterator[NDArray]:
    """The arrays in an argument of MXNet's functions: an array, a list of arrays, or a list of lists."""
    if isinstance(value, NDArray):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _arrays(one)


def _check_updates_here(store: mx.kvstore.KVStore) -> None:
    if store._updater is None:
        raise StoreError(NO_STATES)
