"""Every rank's script: sums until something ends it, on rank 1. endings.py HOW"""

import os
import sys
import time

import torch
import torch.distributed as dist

LIMIT_S = 60.0

DEVICE = os.environ.get("DEVICE", "cpu")
how, rank = sys.argv[1], int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("nalb")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(60, 3000).to(DEVICE))
end_s = time.monotonic() + LIMIT_S
for step in range(1_000_000):
    if time.monotonic() > end_s:
        sys.exit("nothing has ended this")
    sizes = [3000, 5000]
    if step == 10:
        print("trains", flush=True)
        print("by agents" if dist.group.WORLD.front else "by gloo", flush=True)
        if rank == 1 and how == "exception":
            raise ValueError("the data are gone")
        if rank == 1 and how == "exit":
            sys.exit(3)
        if rank == 1 and how == "other sums":
            sizes = [3000, 6000]
        if rank == 1 and how == "fewer sums":
            sizes = [3000]
        if how == "barrier":
            time.sleep(rank * LIMIT_S)
            dist.barrier()  # rank 0 waits in gloo, where no exception reaches it
        if how == "end":
            break
    if how == "backward":
        model(torch.ones(60, device=DEVICE)).sum().backward()
        continue
    for size in sizes:
        dist.all_reduce(torch.ones(size, device=DEVICE))
    time.sleep(0.01)
