"""Rank 1 ends, and rank 0 goes on for longer than nalb waits for a script. survivors.py HOW

HOW: before it hears of the end, rank 0 computes a "backward" pass, or trains in a "thread" beside its main thread, while another
thread makes the last sum. Or it hears of the end at once, and goes on with a group of "gloo".
"""

import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

COMPUTES_S = 6.0
SIZE = 700


def compute() -> torch.Tensor:
    """A loss whose backward pass takes COMPUTES_S or more, without a line of Python in it."""
    weight = torch.ones(SIZE, SIZE, requires_grad=True)
    end_s, found = time.monotonic() + COMPUTES_S / 2, weight
    while time.monotonic() < end_s:
        found = torch.matmul(found, weight)
    return found.sum()


def train(how: str) -> None:
    rank = int(os.environ["RANK"])
    for _ in range(8):
        dist.all_reduce(torch.ones(5000))
    loss = compute() if how == "backward" and rank == 0 else None
    last = threading.Thread(target=dist.all_reduce, args=(torch.ones(5000),))
    if how == "thread":
        last.start()
        last.join()
    else:
        last.run()
    if rank == 1:
        time.sleep(0.5)
        os._exit(9)
    begun_s = time.monotonic()
    if loss is not None:
        loss.backward()
    elif how != "gloo":
        while time.monotonic() < begun_s + COMPUTES_S:
            pass
    print(f"computed for {time.monotonic() - begun_s:.1f} s", flush=True)
    try:
        for _ in range(2):
            dist.all_reduce(torch.ones(5000))
    except RuntimeError as error:
        print("caught", error, flush=True)
        if how == "gloo":
            go_on_with_gloo()


def go_on_with_gloo() -> None:
    """Wait for longer than nalb waits for a script, in another group: its other rank comes late."""
    dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    other = subprocess.Popen([sys.executable, __file__, "late", str(store.port)])
    meet_by_gloo(store, 0)
    assert other.wait() == 0
    print("went on", flush=True)


def meet_by_gloo(store: dist.TCPStore, rank: int) -> None:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "late":
        time.sleep(COMPUTES_S)
        meet_by_gloo(dist.TCPStore("127.0.0.1", int(sys.argv[2])), 1)
        sys.exit()
    dist.init_process_group("nalb")
    if sys.argv[1] == "thread":
        training = threading.Thread(target=train, args=("thread",))
        training.start()
        training.join()
    else:
        train(sys.argv[1])
