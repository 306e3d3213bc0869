"""Two ranks that multiprocessing starts, which meet at an address of their own and end without leaving. forked.py [HOW]

HOW: "used before": their parent had a job. Else: on rank 1 an exception ends them, while rank 0 waits for it in gloo.
"""

import multiprocessing
import os
import sys

import torch
import torch.distributed as dist

from nalb.torch.works import SumWork


def run(rank: int, port: int, how: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("nalb", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for step in range(10):
        tensor = torch.full((5000,), float(step + rank))
        dist.all_reduce(tensor)
        assert tensor[4999] == 2 * step + 1
    if how == "used before":
        return
    if how and rank == 1:
        raise ValueError("the data are gone")
    if how:
        dist.recv(tensor, 1)


if __name__ == "__main__":
    port = int(os.environ["MASTER_PORT"])  # free, as the test found; without MASTER_ADDR it tells nalb nothing
    how = sys.argv[1] if len(sys.argv) > 1 else ""
    if how == "spawned":
        torch.multiprocessing.spawn(run, (port, how), 2)
        sys.exit()
    if how == "used before":
        dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1)
        work = SumWork(torch.zeros(1))
        work.complete()
        work.wait()
        dist.destroy_process_group()
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run, args=(rank, port, how)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    sys.exit(str([one.exitcode for one in ranks]) if any(one.exitcode for one in ranks) else 0)
