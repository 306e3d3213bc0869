"""Patches Gluon so that `kvstore='nalb'` works: seven small patches, made when MXNet is imported in a job's worker.

1. Two Trainers with MXNet's own distributed store would both use keys from 0 on, and wait for ever. The patch refuses the second.
2. Each Trainer numbers its keys from 0, and all Trainers share the process's one store. The patch of `_init_kvstore` gives each
   Trainer keys of its own.
3. `Trainer._allreduce_grads` makes one call per parameter. The patch makes one call for all parameters, so that small tensors share
   slices and the whole backward pass is one group.
4. `Trainer._init_params` broadcasts one parameter per call, and each call asks the coordinator once. The patch makes one call for
   all parameters whose shapes are known.
5. `Trainer._update` with `ignore_stale_grad` leaves out parameters that this worker's batch did not use. Other workers' batches may
   have used them, so weights would drift apart. With the patch an unused parameter has a gradient of zero, and every worker updates
   by the sum.
6. A Trainer sorts parameters by name, and Gluon counts layers in their names: dense10_ comes before dense9_. Where one worker has
   made a layer more than the others, its parameters would have other keys than theirs. With the patch, numbers in names count for
   keys and for the order of sums. The Trainer's own order stays MXNet's, since saved optimizer states are numbered by it. Nadam and
   LARS keep numbers that each update changes, so workers that update in different orders would drift apart. There all workers
   update in the order of rank 0's Trainer.
7. `mx.kv.create` of MXNet's own distributed stores knows nothing of encryption, which the shim does. The patch refuses them in a
   process that has keys but not the shim: ps-lite would talk in plain text.
"""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray
from mxnet.optimizer import Updater

from kvstore_patch.gluon import module_patch, stock
from kvstore_patch.shim import Shim
from kvstore_patch.store import ndarrays, script_end
from kvstore_patch.store.kvstore import NALB
from kvstore_patch.store.names import NAMES
from nalb.errors import StoreError
from nalb.process.address import own_name
from nalb.transport import keys

ORDERED = (mx.optimizer.Nadam, mx.optimizer.LARS)  # whose results depend on the order of updates


@functools.cache
def _ours() -> NALB:
    """The process's one store, the same for every caller, since ps-lite is a singleton."""
    return NALB()


def install() -> None:
    """Register the store and patch Gluon; once per process. Under `--scheme stock` the name means MXNet's own store."""
    registry = KVStoreBase.kv_registry
    if not registry.keys().isdisjoint(NAMES):
        return
    _check_encryption()
    script_end.tell_wrong_input_at_exit(own_name(os.environ))
    if os.environ.get("NALB_STOCK") == "1":  # nalb launch --scheme stock: the same script on MXNet alone
        stock.install()
        registry.update(dict.fromkeys(NAMES, stock.creator()))
    else:
        registry.update(dict.fromkeys(NAMES, _ours))
    trainer_module, trainer_class = mx.gluon.trainer, mx.gluon.Trainer
    make = trainer_class.__init__
    create, init = trainer_module._create_kvstore, trainer_class._init_kvstore
    begin, allreduce, update = trainer_class._init_params, trainer_class._allreduce_grads, trainer_class._update

    @functools.wraps(create)
    def create_kvstore(
        kvstore: KVStoreBase | str | None, num_device: int, arg_params: Mapping[str, NDArray]
    ) -> tuple[KVStoreBase | None, bool]:
        store, on_servers = create(kvstore, num_device, arg_params)
        if isinstance(store, mx.kvstore.KVStore) and "dist" in store.type:
            if hasattr(store, "_has_trainer"):
                mx.nd.waitall()  # operations under way would keep this process from ending
                raise StoreError(
                    f"a second Trainer with MXNet's own {store.type}: both would use keys from 0 on, and wait for ever; "
                    "make one Trainer for all parameters, or choose another --scheme"
                )
            store._has_trainer = True
        return store, on_servers

    @functools.wraps(make)
    def make_trainer(self: mx.gluon.Trainer, params: Any, *args: Any, **kwargs: Any) -> None:
        self._has_sums = False  # whether the gradients have been summed since the last update
        make(self, params, *args, **kwargs)
        names = sorted(params.keys(), key=_by_numbers) if hasattr(params, "keys") else None
        self._alike = self._params if names is None else [params[name] for name in names]

    @functools.wraps(init)
    def init_kvstore(self: mx.gluon.Trainer) -> None:
        _check_dense(self)
        init(self)
        if isinstance(self._kvstore, NALB):
            self._kvstore.check_optimizer(self.optimizer)
            first = self._kvstore.first_key(tuple((p.name, p.shape, np.dtype(p.dtype).name) for p in self._alike))
            self._param2idx = {p.name: first + i for i, p in enumerate(self._alike)}
            self._params_to_init = [*self._alike]

    @functools.wraps(begin)
    def init_params(self: mx.gluon.Trainer) -> None:
        if isinstance(self._kvstore, NALB):
            if isinstance(self.optimizer, ORDERED) and not hasattr(self, "_places"):
                self._places = _places_of_rank_0(self, self._kvstore)
            ready = [p for p in self._params_to_init if not p._deferred_init and p._stype == "default"]
            if ready:
                arrays = [p.list_data() for p in ready]
                self._kvstore.broadcast([self._param2idx[p.name] for p in ready], [one[0] for one in arrays], arrays)
            self._params_to_init = [p for p in self._params_to_init if p._deferred_init or p._stype != "default"]
        begin(self)

    @functools.wraps(allreduce)
    def allreduce_grads(self: mx.gluon.Trainer) -> None:
        if not isinstance(self._kvstore, NALB):
            script_end.goes_on()
            allreduce(self)
            return
        chosen = _trained(self)
        for parameter in chosen:
            # before the first update, a gradient that backward did not write is the script's own, or zero
            if hasattr(parameter, "_was_updated"):
                for data, grad in zip(parameter.list_data(), parameter.list_grad(), strict=True):
                    if not data._fresh_grad:
                        ndarrays.clear(grad)  # it held the last iteration's sum
        self._has_sums = True
        if chosen:
            self._kvstore.add_up_gradients([self._param2idx[p.name] for p in chosen], [p.list_grad() for p in chosen])

    @functools.wraps(update)
    def update_parameters(self: mx.gluon.Trainer, ignore_stale_grad: bool = False) -> None:
        for parameter in _trained(self):
            parameter._was_updated = True
        # Without a sum since the last update, what backward did not write is an old gradient, which MXNet skips.
        holds_sums, self._has_sums = ignore_stale_grad and self._has_sums, False
        if holds_sums:
            _mark_gradients(self, fresh=True)
        updaters = self._updaters
        if hasattr(self, "_places"):
            self._updaters = [functools.partial(_update_in_order, one, self._places) for one in updaters]  # type: ignore[misc]
        try:
            update(self, ignore_stale_grad)
        finally:
            self._updaters = updaters
        if holds_sums:  # also where loss scaling has skipped the update
            _mark_gradients(self, fresh=False)

    trainer_module._create_kvstore, trainer_class.__init__ = create_kvstore, make_trainer  # type: ignore[method-assign]
    trainer_class._init_kvstore, trainer_class._init_params = init_kvstore, init_params
    trainer_class._allreduce_grads, trainer_class._update = allreduce_grads, update_parameters
    module_patch.install()


