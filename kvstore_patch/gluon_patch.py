"""What Gluon must be told so that `kvstore='nalb'` works: two small patches, made when MXNet is imported.

1. `_create_kvstore` keeps no store for one device unless its name contains 'dist'; a single-CPU script would silently train
   alone. The patch creates ours.
2. `Trainer._allreduce_grads` makes one call per parameter; ours makes one call for all of them, so that small tensors share
   slices and the whole backward pass is one group.
"""

import functools
import os
import socket

import mxnet as mx

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

        def create_stock():
            Reach(from_environment(os.environ, socket.gethostname()), die)
            return mx.kvstore.create(baseline.kvstore if baseline else "dist_sync")

        registry["nalb"] = create_stock
    else:
        mx.kvstore.KVStoreBase.register(NALB)
    trainer_module = mx.gluon.trainer
    create, allreduce = trainer_module._create_kvstore, trainer_module.Trainer._allreduce_grads

    @functools.wraps(create)
    def create_kvstore(kvstore, num_device, arg_params):
        if isinstance(kvstore, str) and kvstore.lower() == "nalb":
            store = mx.kvstore.create(kvstore)
            return store, not isinstance(store, NALB)
        return create(kvstore, num_device, arg_params)

    @functools.wraps(allreduce)
    def allreduce_grads(self):
        if not isinstance(self._kvstore, NALB):
            return allreduce(self)
        chosen = [(i, p) for i, p in enumerate(self._params) if p.grad_req != "null"]
        sparse = [p.name for _, p in chosen if p._grad_stype != "default"]
        if sparse:
            raise StoreError(
                f"parameter {sparse[0]} has sparse gradients: kvstore 'nalb' sums dense ones; drop sparse_grad"
            )
        if chosen:
            self._kvstore.pushpull([i for i, _ in chosen], [p.list_grad() for _, p in chosen])
        return None

    trainer_module._create_kvstore = mx.model._create_kvstore = create_kvstore
    trainer_module.Trainer._allreduce_grads = allreduce_grads
