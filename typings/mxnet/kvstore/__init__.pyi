import ctypes
from collections.abc import Callable, Sequence

from ..ndarray import NDArray
from . import base as base
from .base import KVStoreBase as KVStoreBase

class KVStore(KVStoreBase):
    handle: ctypes.c_void_p | None

    def _barrier(self) -> None: ...
    def init(self, key: int | Sequence[int], value: NDArray | Sequence[NDArray]) -> None: ...
    def push(self, key: int, value: NDArray) -> None: ...
    def pull(self, key: int, out: NDArray) -> None: ...

create: Callable[[str], KVStoreBase]
