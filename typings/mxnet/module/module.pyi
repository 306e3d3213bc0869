from collections.abc import Callable

from .. import model
from .executor_group import DataParallelExecutorGroup

_create_kvstore = model._create_kvstore
_initialize_kvstore: Callable[..., None]
_update_params: Callable[..., None]

class Module:
    _exec_group: DataParallelExecutorGroup
