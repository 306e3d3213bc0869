"""A rank that trains with unequal batches and holds each gradient against that of the union of all batches."""

import json
import sys
import time
from collections.abc import Callable

import nets
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from nalb.errors import StoreError
from nalb.torch import BatchSizes
from nalb.torch.backend import current_job

SAMPLES, SEED = 100, 5
STEPS, SLOW_S = int(sys.argv[1]), float(sys.argv[2])  # SLOW_S: that rank 0 computes longer


def refused(act: Callable[[], object]) -> str:
    """What the StoreError says that this raises."""
    try:
        act()
    except StoreError as error:
        return str(error)
    raise AssertionError("nothing was refused")


torch.set_num_threads(1)
dist.init_process_group("nalb")
draw = torch.Generator().manual_seed(7)
dataset = TensorDataset(torch.randn(SAMPLES, 100, generator=draw))
sizes = BatchSizes(dataset, 24 if dist.get_rank() == 0 else 8, SEED)
assert (sizes.total, sizes.sizes) == (32, [24, 8])
assert len(sizes) == SAMPLES // 32

model = nets.wrapped(nets.net(), dist.group.WORLD)
twin = nets.net()
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
seen, step = [], 0
while step < STEPS:
    for (batch,) in DataLoader(dataset, batch_sampler=sizes):
        union = dataset.tensors[0][sizes._stream.batch(step, 0, sizes.total)]
        seen.append(sizes.sizes)
        assert sum(sizes.sizes) == sizes.total
        assert len(batch) == sizes.sizes[sizes.rank]
        optimizer.zero_grad()
        time.sleep(SLOW_S if sizes.rank == 0 else 0.0)
        loss = nets.loss_of(model, batch)
        sizes.scale(loss).backward()
        twin.load_state_dict(model.module.state_dict())
        twin.zero_grad()
        nets.loss_of(twin, union).backward()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            difference = (ours.grad - theirs.grad).norm() / theirs.grad.norm()
            assert difference < 1e-6, f"step {step}, sizes {sizes.sizes}: {difference}"
        optimizer.step()
        step += 1
        if step == STEPS:
            break
nets.require_same_bits(nets.flat(model))
assert "scale() comes once per batch" in refused(lambda: sizes.scale(loss))
next(iter(sizes))
assert "is drawn before sizes.scale(loss).backward()" in refused(lambda: next(iter(sizes)))
assert current_job().front.by_plane > 0
print("sizes", json.dumps(seen), flush=True)
dist.destroy_process_group()
