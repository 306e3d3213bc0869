"""What each rank of a campaign of faults runs with PyTorch: DDP, with phases long enough for a fault to fall into each.

In every step the backward pass sums the gradients, and one more sum is checked. Prints 'forward 3', 'push 3' (the backward pass
begins), 'pull 3' (the gradients are there, the other sum begins) as they begin. A job that is started again goes on from its newest
checkpoint. At the end the parameters must be those of a training in one process: to the bit where two ranks train, since the
order of more than two summands differs between gloo and the plane.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from nalb.torch import Checkpoints, Progress

ELEMENTS = 1_000_000  # with the gradients 9 MB: at 300 Mbit/s a quarter of a second
FORWARD_S = 0.1
EVERY, SEED = 2, 3
TOLERANCE = 1e-5  # of the parameters' differences, where the order of summands differs
Parts = tuple[nn.Module, torch.optim.Optimizer]


def build() -> Parts:
    torch.manual_seed(SEED)
    net = nn.Sequential(nn.Linear(64, 8000), nn.ReLU(), nn.Linear(8000, 100))
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def loss_of(net: nn.Module, step: int, rank: int) -> torch.Tensor:
    data = torch.randn(8, 64, generator=torch.Generator().manual_seed(1000 * step + rank))
    return net(data).square().mean()


def train_alone(steps: int, ranks: int) -> nn.Module:
    """What all ranks train together, in one process."""
    net, optimizer = build()
    parameters = list(net.parameters())
    for step in range(steps):
        each = [torch.autograd.grad(loss_of(net, step, rank), parameters) for rank in range(ranks)]
        for parameter, *gradients in zip(parameters, *each, strict=True):
            parameter.grad = sum(one / ranks for one in gradients)
        optimizer.step()
    return net


def flat(net: nn.Module) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in net.parameters()])


def main() -> None:
    """Train, check, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("nalb")
    print("joined", flush=True)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    net, optimizer = build()
    model = DistributedDataParallel(net)
    checkpoints = Checkpoints(model, optimizer, EVERY, seed=SEED)
    known = torch.zeros(args.elements)
    for step in range(checkpoints.restore().iteration, args.steps):
        print(f"forward {step}", flush=True)
        time.sleep(FORWARD_S)
        optimizer.zero_grad()
        loss = loss_of(model, step, rank)
        print(f"push {step}", flush=True)
        loss.backward()
        print(f"pull {step}", flush=True)
        known.fill_(rank + 1 + step)
        dist.all_reduce(known)
        expected = sum(one + 1 + step for one in range(ranks))
        assert known.eq(expected).all(), f"wrong sum in step {step}"
        optimizer.step()
        checkpoints.after_step(Progress(step + 1))
    off = (flat(net) - flat(train_alone(args.steps, ranks))).abs().max().item()
    assert off <= (0.0 if ranks == 2 else TOLERANCE), f"parameters differ by {off} from those of one process"
    print("last step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
