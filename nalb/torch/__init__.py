"""PyTorch's door to nalb: a backend of torch.distributed.

    dist.init_process_group("nalb")     in place of "gloo"; all else of the script stays

A script need not import anything: torch finds the backend by its entry point, and loads the rest of nalb once a group is made.
`import nalb.torch` registers it too, where torch is told to load no backends (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
"""

from typing import Any

import torch.distributed as dist

__all__ = ["register"]

NAME = "nalb"


def register() -> None:
    """Let torch.distributed know the backend "nalb". Importing this module does so too."""
    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(*options: Any) -> dist.ProcessGroup:
    from nalb.torch.backend import create

    return create(*options)


register()
