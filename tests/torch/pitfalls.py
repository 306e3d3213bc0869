"""Every rank's script: each pitfall under nalb and under gloo in the same processes. Prints `ok NAME`, or `failed NAME` and why.

pitfalls.py [NAME ...]
"""

import copy
import os
import random
import socket
import sys
import time
import traceback
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from nets import DEVICE, batches, flat, loss_of, net, require_alike, require_same_bits, train, wrapped
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import DataLoader, TensorDataset

STEPS = 8  # the first iteration, two that teach, and some by the plane
Group = dist.ProcessGroup


def both(options: dict[str, object], data: list[torch.Tensor], make=net, step=train) -> None:
    """Train under nalb and under gloo: equal losses, equal parameters up to the order of summation, equal bits on all ranks."""
    before = by_plane()
    models = [wrapped(make(), group, **options) for group in (dist.group.WORLD, gloo)]
    ours, theirs = (step(model, data) for model in models)
    require_alike(torch.tensor(ours), torch.tensor(theirs))
    require_alike(flat(models[0]), flat(models[1]), 1e-4)
    require_same_bits(flat(models[0]))
    require_by_plane(before)


def front():
    return dist.group.WORLD.front


def by_plane() -> int | None:
    """How many sums went by the plane; None where another rank of the machine goes out."""
    return front() and front().by_plane


def require_by_plane(before: int | None) -> None:
    assert front() is None or front().by_plane > before, "no sum went by the plane"


def hundred_steps() -> None:
    both({}, batches(100))


def bucket_rebuild() -> None:
    model = wrapped(net(), dist.group.WORLD)
    train(model, batches(STEPS))
    assert model._get_ddp_logging_data()["has_rebuilt_buckets"] == 1


def gradient_as_bucket_view() -> None:
    both({"gradient_as_bucket_view": True}, batches(STEPS))


def static_graph() -> None:
    both({"static_graph": True}, batches(STEPS))


class Branches(nn.Module):
    """Of which one goes unused, on each rank another one in turn."""

    def __init__(self):
        super().__init__()
        self.branches, self.calls = nn.ModuleList([net(), net()]), dist.get_rank()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.branches[self.calls % 2](batch)


def find_unused_parameters() -> None:
    both({"find_unused_parameters": True}, batches(STEPS), Branches)


def no_sync() -> None:
    def step(model: nn.Module, data: list[torch.Tensor]) -> list[float]:
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.05), []
        for first, second in zip(data[::2], data[1::2], strict=True):
            optimizer.zero_grad()
            with model.no_sync():
                loss_of(model, first).backward()
            loss = loss_of(model, second)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    both({}, batches(2 * STEPS), step=step)


def uneven_inputs() -> None:
    def step(model: nn.Module, data: list[torch.Tensor]) -> list[float]:
        with model.join():
            return train(model, data)

    data = batches(STEPS + 2 * dist.get_rank())
    both({}, data, step=step)


def batch_norm() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(100), net(), nn.BatchNorm1d(100)).to(DEVICE)

    both({}, batches(STEPS), make)


def sync_batch_norm() -> None:
    """torch has it for GPUs alone; both backends say so."""

    def make(group: Group = dist.group.WORLD) -> nn.Module:
        whole = nn.Sequential(nn.BatchNorm1d(100), net()).to(DEVICE)
        return nn.SyncBatchNorm.convert_sync_batchnorm(whole, group)

    if DEVICE.type == "cuda":
        both({}, batches(STEPS), make)
        return
    for group in (dist.group.WORLD, gloo):
        model = make(group)
        with pytest.raises(ValueError, match=r"GPU|device"):
            wrapped(model, group)(batches(1)[0])


HALVES = (torch.bfloat16, torch.float16)


def sum_of(part: torch.Tensor) -> torch.Tensor:
    """The sum in float32 in order of ranks, rounded once."""
    own = part.cpu().contiguous()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather([one.view(-1).view(torch.uint8) for one in parts], own.view(-1).view(torch.uint8), group=gloo)
    total = parts[0].float()
    for one in parts[1:]:
        total = total + one.float()
    return total.to(part.device, part.dtype)


