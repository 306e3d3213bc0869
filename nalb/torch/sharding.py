"""Finds what is sharded over ranks: rank 0's state dict has only its own part of that.

DTensors say so by their placements, as FSDP2's `fully_shard` and tensor parallelism make them. A mesh's dimension of size 1 shards
nothing. FullyShardedDataParallel has plain tensors, and its state_dict() waits for other ranks.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def name_sharded(part: object) -> str | None:
    """Name a tensor of this module or optimizer that is sharded over ranks, or the module that shards it; None: none is."""
    # To import it takes a second. Where nobody has, no module is of its class.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if isinstance(part, torch.nn.Module) and fsdp is not None:
        for name, one in part.named_modules():
            if isinstance(one, fsdp.FullyShardedDataParallel):
                return f"module {name or type(part).__name__} (FullyShardedDataParallel)"
    return next((name for name, value in _named(part) if _is_sharded(value)), None)


def _named(part: object) -> Iterator[tuple[str, Any]]:
    if isinstance(part, torch.nn.Module):
        yield from ((f"parameter {name}", one) for name, one in part.named_parameters())
        yield from ((f"buffer {name}", one) for name, one in part.named_buffers())
    elif isinstance(part, torch.optim.Optimizer):
        kind = type(part).__name__
        parameters = [one for group in part.param_groups for one in group["params"]]
        yield from ((f"parameter {number} of {kind}", one) for number, one in enumerate(parameters))
        for number, one in enumerate(parameters):
            values = part.state.get(one)  # ZeroRedundancyOptimizer has None where the parameter is another rank's
            if isinstance(values, Mapping):
                yield from ((f"{name} of parameter {number} of {kind}", value) for name, value in values.items())


def _is_sharded(value: object) -> bool:
    """Whether this is a DTensor of which ranks have different parts."""
    mesh, placements = getattr(value, "device_mesh", None), getattr(value, "placements", ())
    if not isinstance(value, torch.Tensor) or mesh is None:
        return False
    return any(mesh.size(dimension) > 1 and not one.is_replicate() for dimension, one in enumerate(placements))
