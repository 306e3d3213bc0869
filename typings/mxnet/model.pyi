from collections.abc import Callable

from .gluon import trainer

_create_kvstore = trainer._create_kvstore
_initialize_kvstore: Callable[..., None]
_update_params: Callable[..., None]
