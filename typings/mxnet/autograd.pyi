from collections.abc import Sequence
from contextlib import AbstractContextManager

from .ndarray import NDArray

def backward(
    heads: Sequence[NDArray], head_grads: Sequence[NDArray] | None = None, retain_graph: bool = False
) -> None: ...
def record() -> AbstractContextManager[None]: ...
