from collections.abc import Callable, Sequence

from .ndarray import NDArray

class Optimizer:
    idx2name: dict[int, str]
    num_update: int
    lr: float
    rescale_grad: float
    lr_scheduler: Callable[[int], float] | None
    _all_index_update_counts: dict[int, dict[int, int]]

    def create_state_multi_precision(self, index: int, weight: NDArray) -> object: ...

class LARS(Optimizer): ...
class Nadam(Optimizer): ...
class SGLD(Optimizer): ...

class Updater:
    optimizer: Optimizer
    states: dict[int, object]
    states_synced: dict[int, bool]

    def __call__(self, index: Sequence[int], grad: Sequence[NDArray], weight: Sequence[NDArray]) -> None: ...
