"""A rank that makes a default group twice, sums in both and in a group of gloo's own; prints the sums. torch_twice.py FOLDER"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

torch.set_num_threads(1)
for turn in range(2):
    dist.init_process_group("nalb")
    for _ in range(6):
        dist.all_reduce(tensor := torch.full((5000,), dist.get_rank() + 1.0))
    print("sum", tensor[0].item(), "by plane", dist.group.WORLD.front.by_plane, flush=True)
    dist.all_reduce(tensor, group=dist.new_group(backend="gloo"))
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    # plain gloo also needs that no rank is still about to leave: the next group would find the keys of its store
    Path(sys.argv[1], f"left{turn}-{rank}").touch()
    while not all(Path(sys.argv[1], f"left{turn}-{other}").exists() for other in range(size)):
        time.sleep(0.05)
