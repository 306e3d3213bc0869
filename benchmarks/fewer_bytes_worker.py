"""One worker of fewer_bytes.py: it sums gradients of a model's shapes, iteration after iteration.

python fewer_bytes_worker.py torch|mxnet HOOK MODEL ITERATIONS. With torch it is a script with DDP, and HOOK is none, fp16, or
powersgd-R of rank R, as PyTorch has them. With mxnet it pushes and pulls through MXNet's own store, and HOOK is none or 2bit.
Gradients are random, the same ones in each iteration. What each iteration took is printed as JSON.
"""

import json
import sys
import time
from typing import Any

import numpy as np

from nalb.workloads import load

SAID = "fewer_bytes "


def with_torch(hook: str, model: str, iterations: int) -> list[float]:
    """Seconds of each iteration: the backward pass, in which DDP sums."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    class Gradients(torch.nn.Module):  # type: ignore[misc]
        """Parameters of the model's shapes, whose gradients are given."""

        def __init__(self, rank: int):
            super().__init__()
            shapes = [one.shape for one in load(model)]
            draw = torch.Generator().manual_seed(rank)
            self.own = torch.nn.ParameterList([torch.zeros(shape) for shape in shapes])
            self.given = [torch.randn(shape, generator=draw) for shape in shapes]

        def forward(self) -> torch.Tensor:
            return sum((one * given).sum() for one, given in zip(self.own, self.given, strict=True))

    torch.set_num_threads(1)
    dist.init_process_group("nalb")  # under scheme gloo that is gloo, at the node's address
    # One bucket: PowerSGD sums in callbacks, and with several buckets ranks would make these sums in different orders.
    net = torch.nn.parallel.DistributedDataParallel(Gradients(dist.get_rank()), bucket_cap_mb=1000)
    if hook == "fp16":
        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook != "none":
        rank = int(hook.removeprefix("powersgd-"))
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    took_s = []
    for _ in range(iterations):
        net.zero_grad()
        loss = net()
        begun_s = time.monotonic()
        loss.backward()
        took_s.append(time.monotonic() - begun_s)
    dist.destroy_process_group()
    return took_s


def with_mxnet(hook: str, model: str, iterations: int) -> list[float]:
    """Seconds of each iteration: from the first push to the last pull."""
    import mxnet as mx

    store: Any = mx.kv.create("dist_sync")
    if hook == "2bit":
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    draw = np.random.default_rng(store.rank)
    given = [mx.nd.array(draw.standard_normal(one.shape).astype(np.float32)) for one in load(model)]
    sums = [mx.nd.zeros(one.shape) for one in given]
    for key, one in enumerate(sums):
        store.init(key, one)
    mx.nd.waitall()
    took_s = []
    for _ in range(iterations):
        begun_s = time.monotonic()
        for key, one in enumerate(given):
            store.push(key, one, priority=-key)
            store.pull(key, sums[key], priority=-key)
        mx.nd.waitall()
        took_s.append(time.monotonic() - begun_s)
    return took_s


if __name__ == "__main__":
    framework, chosen, of_model, count = sys.argv[1:]
    seconds = (with_torch if framework == "torch" else with_mxnet)(chosen, of_model, int(count))
    print(SAID + json.dumps(seconds), flush=True)