def exactly(make, data: list[torch.Tensor], hook=None, compressed: torch.dtype | None = None) -> None:
    """Train with all sums by the plane: equal to the bit to DDP with sums by `sum_of`. hook: one that sums in `compressed`.

    Ranks of a machine add up by gloo first, which rounds; then only bits of ranks are equal.
    """

    buckets = 0

    def sum_bucket(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal buckets
        buckets += 1
        whole, size = bucket.buffer(), dist.get_world_size()
        part = whole * (1 / size) if compressed is None else whole.to(compressed).div_(size)
        summed = torch.futures.Future()
        summed.set_result(whole.copy_(sum_of(part)))
        return summed

    ours, theirs = (wrapped(make(), dist.group.WORLD) for _ in range(2))
    theirs.register_comm_hook(None, sum_bucket)
    if hook is not None:
        ours.register_comm_hook(dist.group.WORLD, hook)
    for model in (theirs, ours):
        train(model, data)  # until buckets stay, and nalb knows what an iteration sums
        model.module.load_state_dict(make().state_dict())
    before, buckets = by_plane(), 0
    losses = [train(model, data) for model in (ours, theirs)]
    for one in ours.parameters():
        require_same_bits(one.detach().reshape(-1))
    if not ranks_of_a_machine:
        assert losses[0] == losses[1]
        assert front().by_plane == before + buckets
        assert all(map(torch.equal, ours.parameters(), theirs.parameters()))


def half_gradients() -> None:
    for dtype in HALVES:
        exactly(lambda dtype=dtype: net().to(dtype), batches(STEPS, dtype))


class Mixed(nn.Module):
    """Of layers in three dtypes."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([net(), *(net().to(dtype) for dtype in HALVES)])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = layer(batch.to(next(layer.parameters()).dtype))
        return batch.float()


def mixed_dtypes() -> None:
    exactly(Mixed, batches(STEPS))


def half_hooks() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook

    exactly(net, batches(STEPS), fp16_compress_hook, torch.float16)
    # By its own name DDP refuses it where torch was built without CUDA.
    exactly(net, batches(STEPS), lambda group, bucket: bf16_compress_hook(group, bucket), torch.bfloat16)


def half_sums() -> None:
    """Sums by the plane have the bits of `sum_of`, whatever they hold and however they lie."""
    if ranks_of_a_machine:  # which gloo adds up first: plain_sums
        return
    rank, size, inf = dist.get_rank(), dist.get_world_size(), float("inf")
    draw = torch.Generator().manual_seed(rank)
    for dtype in HALVES:
        dense, limits = torch.randn(40, 100, 50, generator=draw).to(dtype), torch.finfo(dtype)
        tiny = limits.smallest_normal
        odd = [
            float("nan") if rank == 1 else 1.0,
            inf if rank else -inf,
            inf,
            -inf,
            limits.max,
            -0.0,
            tiny / 4 * (rank + 1),
            -tiny / 64,
        ]
        whole = torch.tensor(odd, dtype=dtype).repeat_interleave(200)
        checked = 0
        for number in range(6):
            copies = [one.to(DEVICE, copy=True) for one in (dense, dense, dense, whole)]
            copies[1], copies[2] = copies[1].transpose(0, 2), torch.stack([copies[2], copies[2]], 3)[..., 1]
            for tensor in (*copies, dense.to(DEVICE, copy=True).view(-1)[:1024]):
                before, given = by_plane(), tensor.clone() / (size if number % 2 else 1)
                dist.all_reduce(tensor, dist.ReduceOp.AVG if number % 2 else dist.ReduceOp.SUM)
                expected = sum_of(given)
                if by_plane() > before:
                    checked += 1
                    is_nan = expected.isnan()
                    assert torch.equal(is_nan, tensor.isnan())
                    assert torch.equal(tensor[~is_nan].view(torch.int16), expected[~is_nan].view(torch.int16))
                    require_same_bits(tensor.reshape(-1))
        assert checked >= 3 * 5, checked


def infinities() -> None:
    """One rank's overflow reaches all, who skip the step together."""
    before = by_plane()
    scales, ends = [], []
    for group in (dist.group.WORLD, gloo):
        model, scaler = wrapped(net(), group), torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        for number, batch in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            if number in (2, 5) and dist.get_rank() == 1:
                loss = loss * float("inf")
            kept = flat(model)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(kept, flat(model)) == (number in (2, 5))
        scales.append(scaler.get_scale())
        ends.append(flat(model))
    assert scales == [256.0, 256.0]
    require_alike(*ends)
    require_same_bits(ends[0])
    require_by_plane(before)


def two_models() -> None:
    before = by_plane()
    ends = []
    for group in (dist.group.WORLD, gloo):
        models = [wrapped(net(), group), wrapped(nn.Sequential(net(), net()), group)]
        optimizers = [torch.optim.SGD(model.parameters(), 0.05) for model in models]
        for batch in batches(STEPS):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
        ends.append(torch.cat([flat(model) for model in models]))
    require_alike(*ends)
    require_same_bits(ends[0])
    require_by_plane(before)


def second_group() -> None:
    group = dist.new_group()
    assert dist.get_backend(group) == "nalb"
    assert group.front is front()
    before = by_plane()
    models = [wrapped(net(), one) for one in (group, gloo)]
    ours, theirs = (train(model, batches(STEPS)) for model in models)
    require_alike(torch.tensor(ours), torch.tensor(theirs))
    require_by_plane(before)


def part_of_the_ranks() -> None:
    group = dist.new_group([0, 1])
    tensor = torch.full((5000,), dist.get_rank() + 1.0, device=DEVICE)
    if dist.get_rank() < 2:
        assert group.front is None
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor.cpu(), torch.full((5000,), 3.0))
    dist.barrier()


