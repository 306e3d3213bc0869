"""Patches `mx.mod.Module` so that `kvstore='nalb'` works, when MXNet is imported in a job's worker.

All workers get rank 0's parameters, and one call sums all gradients, so that small tensors share slices. Automatic layer names may
differ between workers. So keys are numbered in the order in which parameters come, as MXNet's own stores number them.
On a worker, the optimizer's states are numbered by their parameters' names. MXNet numbers them by the parameters' places in a
bucket: in a BucketingModule whose buckets differ in their layers, a parameter would get another one's momentum.
"""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence

import mxnet as mx
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray
from mxnet.optimizer import Updater

from kvstore_patch.store.kvstore import NALB


def install() -> None:
    """Patch Module, and the older FeedForward; once per process."""
    initialize, update = mx.model._initialize_kvstore, mx.model._update_params

    @functools.wraps(initialize)
    def initialize_kvstore(
        kvstore: KVStoreBase,
        param_arrays: list[list[NDArray]],
        arg_params: Mapping[str, NDArray],
        param_names: list[str],
        update_on_kvstore: bool,
    ) -> None:
        if isinstance(kvstore, NALB):
            values = [arg_params[name] for name in param_names]
            keys = [kvstore.key_of(name, value) for name, value in zip(param_names, values, strict=True)]
            kvstore.broadcast(keys, values, param_arrays)
        else:
            initialize(kvstore, param_arrays, arg_params, param_names, update_on_kvstore)

    @functools.wraps(update)
    def update_params(
        param_arrays: list[list[NDArray]],
        grad_arrays: list[list[NDArray]],
        updater: Updater,
        num_device: int,
        kvstore: KVStoreBase | None = None,
        param_names: Sequence[str] = (),
    ) -> None:
        if isinstance(kvstore, NALB):
            kvstore.check_optimizer(updater.optimizer)
            pushed = {
                kvstore.key_of(name, grads[0]): grads
                for name, grads in zip(param_names, grad_arrays, strict=True)
                if grads[0] is not None
            }
            if pushed:
                kvstore.add_up_gradients([*pushed], [*pushed.values()])
            numbers = _numbers(updater.optimizer.idx2name, param_names, num_device)

            def update_by_name(places: Sequence[int], grads: Sequence[NDArray], weights: Sequence[NDArray]) -> None:
                updater([numbers[place] for place in places], grads, weights)

            update(param_arrays, grad_arrays, update_by_name, num_device)
        else:
            update(param_arrays, grad_arrays, updater, num_device, kvstore, param_names)

    mx.model._initialize_kvstore = mx.module.module._initialize_kvstore = initialize_kvstore
    mx.model._update_params = mx.module.module._update_params = update_params


def _numbers(name_of: dict[int, str], names: Sequence[str], num_device: int) -> list[int]:
    """The optimizer's number for each parameter on each device; the devices of one parameter follow each other.

    name_of: the optimizer's names of its numbers. Names that it lacks get new numbers in it: two Modules may share an optimizer.
    """
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for number, name in name_of.items():
        numbers[name].append(number)
    for name in names:
        while len(numbers[name]) < num_device:
            number = max(name_of, default=-1) + 1
            name_of[number] = name
            numbers[name].append(number)
    return [number for name in names for number in numbers[name][:num_device]]