def _by_numbers(name: str) -> list[object]:
    """A key to sort parameters by, which puts dense9_weight before dense10_weight."""
    return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", name)]


def _check_encryption() -> None:
    create = mx.kvstore.create

    @functools.wraps(create)
    def create_checked(name: str = "local") -> KVStoreBase:
        if keys.VARIABLE in os.environ and "dist" in str(name).lower():
            Shim.loaded()
        return create(name)

    mx.kvstore.create = create_checked


def _check_dense(trainer: mx.gluon.Trainer) -> None:
    """Raise StoreError where a Trainer on nalb's store has a sparse parameter or gradient: the store sums dense arrays only."""
    store = trainer._kvstore_params["kvstore"]
    sparse = [p.name for p in trainer._params if (p._stype, p._grad_stype) != ("default", "default")]
    if sparse and (isinstance(store, NALB) or mx.kvstore.KVStoreBase.kv_registry.get(str(store).lower()) is _ours):
        raise StoreError(
            f"parameter {sparse[0]} or its gradient is sparse, and kvstore 'nalb' sums dense arrays: leave out sparse_grad, "
            "stype and grad_stype"
        )


def _trained(trainer: mx.gluon.Trainer) -> list[mx.gluon.Parameter]:
    """The parameters that are trained, in the order that all workers have in common."""
    return [parameter for parameter in trainer._alike if parameter.grad_req != "null"]


def _places_of_rank_0(trainer: mx.gluon.Trainer, store: NALB) -> list[float]:
    """The place that each of this Trainer's parameters has in rank 0's Trainer. All workers call it at once."""
    own = {parameter.name: place for place, parameter in enumerate(trainer._params)}
    names = [parameter.name for parameter in trainer._alike]
    places = mx.nd.array([own[name] if store.rank == 0 else 0 for name in names])
    store.add_up_once("order of updates", places)
    of_name = dict(zip(names, places.asnumpy().tolist(), strict=True))
    return [of_name[parameter.name] for parameter in trainer._params]


def _update_in_order(updater: Updater, places: Sequence[float], *columns: Sequence[Any]) -> None:
    """Call MXNet's updater with the parameters in another order.

    places: of each parameter, by the Trainer's number. columns: numbers, gradients and weights.
    """
    updater(*zip(*sorted(zip(*columns, strict=True), key=lambda one: places[one[0]]), strict=True))


def _mark_gradients(trainer: mx.gluon.Trainer, fresh: bool) -> None:
    for parameter in _trained(trainer):
        for data in parameter.list_data():
            data._fresh_grad = fresh
