from collections.abc import Callable, Sequence
from typing import ClassVar

from ..ndarray import NDArray

Arrays = NDArray | Sequence[NDArray] | Sequence[list[NDArray]]

class KVStoreBase:
    OPTIMIZER: str
    kv_registry: ClassVar[dict[str, Callable[[], KVStoreBase]]]
    _has_trainer: bool  # ours
    is_capable: Callable[[str], bool]

    @property
    def type(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def num_workers(self) -> int: ...
    def pushpull(
        self, key: int | str | Sequence[int | str], value: Arrays, out: Arrays | None = None, priority: int = 0
    ) -> None: ...

def create(name: str) -> KVStoreBase: ...
