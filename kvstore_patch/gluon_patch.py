"""What Gluon must be told so that `kvstore='nalb'` works: three small patches, made when MXNet is imported.

1. `_create_kvstore` keeps no store for one device unless its name contains 'dist'; a single-CPU script would silently train
   alone. The patch creates ours.
2. Each Trainer numbers its keys from 0, and all share the process's one store. The patch of `_init_kvstore` gives each its own.
3. `Trainer._allreduce_grads` makes one call per parameter; ours makes one call for all of them, so that small tensors share
   slices and the whole backward pass is one group.
"""

import functools
import os
import socket
import weakref

import mxnet as mx

from kvstore_patch import module_patch
from kvstore_patch.store import NALB
from nalb.batching.schemes import BASELINES
from nalb.control.client import die
from nalb.control.reach import Reach
from nalb.control.settings import from_environment
from nalb.errors import StoreError


def install() -> None:
    """Register the store and patch Gluon; once per process. Under `--scheme stock` the name means MXNet's own store."""
    registry = mx.kvstore.KVStoreBase.kv_registry
    if "nalb" in registry:
        return
    if os.environ.get("NALB_STOCK") == "1":  # nalb launch --scheme stock: the same script on MXNet alone
        baseline = BASELINES.get(os.environ.get("NALB_BATCHING", ""))
        # weak: the store must end with the script's own references, or ps-lite's threads would outlive it
        alive = weakref.WeakSet()

        def create_stock():
            if alive:
                return next(iter(alive))
            Reach(from_environment(os.environ, socket.gethostname()), die)
            store = mx.kvstore.create(baseline.kvstore if baseline else "dist_sync")
            alive.add(store)
            return store

        registry["nalb"] = create_stock
    else:
        registry["nalb"] = functools.cache(NALB)  # ps-lite is a singleton: one store, whoever asks
    trainer_module, trainer_class = mx.gluon.trainer, mx.gluon.Trainer
    create, init = trainer_module._create_kvstore, trainer_class._init_kvstore
    allreduce = trainer_class._allreduce_grads

    @functools.wraps(create)
    def create_kvstore(kvstore, num_device, arg_params):
        if isinstance(kvstore, str) and kvstore.lower() == "nalb":
            store = mx.kvstore.create(kvstore)
            on_servers = not isinstance(store, NALB)
        else:
            store, on_servers = create(kvstore, num_device, arg_params)
        if store is not None and "dist" in store.type:
            if hasattr(store, "_has_trainer"):
                mx.nd.waitall()  # or what is under way would keep this process from ending
                raise StoreError(
                    f"a second Trainer with MXNet's own {store.type}: both would use keys from 0 on, and wait for ever; "
                    "make one Trainer for all parameters, or choose another --scheme"
                )
            store._has_trainer = True
        return store, on_servers

    @functools.wraps(init)
    def init_kvstore(self):
        init(self)
        if isinstance(self._kvstore, NALB):
            first = self._kvstore.first_key(tuple((p.name, p.shape) for p in self._params))
            self._param2idx = {p.name: first + i for i, p in enumerate(self._params)}

    @functools.wraps(allreduce)
    def allreduce_grads(self):
        if not isinstance(self._kvstore, NALB):
            return allreduce(self)
        chosen = [p for p in self._params if p.grad_req != "null"]
        sparse = [p.name for p in chosen if p._grad_stype != "default"]
        if sparse:
            raise StoreError(
                f"parameter {sparse[0]} has sparse gradients: kvstore 'nalb' sums dense ones; drop sparse_grad"
            )
        if chosen:
            self._kvstore.pushpull([self._param2idx[p.name] for p in chosen], [p.list_grad() for p in chosen])
        return None

    trainer_module._create_kvstore = mx.model._create_kvstore = create_kvstore
    trainer_class._init_kvstore, trainer_class._allreduce_grads = init_kvstore, allreduce_grads
    module_patch.install()
