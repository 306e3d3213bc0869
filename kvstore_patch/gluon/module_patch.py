"""What `mx.mod.Module` must be told so that `kvstore='nalb'` works, made when MXNet is imported.

By itself it keeps no store for one device unless its name contains 'dist', and would train alone. As with dist_sync the gradients
are divided by the batches of all workers, and rank 0's parameters are everybody's. Keys are the parameters' names; one call
sums all gradients, so that small tensors share slices.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import mxnet as mx
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from kvstore_patch.store.kvstore import NALB


def install() -> None:
    """Patch Module; once per process."""
    module = mx.module.module
    initialize, update, begin = module._initialize_kvstore, module._update_params, module.Module.init_optimizer

    @functools.wraps(initialize)
    def initialize_kvstore(
        kvstore: KVStoreBase,
        param_arrays: list[list[NDArray]],
        arg_params: Mapping[str, NDArray],
        param_names: list[str],
        update_on_kvstore: bool,
    ) -> None:
        if isinstance(kvstore, NALB):
            kvstore.broadcast(param_names, [arg_params[name] for name in param_names], param_arrays)
        else:
            initialize(kvstore, param_arrays, arg_params, param_names, update_on_kvstore)

    @functools.wraps(update)
    def update_params(
        param_arrays: list[list[NDArray]],
        grad_arrays: list[list[NDArray]],
        updater: Callable[..., None],
        num_device: int,
        kvstore: KVStoreBase | None = None,
        param_names: Sequence[str] = (),
    ) -> None:
        if isinstance(kvstore, NALB):
            pushed = {name: grads for name, grads in zip(param_names, grad_arrays, strict=True) if grads[0] is not None}
            if pushed:
                kvstore.add_up_gradients([*pushed], [*pushed.values()])
            kvstore = None
        update(param_arrays, grad_arrays, updater, num_device, kvstore, param_names)

    @functools.wraps(begin)
    def init_optimizer(
        self: mx.mod.Module,
        kvstore: KVStoreBase | str | None = "local",
        optimizer: object = "sgd",
        optimizer_params: Iterable[tuple[str, object]] = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        store = kvstore
        if isinstance(kvstore, str) and kvstore.lower() == "nalb":
            store = mx.kvstore.create(kvstore)
        if isinstance(store, NALB) and isinstance(optimizer, str):
            all_batches = {"rescale_grad": 1.0 / (self._exec_group.batch_size * store.num_workers)}
            optimizer_params = (all_batches | dict(optimizer_params)).items()
        begin(self, store, optimizer, optimizer_params, force_init)

    module._initialize_kvstore, module._update_params = initialize_kvstore, update_params
    module.Module.init_optimizer = init_optimizer
