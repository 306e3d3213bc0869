"""A rank of PyTorch that saves as it trains: `torch_checkpoints.py STEPS MARK FAULT`. In the job's first start rank 1 kills itself
(FAULT is kill), or rank 0's disk is full from then on (full).

MARK is a file that says that the job was started before. At the end each rank trains alone, in one go, what the job trained.
"""

import os
import resource
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from nalb.batching.stream import Stream
from nalb.torch import BatchSizes, Checkpoints, Progress

EVERY, FAULT_AT, SEED = 4, 10, 3  # it goes on from step 8
SIZES = [24, 8]
STEPS, MARK, FAULT = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
Parts = tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]


def build() -> Parts:
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(64, 500), nn.ReLU(), nn.Linear(500, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def fail() -> None:
    """As FAULT asks, once the job has come to FAULT_AT."""
    if FAULT == "kill" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "full" and dist.get_rank() == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def flat(net: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in net.parameters()])


def train(dataset: TensorDataset, is_to_fail: bool) -> tuple[int, nn.Module, BatchSizes]:
    """The step that it began with, the trained net, and its batches."""
    net, optimizer, schedule = build()
    model = DistributedDataParallel(net)
    sizes = BatchSizes(dataset, SIZES[dist.get_rank()], SEED)
    checkpoints = Checkpoints(model, optimizer, EVERY, settings={"total": sizes.total}, others=[schedule])
    at = begun = checkpoints.restore()
    sizes.go_to(at.iteration)
    while at.iteration < STEPS:
        for (batch,) in DataLoader(dataset, batch_sampler=sizes):
            if at.iteration == FAULT_AT and is_to_fail:
                fail()
            optimizer.zero_grad()
            sizes.scale(loss_of(model, batch)).backward()
            optimizer.step()
            schedule.step()
            at = Progress(at.iteration + 1)
            checkpoints.after_step(at)
            if at.iteration == STEPS:
                break
    return begun.iteration, net, sizes


def train_alone(data: torch.Tensor, stream: Stream) -> nn.Module:
    """What both ranks train together, in one process."""
    net, optimizer, schedule = build()
    for step in range(STEPS):
        gradients = []
        for start, stop in ((0, SIZES[0]), (SIZES[0], sum(SIZES))):
            weight = len(SIZES) * (stop - start) / sum(SIZES)
            loss = loss_of(net, data[stream.batch(step, start, stop)]) * weight
            gradients.append(torch.autograd.grad(loss, list(net.parameters())))
        for parameter, first, second in zip(net.parameters(), *gradients, strict=True):
            parameter.grad = first / 2 + second / 2
        optimizer.step()
        schedule.step()
    return net


torch.set_num_threads(1)
dist.init_process_group("nalb")
is_first = not MARK.exists()
dist.barrier()
MARK.touch()
data = torch.randn(100, 64, generator=torch.Generator().manual_seed(7))
begun, net, sizes = train(TensorDataset(data), is_first)
is_equal = torch.equal(flat(net), flat(train_alone(data, sizes._stream)))
print(f"from step {begun}: bits are {'equal' if is_equal else 'other ones'}", flush=True)
dist.destroy_process_group()
