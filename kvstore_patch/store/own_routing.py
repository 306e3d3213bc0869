"""What MXNet's own dist_sync does with Gluon's calls: one fused pushpull per tensor, routed by MXNet, no slices."""

import threading
from collections.abc import Sequence

import mxnet as mx
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from kvstore_patch.store.calls import Call
from nalb.errors import StoreError
from nalb.planning.slices import Tensor
from nalb.planning.slots import STOCK_KEYS


class OwnRouting:
    """Whole tensors through keys of their own, which servers have from their first use on."""

    def __init__(self, inner: mx.kvstore.KVStore, lock: threading.Lock):
        self._inner, self._lock = inner, lock
        self._ready: set[int] = set()
        self._first_key: dict[tuple[Tensor, ...], int] = {}  # by registered tensors, as the coordinator counts

    def first_key(self, tensors: Sequence[Tensor]) -> int:
        """Of these tensors, which may not share keys with others."""
        return self._first_key.setdefault(tuple(tensors), sum(map(len, self._first_key)))

    def push(self, keys: Sequence[int], call: Call, are_gradients: bool) -> NDArray:
        """Queue the call's sums. keys: of its tensors, in order; the script's may be words. Returns what is ready with the sums."""
        if keys[-1] >= STOCK_KEYS:
            raise StoreError(f"MXNet's own routing has {STOCK_KEYS} keys here, and this job pushes more tensors")
        if not are_gradients:
            for array in call.arrays:
                ndarrays.wait_until_sent(array)
        # a vector has one layout; but one that is no gradient may be a view of something else
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
        """Have the servers know these keys."""
        new = [
            (key, values[0])
            for key, values, exchange in zip(keys, call.values, call.exchanged, strict=True)
            if exchange is not None and key not in self._ready
        ]
        if new:
            self._inner.init([key for key, _ in new], [array for _, array in new])
        self._ready.update(keys)
