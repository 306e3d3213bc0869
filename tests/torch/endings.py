"""Every rank's script: sums until something ends it, on rank 1. endings.py HOW

BY_RING=1: not before the group's ring makes the sums, which are larger then: small ones say little of links.
"""

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
by_ring, by_plane, has_begun = os.environ.get("BY_RING") == "1", -1, False


def fail() -> None:
    try:
        raise ValueError("the data are gone")
    finally:
        dist.destroy_process_group()


for step in range(1_000_000):
    if time.monotonic() > end_s:
        sys.exit("nothing has ended this")
    sizes = [300_000, 500_000] if by_ring else [3000, 5000]
    front = dist.group.WORLD.front
    is_time = step >= 10 and not has_begun and (not by_ring or front.by_plane == by_plane)
    by_plane = front.by_plane if front else 0
    if is_time:
        has_begun = True
        print("trains", flush=True)
        print("by agents" if front else "by gloo", flush=True)
        if rank == 1 and how == "exception":
            raise ValueError("the data are gone")
        if rank == 1 and how == "finally":
            fail()
        if rank == 1 and how == "exit":
            sys.exit(3)
        if rank == 1 and how == "other sums":
            sizes = [sizes[0], 6000]
        if rank == 1 and how == "fewer sums":
            sizes = sizes[:1]
        if how == "barrier":
            time.sleep(rank * LIMIT_S)
            dist.barrier()  # rank 0 waits in gloo, where no exception reaches it
        if how == "unequal ends":
            if rank == 0:
                dist.barrier()  # where nobody comes to any more
            break
        if how == "end":
            break
    if how == "backward":
        model(torch.ones(60, device=DEVICE)).sum().backward()
        continue
    for size in sizes:
        dist.all_reduce(torch.ones(size, device=DEVICE))
    time.sleep(0.01)
