import ctypes
from collections.abc import Callable
from typing import ClassVar

from ..ndarray import NDArray
from . import base as base
from .base import KVStoreBase as KVStoreBase

class KVStore(KVStoreBase):
    handle: ctypes.c_void_p | None

    _updater: Callable[..., None] | None
    init: ClassVar[Callable[..., None]]
    broadcast: ClassVar[Callable[..., None]]
    save_optimizer_states: ClassVar[Callable[..., None]]
    load_optimizer_states: ClassVar[Callable[..., None]]

    def _barrier(self) -> None: ...
    def push(self, key: int, value: NDArray) -> None: ...
    def pull(self, key: int, out: NDArray) -> None: ...

create: Callable[[str], KVStoreBase]
