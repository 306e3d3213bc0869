"""A rank of PyTorch that trains a small net by DDP and prints a line for each step: `torch_steps.py STEPS [ATTEMPTS ENDING...]`.

ATTEMPTS is a file that counts the job's starts. In start k rank 1 ends at AT_STEP as the k-th ENDING says.
"""

import os
import signal
import sys
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nalb.errors import InputError

AT_STEP = 6  # plans are made from the fourth step on


def end(ending: str) -> None:
    if ending == "agent":
        (agent,) = [one for one in psutil.Process().children() if "nalb.plane.agent" in one.cmdline()]
        agent.kill()
    elif ending == "exception":
        raise RuntimeError("there is no more data")
    elif ending == "input":
        raise InputError("0 samples: give more data")
    elif ending == "leaves":
        sys.exit()
    elif ending == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


torch.set_num_threads(1)
dist.init_process_group("nalb")
rank = dist.get_rank()
ending = ""
if len(sys.argv) > 2 and rank == 1:
    attempts = Path(sys.argv[2])
    number = attempts.stat().st_size if attempts.exists() else 0
    attempts.write_bytes(bytes(number + 1))
    ending = sys.argv[3 + number]
torch.manual_seed(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 1000), nn.ReLU(), nn.Linear(1000, 100)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(int(sys.argv[1])):
    if step == AT_STEP:
        end(ending)
    loss = model(torch.rand(8, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}", flush=True)
dist.monitored_barrier(dist.new_group(backend="gloo"))  # a group of gloo's own finds its ranks too
total = torch.cat([one.detach().flatten() for one in model.parameters()]).double().sum().item()
print(f"parameters {total!r}", flush=True)
dist.destroy_process_group()
