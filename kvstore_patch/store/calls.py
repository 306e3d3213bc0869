"""Checks and prepares the arrays of a call once: Gluon passes the same arrays in every iteration."""

import operator
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import mxnet as mx
import numpy as np
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from nalb.errors import StoreError
from nalb.services.exchange.recorder import RECORD_MOST, Group, Key

Arrays = Sequence[Sequence[NDArray]]  # per key, one for each device


class Call(NamedTuple):
    """Arrays to be summed, arrays that get the sums, and the operations prepared for both."""

    values: Arrays  # to be summed
    outs: Arrays  # get the sums
    arrays: list[NDArray]  # the non-empty arrays of both, once each
    matrices: list[NDArray]  # those of `arrays` with more than one dimension
    group: Group
    copies: list[tuple[NDArray, NDArray]]  # (from, to), made before MXNet's own routing, which sums in place
    exchanged: list[ndarrays.PushPull | None]  # per key, for MXNet's own routing; None: its arrays are empty
    is_computed: ndarrays.Probe  # of all values: backpropagation may end at any of them
    is_summed: ndarrays.Probe  # of `arrays`

    @property
    def keys(self) -> tuple[Key, ...]:
        """The call's keys, in their order."""
        return tuple(key for key, _, _ in self.group)


class Calls:
    """The prepared calls, by their keys: the last one of each tuple of keys, until it is forgotten."""

    def __init__(self, inner: mx.kvstore.KVStore):
        self._inner = inner
        self._known: dict[tuple[Key, ...], Call] = {}
        self._shapes: OrderedDict[Key, tuple[tuple[int, ...], str]] = OrderedDict()  # by key; the newest RECORD_MOST

    def prepare(self, keys: Sequence[Key], values: Arrays, outs: Arrays) -> Call:
        """The call of these keys and arrays, prepared again only if an array is another object than last time.

        Raises StoreError for arrays that cannot be summed.
        """
        known = self._known.get(tuple(keys))
        if known is not None and _are_same(known.values, values) and _are_same(known.outs, outs):
            return known
        values, outs = ([list(one) for one in arrays] for arrays in (values, outs))  # the caller's lists may change
        for one, sources, targets in zip(keys, values, outs, strict=True):
            self.check(one, [*sources, *targets])
        firsts = [sources[0] for sources in values]
        group = tuple((one, int(a.size), ndarrays.dtype_name(a, one)) for one, a in zip(keys, firsts, strict=True))
        # MXNet sums in place where a value is one array, whatever out= says
        own = [
            [o[0]] if len(v) == 1 and all(one is not v[0] for one in o) else v
            for v, o in zip(values, outs, strict=True)
        ]
        copies = [(v[0], o[0]) for v, o in zip(values, own, strict=True) if o is not v and v[0].size]
        exchanged = [
            ndarrays.PushPull(self._inner, *both) if first.size else None
            for first, *both in zip(firsts, own, outs, strict=True)
        ]
        arrays = [array for one in (*values, *outs) for array in one if array.size]
        distinct = list({id(array): array for array in arrays}.values())
        matrices = [array for array in distinct if array.ndim > 1]
        computed = [array for sources in values for array in sources]
        probes = ndarrays.Probe(computed), ndarrays.Probe(distinct)
        call = self._known[tuple(keys)] = Call(values, outs, distinct, matrices, group, copies, exchanged, *probes)
        return call

    def forget(self, call: Call) -> None:
        """Forget a call of no known iteration: it may never come again, and its arrays would be kept for ever."""
        self._known.pop(call.keys, None)

    def forget_all(self) -> None:
        """Forget all calls: iterations consist of other calls from here on."""
        self._known.clear()

    def check(self, key: Key, arrays: Sequence[NDArray]) -> None:
        """Raise StoreError unless the arrays of this key can be summed and have the shape and dtype that the key had before."""
        first = arrays[0]
        for array in arrays:
            require_dense(key, array)
            if array.shape != first.shape or array.dtype != first.dtype:
                raise StoreError(
                    f"key {key!r}: arrays of one key differ: {first.shape} {np.dtype(first.dtype).name} and "
                    f"{array.shape} {np.dtype(array.dtype).name}"
                )
        seen = self._shapes.setdefault(key, (first.shape, ndarrays.dtype_name(first, key)))
        if len(self._shapes) > RECORD_MOST:
            self._shapes.popitem(last=False)
        if seen != (first.shape, ndarrays.dtype_name(first, key)):
            raise StoreError(
                f"key {key!r} was {seen[1]} of shape {seen[0]} and is now {ndarrays.dtype_name(first, key)} of shape "
                f"{first.shape}: a key keeps its shape; use a new key"
            )


def require_dense(key: Key, array: object) -> None:
    """Raise StoreError for what is no dense array."""
    if not isinstance(array, NDArray):
        raise StoreError(f"key {key!r}: expected NDArrays, got {type(array).__name__}")
    if array.stype != "default":
        raise StoreError(f"key {key!r} is {array.stype}: kvstore 'nalb' sums dense arrays only; set stype='default'")


def _are_same(known: Arrays, arrays: Arrays) -> bool:
    """Whether both hold the same objects in the same places; compared in C, since an iteration compares hundreds of arrays."""
    if [*map(len, known)] != [*map(len, arrays)]:
        return False
    return all(map(operator.is_, chain.from_iterable(known), chain.from_iterable(arrays)))
