"""What the ranks' scripts train, under nalb and under gloo."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # the scripts are no package

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DEVICE = torch.device(os.environ.get("DEVICE", "cpu"))  # tests/campaigns/gpu.py sets it


def net() -> nn.Module:
    """2.4 MB: two buckets of DDP's, of which the first one changes after the first iteration."""
    torch.manual_seed(1)
    layers = nn.Linear(100, 2000), nn.ReLU(), nn.Linear(2000, 180), nn.ReLU(), nn.Linear(180, 100)
    return nn.Sequential(*layers).to(DEVICE)


def batches(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """This rank's data."""
    draw = torch.Generator().manual_seed(100 + dist.get_rank())
    return [torch.randn(8, 100, generator=draw).to(DEVICE, dtype) for _ in range(count)]


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The net's output should be the batch, mirrored."""
    return ((model(batch) - batch.flip(1)) ** 2).mean()


def train(model: nn.Module, data: list[torch.Tensor]) -> list[float]:
    """The losses."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def wrapped(model: nn.Module, group: dist.ProcessGroup, **options: object) -> DistributedDataParallel:
    """In small buckets."""
    return DistributedDataParallel(model, process_group=group, **({"bucket_cap_mb": 0.5} | options))


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters."""
    return torch.cat([one.detach().reshape(-1) for one in model.parameters()])


def require_same_bits(tensor: torch.Tensor) -> None:
    """On all ranks, whatever the tensor holds."""
    own = tensor.contiguous().view(torch.uint8)
    first = own.clone()
    dist.broadcast(first, 0)
    assert torch.equal(own, first), f"rank {dist.get_rank()} has other bits than rank 0"


def require_alike(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Up to the order of summation."""
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
