"""The store's operations on NDArrays: flat views, copies by the engine, pushes and pulls, waiting.

oneDNN's operations leave arrays in oneDNN's own layout: a convolution that infers does so with its weight, and a backward pass with
the gradient of a convolution's input. The layout cannot be known before the operations have run. MXNet operations that use oneDNN,
such as `_copyto` and `add_n`, fail on a view of such an array (`Check failed: !is_view`). Other operations get the view in MXNet's
layout, so copies are made by one of these: BlockGrad, which only copies.
A write into a view gives the whole array MXNet's layout, but loses the values of its other views. So all of an array must be read
before any of it is written, and then all of it must be written.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.base import _LIB, NDArrayHandle, OpHandle, check_call, mx_uint
from mxnet.ndarray import NDArray

from kvstore_patch.keys.slots import DTYPES
from nalb.errors import StoreError


def dtype_name(array: NDArray, key: object) -> str:
    """The array's dtype, 'float16', 'float32' or 'float64'; raises StoreError for any other."""
    name = np.dtype(array.dtype).name
    if name not in DTYPES:
        raise StoreError(f"key {key!r} holds {name}: parameter servers add up {', '.join(DTYPES)} only; cast it first")
    return name


def settle(array: NDArray) -> None:
    """Wait for an array and bring it into MXNet's own layout.

    Asking for the memory's address changes the layout (MXNDArrayGetData, MXNet 1.9.1).
    """
    if array.size:
        wait_until_sent(array)  # each convolution that still reads it queues a change of the layout as it runs
        array.wait_to_read()
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(ctypes.c_void_p())))


def write(array: NDArray, values: npt.NDArray[Any]) -> None:
    """Give an array these values, whatever its layout: MXNet refuses to write numbers into oneDNN's."""
    settle(array)
    array[:] = values


_REORDER = (
    _LIB._ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv
)  # NDArray::Reorder2DefaultAsync, a C++ method that MXNet's C API does not offer
_REORDER.argtypes, _REORDER.restype = (ctypes.c_void_p,), None


def reorder(array: NDArray) -> None:
    """Queue an operation that brings an array into MXNet's own layout, the only one that MXNet's KVStore can read.

    A convolution that infers changes its weight's layout as it runs, perhaps after this operation: wait for it first.
    """
    _REORDER(array.handle)


def flat(array: NDArray) -> NDArray:
    """A one-dimensional view of the same memory, also of an mx.np array, whose own reshape would copy."""
    return array.as_nd_ndarray().reshape((-1,))


def part(array: NDArray, start: int, length: int) -> NDArray:
    """A view of elements [start, start + length) of a flat array."""
    return array if start == 0 and length == array.size else array[start : start + length]


def copy(source: NDArray, target: NDArray) -> None:
    """Queue a copy: returns at once, and the copy runs after the operations on `source` and `target` that are queued already."""
    mx.nd.BlockGrad(source, out=target)


def clear(array: NDArray) -> None:
    """Queue an operation that fills an array with zeros; mx.np arrays are allowed."""
    legacy = array.as_nd_ndarray()
    mx.nd.zeros_like(legacy, out=legacy)


_BLOCK_GRAD, _CAST = OpHandle(), OpHandle()
check_call(_LIB.NNGetOpHandle(b"BlockGrad", ctypes.byref(_BLOCK_GRAD)))
check_call(_LIB.NNGetOpHandle(b"Cast", ctypes.byref(_CAST)))
_NO_TEXTS = (ctypes.c_char_p * 0)()


class Copy:
    """`copy` with its C arguments made once: a call then takes a quarter of the time, and an iteration makes hundreds of calls.

    Into an array of another dtype it converts with Cast, which accepts views of oneDNN's layout as BlockGrad does.
    """

    __slots__ = ("_inputs", "_kept", "_operation", "_options", "_outputs")

    def __init__(self, source: NDArray, target: NDArray):
        self._kept = (source, target)
        self._operation, self._options = _BLOCK_GRAD, (_NO_TEXTS, _NO_TEXTS)
        if source.dtype != target.dtype:
            dtype = np.dtype(target.dtype).name.encode()
            self._operation, self._options = _CAST, ((ctypes.c_char_p * 1)(b"dtype"), (ctypes.c_char_p * 1)(dtype))
        self._inputs = (NDArrayHandle * 1)(source.handle)
        self._outputs = ctypes.cast((NDArrayHandle * 1)(target.handle), ctypes.POINTER(NDArrayHandle))

    def __call__(self) -> None:
        one, storage_types = ctypes.c_int(1), ctypes.POINTER(ctypes.c_int)()
        check_call(
            _LIB.MXImperativeInvokeEx(
                self._operation, 1, self._inputs, ctypes.byref(one), ctypes.byref(self._outputs),
                len(self._options[0]), *self._options, ctypes.byref(storage_types),
            )
        )  # fmt: skip


