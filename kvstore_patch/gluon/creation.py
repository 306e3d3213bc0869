"""Patches how MXNet creates a store by its name, in every process that imports MXNet where nalb is installed.

In a job the name 'nalb' means nalb's store (patch.py). Elsewhere the name is an error, or with NALB_ALONE=1 MXNet's own 'local',
which then leaves the optimizer to the script as nalb's store does.
MXNet's `_create_kvstore` makes no store for one device unless its name contains 'dist', so a script on CPUs would train alone.
"""

import functools
import os
from collections.abc import Mapping
from typing import Any, NoReturn

import mxnet as mx
from mxnet.kvstore.base import KVStoreBase
from mxnet.ndarray import NDArray

from kvstore_patch.store import names
from nalb.errors import StoreError


def install() -> None:
    """Patch MXNet; once per process."""
    registry = KVStoreBase.kv_registry
    create, choose = mx.kvstore.create, mx.model._create_kvstore

    @functools.wraps(create)
    def create_known(name: str = "local") -> KVStoreBase:
        if isinstance(name, str):
            names.check(name.lower(), registry, os.environ)
        return create(name)

    @functools.wraps(choose)
    def create_kvstore(
        kvstore: KVStoreBase | str | None, num_device: int, arg_params: Mapping[str, NDArray]
    ) -> tuple[KVStoreBase | None, bool]:
        if isinstance(kvstore, str):
            names.check(kvstore.lower(), registry, os.environ)
            if kvstore.lower() in names.NAMES:
                kvstore = mx.kvstore.create(kvstore)
        return choose(kvstore, num_device, arg_params)

    def create_alone() -> KVStoreBase:
        if os.environ.get("NALB_ALONE") != "1":
            raise names.refusal(os.environ)
        store: Any = create("local")
        store.is_capable = lambda _: False  # asked for 'optimizer' only
        # MXNet's own would not take a key twice, as two Trainers on a store have it in a job
        store.broadcast, store.pushpull = _broadcast_alone, _add_up_alone
        store.init = _init_alone
        store.push = store.pull = store.row_sparse_pull = _push_alone
        alone: KVStoreBase = store
        return alone

    mx.kvstore.create = create_known
    mx.model._create_kvstore = mx.module.module._create_kvstore = mx.gluon.trainer._create_kvstore = create_kvstore
    if names.is_in_job(os.environ):
        from kvstore_patch.gluon import patch  # imported late: it loads all of nalb that a worker needs

        patch.install()
    else:
        registry.update(dict.fromkeys(names.NAMES, create_alone))


def _init_alone(key: object, value: Any) -> None:
    """Take a key of Module's, which then broadcasts nothing."""


def _push_alone(key: object, *_: object, **__: object) -> NoReturn:
    """Refuse, as nalb's store does in a job: MXNet's own would miss the key's init."""
    raise StoreError(f"key {key!r}: {names.NO_PUSH}")


def _broadcast_alone(key: object, value: Any, out: Any, priority: int = 0) -> None:
    """Copy each key's value to the arrays of all devices."""
    del priority
    for sources, targets in zip(_by_key(key, value), _by_key(key, out), strict=True):
        _copy(sources[0], targets)


def _add_up_alone(key: object, value: Any, out: Any = None, priority: int = 0) -> None:
    """Sum each key's arrays over devices."""
    del priority
    for sources, targets in zip(_by_key(key, value), _by_key(key, value if out is None else out), strict=True):
        _copy(sources[0] if len(sources) == 1 else _sum(sources), targets)


def _sum(arrays: list[NDArray]) -> NDArray:
    from kvstore_patch.store import ndarrays  # late: it needs a function that only MXNet 1.9.1 is known to have

    return ndarrays.add_up(arrays)


def _by_key(key: object, arrays: Any) -> list[list[NDArray]]:
    """Per key the arrays of all devices."""
    return [
        [*one] if isinstance(one, list | tuple) else [one]
        for one in (arrays if isinstance(key, list | tuple) else [arrays])
    ]


def _copy(source: NDArray, targets: list[NDArray]) -> None:
    for target in targets:
        if target is not source:
            source.copyto(target)