def groups_that_go() -> None:
    def files() -> int:
        dist.barrier()
        return len(os.listdir("/proc/self/fd"))

    def use_group() -> None:
        group = dist.new_group([0, 1])
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(8), group=group)
            dist.destroy_process_group(group)

    use_group()
    before = files()
    for _ in range(8):
        use_group()
    assert files() <= before + 1, "groups that are gone have open files"


def device_mesh() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(),))
    before = by_plane()
    models = [wrapped(net(), mesh.get_group()), wrapped(net(), gloo)]
    ours, theirs = (train(model, batches(STEPS)) for model in models)
    require_alike(torch.tensor(ours), torch.tensor(theirs))
    require_by_plane(before)


def replicated_shards() -> None:
    """FSDP2: the gradients of a shard are summed over the replicate dimension, which has all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    before = by_plane()
    mesh = init_device_mesh(DEVICE.type, (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    model, other = net(), wrapped(net(), gloo)
    fully_shard(model, mesh=mesh)
    ours, theirs = train(model, batches(STEPS)), train(other, batches(STEPS))
    require_alike(torch.tensor(ours), torch.tensor(theirs))
    require_by_plane(before)


def compiled() -> None:
    """In buckets of 1 MB: torch refuses to compile for smaller ones."""

    def step(model: nn.Module, data: list[torch.Tensor]) -> list[float]:
        return train(torch.compile(model, backend="aot_eager"), data)

    both({"bucket_cap_mb": 1}, batches(STEPS), step=step)


def changed_alike() -> None:
    """Another model, with other sizes, in the middle of the training."""
    model = wrapped(net(), dist.group.WORLD)
    train(model, batches(STEPS))
    before = by_plane()
    larger = nn.Sequential(net(), nn.Linear(100, 3000), nn.Linear(3000, 100)).to(DEVICE)
    models = [wrapped(copy.deepcopy(larger), group) for group in (dist.group.WORLD, gloo)]
    ours, theirs = (train(model, batches(STEPS)) for model in models)
    require_alike(torch.tensor(ours), torch.tensor(theirs))
    require_by_plane(before)


def forked_workers() -> None:
    def step(model: nn.Module, data: list[torch.Tensor]) -> list[float]:
        loader = DataLoader(TensorDataset(torch.cat(data).cpu()), 8, num_workers=2, multiprocessing_context="fork")
        return train(model, [batch.to(DEVICE) for (batch,) in loader])

    both({}, batches(STEPS), step=step)


def sums_in_callbacks() -> None:
    """A comm hook whose callback waits for another sum, as PowerSGD's does."""
    size, before, waited = dist.get_world_size(), by_plane(), []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def then(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            other = torch.full((5000,), float(dist.get_rank()), device=DEVICE)
            dist.all_reduce(other, async_op=True).get_future().wait()
            assert torch.equal(other, torch.full_like(other, size * (size - 1) / 2))
            waited.append(len(waited))
            return done.value()[0] / size

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(then)

    model = nn.parallel.DistributedDataParallel(nn.Linear(80, 80).to(DEVICE), bucket_cap_mb=1000)
    model.register_comm_hook(None, hook)
    for _ in range(8):
        model(torch.ones(3, 80, device=DEVICE)).sum().backward()
    assert len(waited) == 8
    require_by_plane(before)


def plain_sums() -> None:
    """Whatever a script may sum: each as gloo does."""
    rank, size = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator().manual_seed(rank)
    dense = torch.randn(40, 100, 50, generator=draw).to(DEVICE)
    tensors = [
        dense, dense.transpose(0, 2), dense[:, ::2], torch.randn(1, generator=draw), torch.empty(0), torch.empty(0, 9),
        torch.randn(1023, generator=draw), torch.randn(1024, generator=draw), torch.tensor(2.5),
        dense.double(), dense.half(), dense.bfloat16(), (100 * dense).int(), (100 * dense).long(),
        torch.full((4096,), float("nan") if rank == 1 else 1.0), torch.full((4096,), float("inf") if rank else -float("inf")),
        torch.full((4096,), 1e-42 * (rank + 1)),
    ]  # fmt: skip
    tensors = [tensor.to(DEVICE) for tensor in tensors]
    operations = [dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN]
    before = by_plane()
    for _ in range(5):
        for operation in operations:
            for tensor in tensors:
                ours, theirs = tensor.clone(), tensor.clone()
                dist.all_reduce(ours, operation)
                dist.all_reduce(theirs, operation, group=gloo)
                require_alike(ours.double(), theirs.double(), 1e-4 if tensor.dtype == torch.float32 else 0.1)
                require_same_bits(ours.reshape(-1))
        ours = dense.clone()
        dist.all_reduce(ours, dist.ReduceOp.AVG)
        theirs = dense.clone()
        dist.all_reduce(theirs, group=gloo)
        require_alike(ours, theirs / size)
        for one in (dense, dense.half(), (100 * dense).int(), dense.double()):
            theirs = one.clone()
            dist.all_reduce(theirs, group=gloo)
            around = one.repeat_interleave(2, 1)
            ours = around[:, ::2]  # what lies between stays as it is
            dist.all_reduce(ours)
            require_alike(ours.double(), theirs.double(), 1e-4 if one.dtype == torch.float32 else 0.1)
            assert torch.equal(around[:, 1::2], one)
            ours = (
                one.transpose(0, 2).contiguous().transpose(0, 2) if rank == 1 else one.clone()
            )  # strides of one rank alone
            dist.all_reduce(ours)
            require_alike(ours.double(), theirs.double(), 1e-4 if one.dtype == torch.float32 else 0.1)
    whole = torch.tensor([7, -8]) + dist.get_rank()
    dist.all_reduce(whole, dist.ReduceOp.AVG)  # as Lightning does
    of_ranks = size * (size - 1) / 2
    assert whole.tolist() == [int((7 * size + of_ranks) / size), int((-8 * size + of_ranks) / size)]
    small = torch.tensor([200, 255, 3], dtype=torch.uint8)  # whose sum does not fit into 8 bits
    work = dist.all_reduce(small, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    assert small.tolist() == [200, 255, 3] == work.get_future().wait()[0].tolist()
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.tensor([True]), dist.ReduceOp.AVG)
    require_by_plane(before)


def works() -> None:
    """What a script may ask of a sum under way, and several iterations at once."""
    size, before = dist.get_world_size(), by_plane()
    for number in range(20):
        tensors = [torch.full((3000 + 1000 * index,), float(number), device=DEVICE) for index in range(3)]
        under_way = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        if number % 2:
            assert under_way[0].get_future().wait()[0].data_ptr() == tensors[0].data_ptr()
            assert under_way[1].wait()
            under_way[2].wait()
            under_way[0].wait()  # gloo completes a future before its work
            assert under_way[0].is_completed()
            assert under_way[0].is_success()
        else:
            for work in under_way:
                work.wait()
                assert work.get_future().done()  # torchft counts on it
        for tensor in tensors:
            assert torch.equal(tensor, torch.full_like(tensor, float(number * size)))
    tensor = torch.ones(5000, device=DEVICE)
    many = [dist.all_reduce(tensor, async_op=True) for _ in range(1)]
    doubled = many[0].get_future().then(lambda done: 2 * done.value()[0])
    assert torch.equal(doubled.wait().cpu(), torch.full((5000,), 2.0 * size))
    require_by_plane(before)


def inference_mode() -> None:
    """As of a metric over all ranks; elsewhere tensors that are made so may not be changed in place."""
    size, before = dist.get_world_size(), by_plane()
    with torch.inference_mode():
        for _ in range(6):
            for elements in (3000, 700_000):  # one part, several
                tensor = torch.ones(elements, device=DEVICE)
                dist.all_reduce(tensor)
                assert torch.equal(tensor, torch.full_like(tensor, size))
    outside = torch.ones(50, 60, device=DEVICE).T  # not contiguous, so that its copy is made within the mode
    with torch.inference_mode():
        for number in range(6):
            dist.all_reduce(outside)
            assert torch.equal(outside, torch.full_like(outside, size ** (number + 1)))
    require_by_plane(before)


def others() -> None:
    """Collectives that are not sums."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [torch.empty(2) for _ in range(size)]
    dist.all_gather(gathered, torch.tensor([rank, 2.0 * rank]))
    assert torch.equal(torch.stack(gathered), torch.tensor([[one, 2.0 * one] for one in range(size)]))
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": one} for one in range(size)]
    tensor = torch.full((3,), float(rank))
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor, torch.ones(3))
    dist.reduce(tensor, 0)
    if rank == 0:
        dist.send(torch.ones(4), 1)
    elif rank == 1:
        dist.recv(tensor := torch.zeros(4), 0)
        assert torch.equal(tensor, torch.ones(4))
    out = torch.empty(2)
    dist.reduce_scatter(out, [torch.full((2,), float(one)) for one in range(size)])
    assert torch.equal(out, torch.full((2,), float(rank * size)))
    for shape in ((2 * size,), (1, 2 * size), (size, 2)):  # SyncBatchNorm takes the second one
        whole = torch.empty(shape, device=DEVICE)
        dist.all_gather_into_tensor(whole, torch.full((2,), float(rank), device=DEVICE))
        assert whole.view(-1).tolist() == [float(one) for one in range(size) for _ in range(2)]
    dist.barrier()


def methods() -> None:
    """A group's own methods, in each form that torch's groups have."""
    size, total, most = dist.get_world_size(), dist.ReduceOp.SUM, dist.ReduceOp.MAX
    one = torch.arange(5000.0, device=DEVICE) + dist.get_rank()
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    sums = {
        "all": lambda group, tensor: group.allreduce(tensor),
        "of a list": lambda group, tensor: group.allreduce([tensor]),
        "named": lambda group, tensor: group.allreduce([tensor], op=total, timeout=timedelta(seconds=60)),
        "an operation": lambda group, tensor: group.allreduce(tensor, most),
        "all in order": lambda group, tensor: group.allreduce([tensor], total, timedelta(seconds=60)),
        "options": lambda group, tensor: group.allreduce([tensor], opts=dist.AllreduceOptions()),
    }
    for name, begin in sums.items():
        ours, theirs = one.clone(), one.clone()
        begin(dist.group.WORLD, ours).wait()
        begin(gloo, theirs).wait()
        assert torch.equal(ours, theirs), name
    for _ in range(2):  # the options stay the caller's
        ours = one.clone()
        dist.group.WORLD.allreduce([ours], options).wait()
        require_alike(ours, one - dist.get_rank() + (size - 1) / 2)
    for name in ("_allgather_base", "all_gather_single"):
        if hasattr(gloo, name):  # by torch's version
            ours, theirs = (torch.empty(size * 5000, device=DEVICE) for _ in range(2))
            getattr(dist.group.WORLD, name)(ours, one).wait()
            getattr(gloo, name)(output=theirs, input=one).wait()
            assert torch.equal(ours, theirs), name
    part = one[:6].view(2, 3)
    ours, theirs = (torch.empty(3, 2 * size, device=DEVICE).T for _ in range(2))  # not contiguous
    dist.all_gather_into_tensor(ours, part)
    dist.all_gather_into_tensor(theirs, part, group=gloo)
    assert torch.equal(ours, theirs)


def barrier_after_sums() -> None:
    """Gloo's barrier waits for all that its group has begun, and scripts may count on it."""
    size, rank, before = dist.get_world_size(), dist.get_rank(), by_plane()
    for group in (dist.group.WORLD, gloo):
        tensors = [torch.empty(elements, device=DEVICE) for elements in (400_000, 300_000, 200_000)]
        for step in range(STEPS):
            for tensor in tensors:
                tensor.fill_(step + rank)
            under_way = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
            dist.barrier(group)
            if DEVICE.type == "cuda":
                torch.cuda.synchronize()
            total = size * step + size * (size - 1) / 2
            assert all(torch.equal(tensor, torch.full_like(tensor, total)) for tensor in tensors), (step, total)
            for one in under_way:
                one.wait()
    require_by_plane(before)


def tensors_that_go() -> None:
    """Their memory is free once their sum is there, on a rank with an agent also where no other sum follows."""
    memory = []
    for _ in range(STEPS):
        tensor = torch.ones(5000, device=DEVICE)
        memory.append(StorageWeakRef(tensor.untyped_storage()))
        dist.all_reduce(tensor)
        del tensor
    end_s = time.monotonic() + 10.0
    while not all(one.expired() for one in (memory if front() else memory[:-1])):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def saved_for_backward() -> None:
    """A sum in place is no change that autograd sees, as with gloo: a script may sum what a backward pass needs."""
    for number in range(STEPS):
        for group in (dist.group.WORLD, gloo):
            for shape in ((5000,), (50, 100)):
                one = torch.ones(shape, device=DEVICE)
                one = one.T if len(shape) > 1 and group is not gloo else one
                weight = torch.ones_like(one, requires_grad=True)
                loss = (weight * one).sum()
                dist.all_reduce(one, group=group)
                loss.backward()
                assert torch.equal(weight.grad, torch.full_like(one, dist.get_world_size())), (number, shape)


def devices_apart() -> None:
    """Groups that give one device's tensors to nalb, and the other's to gloo."""
    for backends, device in (("cpu:gloo,cuda:nalb", "cuda"), ("cpu:nalb,cuda:gloo", "cpu")):
        group, before = dist.new_group(backend=backends), by_plane()
        for _ in range(STEPS):
            tensor = torch.ones(5000, device=DEVICE)
            dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor, torch.full_like(tensor, dist.get_world_size()))
        assert front() is None or (front().by_plane > before) == (DEVICE.type == device), backends