class PushPull:
    """A push of arrays, one per device, and a pull of their sum into others, by the key of each call; C arguments made once."""

    __slots__ = ("_inputs", "_kept", "_keys", "_outputs", "_store")

    def __init__(self, store: mx.kvstore.KVStore, sources: Sequence[NDArray], targets: Sequence[NDArray]):
        self._kept, self._store = (sources, targets), store
        self._inputs = (NDArrayHandle * len(sources))(*(array.handle for array in sources))
        self._outputs = (NDArrayHandle * len(targets))(*(array.handle for array in targets))
        self._keys = (ctypes.c_int * max(len(sources), len(targets)))()

    def __call__(self, key: int, priority: int) -> None:
        self._keys[:] = [key] * len(self._keys)
        check_call(
            _LIB.MXKVStorePushPull(
                self._store.handle, mx_uint(len(self._inputs)), self._keys, mx_uint(len(self._outputs)), self._keys,
                self._inputs, self._outputs, ctypes.c_int(priority),
            )
        )  # fmt: skip


class OneArray:
    """Pushes or pulls of one array, through the key of each call; C arguments made once.

    The engine orders a pull only after the array's push through the same key: MXNet's store writes a pull's result into the array
    that was last pushed through its key.
    """

    __slots__ = ("_handles", "_kept", "_keys", "_store")

    def __init__(self, store: mx.kvstore.KVStore, array: NDArray):
        self._kept, self._store = array, store
        self._handles = (NDArrayHandle * 1)(array.handle)
        self._keys = (ctypes.c_int * 1)()

    def push(self, key: int, priority: int) -> None:
        """Queue a push; it is done when every worker that the server counts has pushed."""
        self._keys[0] = key
        check_call(
            _LIB.MXKVStorePush(self._store.handle, mx_uint(1), self._keys, self._handles, ctypes.c_int(priority))
        )

    def pull(self, key: int, priority: int) -> None:
        """Queue a pull of the server's present value."""
        self._keys[0] = key
        check_call(
            _LIB.MXKVStorePull(self._store.handle, mx_uint(1), self._keys, self._handles, ctypes.c_int(priority))
        )


class _Context(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_CPU = _Context(1, 0)  # mxnet::Context
_NOTHING = ctypes.cast(
    ctypes.CDLL(None).getpid, ctypes.c_void_p
)  # an engine operation has to call some function; getpid ignores its arguments


class Probe:
    """An engine operation that reads arrays and writes an array of its own; C arguments made once.

    A call queues the operation and returns that own array. It is ready when the writes queued before the call are done, whatever is
    written later. After two calls it is ready when both operations are done.
    """

    __slots__ = ("_handles", "_kept", "_own", "_ready")

    def __init__(self, arrays: Sequence[NDArray]):
        self._kept, self._ready = arrays, mx.nd.empty((1,))
        self._handles = (NDArrayHandle * len(arrays))(*(array.handle for array in arrays))
        self._own = (NDArrayHandle * 1)(self._ready.handle)

    def __call__(self) -> NDArray:
        check_call(
            _LIB.MXEnginePushSyncND(
                _NOTHING, None, None, ctypes.byref(_CPU), self._handles, ctypes.c_int(len(self._handles)), self._own,
                ctypes.c_int(1), None, ctypes.c_int(0), b"nalb_probe",
            )
        )  # fmt: skip
        return self._ready


def wait_for_all(arrays: Sequence[NDArray]) -> None:
    """Block until all arrays may be read."""
    for array in arrays:
        array.wait_to_read()


def add_up(arrays: Sequence[NDArray]) -> NDArray:
    """The sum of the arrays of several devices, on the first device; the first array itself where it is the only one or empty."""
    first = arrays[0]
    if len(arrays) == 1 or not first.size:  # to most operations a size of 0 means an unknown size
        return first
    return mx.nd.add_n(*[array.as_nd_ndarray().as_in_context(first.context) for array in arrays])


def wait_until_sent(array: NDArray) -> None:
    """Block until operations that read the array, such as pushes, have ended. wait_to_read does not wait for these."""
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
