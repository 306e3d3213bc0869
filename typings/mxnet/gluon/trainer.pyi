from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ..context import Context
from ..kvstore.base import KVStoreBase
from ..ndarray import NDArray
from ..optimizer import Optimizer, Updater
from .parameter import Parameter

_create_kvstore: Callable[[KVStoreBase | str | None, int, Mapping[str, NDArray]], tuple[KVStoreBase | None, bool]]

class Trainer:
    _alike: list[Parameter]  # ours
    _has_sums: bool  # ours
    _places: list[float]  # ours
    _contexts: list[Context]
    _kv_initialized: bool
    _kvstore: KVStoreBase | None
    _kvstore_params: dict[str, Any]
    _param2idx: dict[str, int]
    _params: list[Parameter]
    _params_to_init: list[Parameter]
    _scale: float
    _update_on_kvstore: bool | None
    _updaters: list[Updater]
    _check_and_rescale_grad: ClassVar[Callable[[Trainer, float], None]]
    _allreduce_grads: ClassVar[Callable[[Trainer], None]]
    _init_kvstore: ClassVar[Callable[[Trainer], None]]
    _init_params: ClassVar[Callable[[Trainer], None]]
    _update: ClassVar[Callable[[Trainer, bool], None]]

    def __init__(
        self,
        params: Mapping[str, Parameter] | Sequence[Parameter],
        optimizer: str,
        optimizer_params: Mapping[str, Any],
        kvstore: KVStoreBase | str | None,
        update_on_kvstore: bool | None = None,
    ) -> None: ...
    @property
    def optimizer(self) -> Optimizer: ...
    def set_learning_rate(self, lr: float) -> None: ...
    def step(self, batch_size: float) -> None: ...
