from typing import Any

import numpy as np
from numpy.typing import NDArray as NumpyArray

from ..base import MXNetError
from ..context import Context
from ..ndarray import NDArray

class DeferredInitializationError(MXNetError): ...

class Parameter:
    name: str
    shape: tuple[int, ...]
    dtype: type[np.generic]
    grad_req: str
    _differentiable: bool
    _data: list[NDArray] | None
    _deferred_init: tuple[object, ...]
    _stype: str
    _grad_stype: str
    _was_updated: bool  # ours

    def data(self, ctx: Context | None = None) -> NDArray: ...
    def list_data(self) -> list[NDArray]: ...
    def list_grad(self) -> list[NDArray]: ...
    def set_data(self, data: NDArray | NumpyArray[Any]) -> None: ...
    def zero_grad(self) -> None: ...

class Constant(Parameter): ...
