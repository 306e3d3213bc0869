"""A rank of PyTorch that makes a default group twice, sums in both and in a group of gloo's own; prints the sums."""

import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
for _ in range(2):
    dist.init_process_group("nalb")
    for _ in range(6):
        dist.all_reduce(tensor := torch.full((5000,), dist.get_rank() + 1.0))
    print("sum", tensor[0].item(), "by plane", dist.group.WORLD.front.by_plane, flush=True)
    dist.all_reduce(tensor, group=dist.new_group(backend="gloo"))
    dist.destroy_process_group()
    time.sleep(2)  # plain gloo also needs that no rank is still about to leave
