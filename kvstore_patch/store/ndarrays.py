"""The few things that the store does with NDArrays: flat views, copies by the engine, waiting.

oneDNN's operations leave arrays in oneDNN's own layout: a convolution that infers does it to its weight, a backward pass to the
gradient of what a convolution read. It cannot be seen before they have run. Views of such an array make those MXNet operations
fail that know oneDNN, `_copyto` and `add_n` among them (`Check failed: !is_view`). Other operations get the view in MXNet's layout,
so copies are made by one of those: BlockGrad, which does nothing else.
A write into a view gives the whole array MXNet's layout, but not what the other views held. So all of an array must be read
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

from nalb.errors import StoreError
from nalb.planning.slots import DTYPES


def dtype_name(array: NDArray, key: object) -> str:
    """'float16', 'float32' or 'float64'; StoreError for anything else."""
    name = np.dtype(array.dtype).name
    if name not in DTYPES:
        raise StoreError(f"key {key!r} holds {name}: parameter servers add up {', '.join(DTYPES)} only; cast it first")
    return name


def settle(array: NDArray) -> None:
    """Wait for an array and bring it into MXNet's own layout.

    Asking for the memory's address is what reorders it (MXNDArrayGetData, MXNet 1.9.1).
    """
    if array.size:
        wait_until_sent(array)  # convolutions that still wait to read it: each queues a change of the layout as it runs
        array.wait_to_read()
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(ctypes.c_void_p())))


def write(array: NDArray, values: npt.NDArray[Any]) -> None:
    """Give an array these values, whatever its layout: MXNet refuses to write numbers into oneDNN's."""
    settle(array)
    array[:] = values


_REORDER = (
    _LIB._ZNK5mxnet7NDArray20Reorder2DefaultAsyncEv
)  # NDArray::Reorder2DefaultAsync, which no function of C gives
_REORDER.argtypes, _REORDER.restype = (ctypes.c_void_p,), None


def reorder(array: NDArray) -> None:
    """Bring an array into MXNet's own layout by an engine operation: MXNet's KVStore, which cannot read another, may follow.

    A convolution that infers changes its weight's layout as it runs, which may be after this: wait for it first.
    """
    _REORDER(array.handle)


def flat(array: NDArray) -> NDArray:
    """A one-dimensional view of the same memory; of an mx.np array too, whose own reshape would copy."""
    return array.as_nd_ndarray().reshape((-1,))


def part(array: NDArray, start: int, length: int) -> NDArray:
    """A view of elements [start, start + length) of a flat array."""
    return array if start == 0 and length == array.size else array[start : start + length]


def copy(source: NDArray, target: NDArray) -> None:
    """Copy by an engine operation: returns at once, ordered after what `source` and `target` wait for."""
    mx.nd.BlockGrad(source, out=target)


def clear(array: NDArray) -> None:
    """Zeros, by an engine operation; for mx.np arrays too."""
    legacy = array.as_nd_ndarray()
    mx.nd.zeros_like(legacy, out=legacy)


_BLOCK_GRAD, _CAST = OpHandle(), OpHandle()
check_call(_LIB.NNGetOpHandle(b"BlockGrad", ctypes.byref(_BLOCK_GRAD)))
check_call(_LIB.NNGetOpHandle(b"Cast", ctypes.byref(_CAST)))
_NO_TEXTS = (ctypes.c_char_p * 0)()


class Copy:
    """`copy` with its C arguments made once: a quarter of the cost of a call, and an iteration makes hundreds.

    To an array of another type it converts, by Cast, which takes views of oneDNN's layout as BlockGrad does.
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
    """Arrays, one per device, that are pushed, and those that get the sum, through whatever key; C arguments made once."""

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
    """One array, pushed or pulled through whatever key; C arguments made once.

    A pull is ordered after the array's push through the same key alone: MXNet's store writes what was pushed through it last.
    """

    __slots__ = ("_handles", "_kept", "_keys", "_store")

    def __init__(self, store: mx.kvstore.KVStore, array: NDArray):
        self._kept, self._store = array, store
        self._handles = (NDArrayHandle * 1)(array.handle)
        self._keys = (ctypes.c_int * 1)()

    def push(self, key: int, priority: int) -> None:
        """Done when every worker that the server counts has pushed."""
        self._keys[0] = key
        check_call(
            _LIB.MXKVStorePush(self._store.handle, mx_uint(1), self._keys, self._handles, ctypes.c_int(priority))
        )

    def pull(self, key: int, priority: int) -> None:
        """What the server has now."""
        self._keys[0] = key
        check_call(
            _LIB.MXKVStorePull(self._store.handle, mx_uint(1), self._keys, self._handles, ctypes.c_int(priority))
        )


class _Context(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_CPU = _Context(1, 0)  # mxnet::Context
_NOTHING = ctypes.cast(
    ctypes.CDLL(None).getpid, ctypes.c_void_p
)  # an operation has to call something: arguments are ignored


class Probe:
    """An array that is ready when all of these are, whatever is written into them later; C arguments made once.

    Each call queues one operation. After two calls the one array is ready when both times' arrays are.
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
    """Block until all may be read."""
    for array in arrays:
        array.wait_to_read()


def add_up(arrays: Sequence[NDArray]) -> NDArray:
    """The sum over devices, on the first one's; the array itself where there is one, or nothing in it."""
    first = arrays[0]
    if len(arrays) == 1 or not first.size:  # to most operations a size of 0 means an unknown one
        return first
    return mx.nd.add_n(*[array.as_nd_ndarray().as_in_context(first.context) for array in arrays])


def wait_until_sent(array: NDArray) -> None:
    """Block until operations that read the array (a push) have ended; wait_to_read would not wait for those."""
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
