"""PyTorch's door to nalb: a backend of torch.distributed.

    dist.init_process_group("nalb")     in place of "gloo"; all else of the script stays

BatchSizes      a batch sampler whose sizes suit unequal machines: docs/pytorch.md
Checkpoints     saves and restores a training's state
Progress        where a training goes on: iteration, epoch, batch, and notes of the script's own

A script need not import anything: torch finds the backend by its entry point, and loads the rest of nalb once a group is made.
`import nalb.torch` registers it too, where torch is told to load no backends (TORCH_DEVICE_BACKEND_AUTOLOAD=0).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

    from nalb.checkpoints.file import Progress
    from nalb.torch.batching import BatchSizes
    from nalb.torch.checkpoints import Checkpoints

__all__ = ["BatchSizes", "Checkpoints", "Progress", "register"]

NAME = "nalb"
# names that scripts import, and their modules, which are loaded only then
_HOMES = {
    "BatchSizes": "nalb.torch.batching",
    "Checkpoints": "nalb.torch.checkpoints",
    "Progress": "nalb.checkpoints.file",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def register() -> None:
    """Let torch.distributed know the backend "nalb". Importing this module does so too."""
    import torch.distributed as dist  # a script may import nalb first: torch then calls this function while it is imported

    if dist.is_available() and not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])


def _create(*options: Any) -> "dist.ProcessGroup":
    from nalb.torch.backend import create

    return create(*options)


register()
