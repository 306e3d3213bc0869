"""A rank whose folder of checkpoints no other rank sees: apart.py FOLDER. Rank 1 has the newest file, and rank 0 has none."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from nalb.torch import Checkpoints, Progress

RANK = int(os.environ["RANK"])
ITERATIONS = {1: 20, 2: 10}
FOLDER = Path(sys.argv[1]) / f"disk{RANK}"


def build(value: float) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    net = torch.nn.Linear(300, 300)
    torch.nn.init.constant_(net.weight, value)
    return net, torch.optim.SGD(net.parameters(), 0.1)


if RANK in ITERATIONS:
    Checkpoints(*build(RANK), every=1, folder=FOLDER).save(Progress(ITERATIONS[RANK]))
dist.init_process_group("nalb")
net, optimizer = build(0.0)
assert Checkpoints(net, optimizer, every=1, folder=FOLDER).restore() == Progress(20)
assert (net.weight == 1.0).all()
dist.destroy_process_group()