def free_port() -> int:
    """Below those that the kernel gives to others' connections at any time."""
    while True:
        port = random.randrange(10_000, 20_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


SECTIONS = [
    hundred_steps, bucket_rebuild, gradient_as_bucket_view, static_graph, find_unused_parameters, no_sync, uneven_inputs,
    batch_norm, sync_batch_norm, half_gradients, mixed_dtypes, half_hooks, half_sums, infinities, two_models, second_group,
    part_of_the_ranks, groups_that_go, device_mesh, replicated_shards, compiled, changed_alike, forked_workers,
    sums_in_callbacks, plain_sums, works, inference_mode, others, methods, devices_apart,
    barrier_after_sums, tensors_that_go, saved_for_backward,
]  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    if ranks_of_a_machine := int(os.environ.get("RANKS_OF_A_MACHINE", "0")):
        number, place = divmod(int(os.environ["RANK"]), ranks_of_a_machine)
        os.environ |= {"NALB_NODE": f"m{number}", "LOCAL_WORLD_SIZE": str(ranks_of_a_machine)}
    dist.init_process_group("nalb")
    assert not ranks_of_a_machine or (front() is None) == (place > 0)
    gloo = dist.new_group(backend="gloo")
    for section in SECTIONS:
        if sys.argv[1:] and section.__name__ not in sys.argv[1:]:
            continue
        try:
            section()
            print("ok", section.__name__, flush=True)
        except Exception:
            print("failed", section.__name__, traceback.format_exc(), flush=True)
    port = torch.tensor(free_port())
    dist.broadcast(port, 0)
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port.item())
    dist.init_process_group("nalb")  # again, and the script ends without leaving it
    gloo = dist.new_group(backend="gloo")
    both({}, batches(STEPS))
    print("ok again", flush=True)
