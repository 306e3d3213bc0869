from collections.abc import Callable
from typing import ClassVar

from .executor_group import DataParallelExecutorGroup

_initialize_kvstore: Callable[..., None]
_update_params: Callable[..., None]

class Module:
    _exec_group: DataParallelExecutorGroup
    init_optimizer: ClassVar[Callable[..., None]]
