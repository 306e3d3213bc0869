"""Sums by MXNet's own routing, as dist_sync makes them for Gluon: one fused pushpull per tensor, no slices."""

import threading
from collections.abc import Sequence

import mxnet as mx
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from kvstore_patch.store.calls import Call
from nalb.errors import StoreError
from nalb.planning.slices import Tensor
from nalb.planning.stock import STOCK_KEYS, OwnKeys


class WholeTensors:
    """Pushes whole tensors through keys of their own, which are created on the servers at their first use."""

    def __init__(self, inner: mx.kvstore.KVStore, lock: threading.Lock):
        self._inner, self._lock = inner, lock
        self._ready: set[int] = set()
        self._keys = OwnKeys()  # the coordinator counts alike

    def keys_of(self, tensors: Sequence[Tensor]) -> list[int]:
        """The keys of these registered tensors, in their order."""
        return self._keys.of(tensors)

    def push(self, keys: Sequence[int], call: Call, are_gradients: bool) -> NDArray:
        """Queue the call's sums; returns an array that is ready with them. keys: of the call's tensors, in their order."""
        if keys[-1] >= STOCK_KEYS:
            raise StoreError(f"MXNet's own routing has {STOCK_KEYS} keys here, and this job pushes more tensors")
        if not are_gradients:
            for array in call.arrays:
                ndarrays.wait_until_sent(array)
        # vectors have only one layout, but a vector that is no gradient may be a view of a matrix
        for array in call.matrices if are_gradients else call.arrays:
            ndarrays.reorder(array)
        for source, target in call.copies:
            source.as_nd_ndarray().copyto(target.as_nd_ndarray())
        with self._lock:
            if not self._ready.issuperset(keys):
                self._begin(keys, call)
            for key, exchange in zip(keys, call.exchanged, strict=True):
                if exchange is not None:
                    exchange(key, -key)
        return call.is_summed()

    def _begin(self, keys: Sequence[int], call: Call) -> None:
        """Create on the servers those of the keys that they do not have."""
        new = [
            (key, values[0])
            for key, values, exchange in zip(keys, call.values, call.exchanged, strict=True)
            if exchange is not None and key not in self._ready
        ]
        if new:
            self._inner.init([key for key, _ in new], [array for _, array in new])
        self._ready.update(keys)
