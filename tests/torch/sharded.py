"""A rank whose values may be sharded over ranks: sharded.py FOLDER. It says what its checkpoints raise, kind by kind."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from nalb.errors import CheckpointError
from nalb.torch import Checkpoints, Progress

FOLDER = Path(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
RANKS = dist.get_world_size()
LINE, GRID = init_device_mesh("cpu", (RANKS,)), init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("copies", "parts"))


def build(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    if kind in ("fully_shard", "copies"):
        fully_shard(net, mesh=LINE if kind == "fully_shard" else GRID)
    elif kind == "fsdp1":
        net = FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    elif kind in ("buffer", "whole_buffer"):
        place = Shard(0) if kind == "buffer" else Replicate()
        net[0].register_buffer("mean", distribute_tensor(torch.zeros(4), LINE, [place]))
    if kind == "zero":
        return net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    if kind == "value":
        optimizer.state[net[0].weight]["momentum_buffer"] = distribute_tensor(torch.zeros(4, 8), LINE, [Shard(0)])
    return net, optimizer


def train(kind: str, steps: int) -> list[float]:
    """Train up to so many steps, and return all parameters."""
    net, optimizer = build(kind)
    checkpoints = Checkpoints(net, optimizer, every=2, folder=FOLDER / kind)
    at = checkpoints.restore()
    while at.iteration < steps:
        torch.manual_seed(at.iteration)
        optimizer.zero_grad()
        net(torch.rand(3, 8)).square().mean().backward()
        optimizer.step()
        at = Progress(at.iteration + 1)
        if kind == "zero" and checkpoints.is_due(at):
            optimizer.consolidate_state_dict(to=0)
        checkpoints.after_step(at)
    values = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in net.parameters()]
    return [number for one in values for number in one.flatten().tolist()]


for kind in ("fully_shard", "fsdp1", "buffer", "value"):
    checkpoints = Checkpoints(*build(kind), every=2, folder=FOLDER / kind)
    for call in ("restore", "save"):
        try:
            checkpoints.restore() if call == "restore" else checkpoints.save(Progress(2))
        except CheckpointError as error:
            print(f"{kind}: {call}: {error}", flush=True)
    assert not list((FOLDER / kind).glob("*.nalb"))
for kind in ("copies", "whole_buffer", "zero"):
    whole = train(kind, 5)
    assert train(kind, 5) == whole, "it goes on from 4"
    print(f"{kind}: goes on", flush=True)
dist.destroy_process_group()
