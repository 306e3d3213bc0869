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
        self._first_key: dict[tuple[Tensor, ...], int] = {}  # by registered tensors, as the planner counts

    def first_key(self, tensors: Sequence[Tensor]) -> int:
        """Of these tensors, which may not share keys with others."""
        return self._first_key.setdefault(tuple(tensors), sum(map(len, self._first_key)))

    def push(self, keys: Sequence[int], call: Call, are_gradients: bool) -> NDArray:
        """Queue the call's sums. keys: of its tensors, in order; the script's may be words. Returns what is ready with the sums."""
        if keys[-1] >= STOCK_KEYS:
            raise StoreError(f"MXNet's own routing has {STOCK_KEYS} keys here, and this job pushes more tensors")
        for array in call.arrays:
            if not are_gradients:
                ndarrays.wait_until_sent(array)
            if not are_gradients or array.ndim > 1:  # a vector has one layout; but this may be a view of something else
                ndarrays.reorder(array)
        for source, target in call.copies:
            source.as_nd_ndarray().copyto(target.as_nd_ndarray())
        kept = [(key, place) for place, key in enumerate(keys) if call.values[place][0].size]
        with self._lock:
            if new := [(key, call.values[place][0]) for key, place in kept if key not in self._ready]:
                self._inner.init([key for key, _ in new], [array for _, array in new])
                self._ready.update(key for key, _ in new)
            for key, place in kept:
                call.exchanged[place](key, -key)
        return ndarrays.probe(call.arrays)
