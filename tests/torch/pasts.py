"""Every rank's script: rank 1 has been in a group of its own before, as a process of a pool that has served others."""

import os

import torch
import torch.distributed as dist

torch.set_num_threads(1)
if os.environ["RANK"] == "1":
    dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
dist.init_process_group("nalb")
for _ in range(8):
    tensor = torch.ones(5000)
    dist.all_reduce(tensor)
    assert tensor[4999] == 2
assert dist.group.WORLD.front.by_plane
