"""`python tests/campaigns/gpu.py`: sums of tensors on a GPU by real ranks, which share the GPU; needs one, and torch for CUDA.

Each line is a job: the pitfalls of tests/torch with all tensors on the GPU, streams, training beside gloo, a rank on the GPU with
one on the CPU, NCCL beside nalb, and an agent that is killed. Ends with 1 where one failed.
"""

import importlib
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.torch import nets, ranks  # noqa: E402 - the repository need not be installed

BY_PLANE: dict[str, Any] = {"NALB_SCHEME": "average"}  # never leaves sums to the ring, however fast links are
GPU = torch.device("cuda", 0)
SUMS = 60
WITHIN_S = 90.0  # for the pitfalls, which take half a minute: what hangs says then how far it came
STEPS = 12
COSTLY_STEPS = 16


def models() -> Any:
    """torchvision's, which only this campaign needs."""
    return importlib.import_module("torchvision").models


def by_plane() -> int:
    """How many sums went by the plane."""
    front = dist.group.WORLD.front
    assert front is not None
    return int(front.by_plane)


def streams() -> None:
    """Sums begin when the script's stream has computed the tensor, and what follows in the stream waits for them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator().manual_seed(7)  # alike on all ranks
    slow = torch.randn(3000, 3000, device=GPU) / 100
    side = torch.cuda.Stream()
    before = by_plane()
    lengths = [int(torch.randint(1024, 4_000_000, (), generator=draw)) for _ in range(3)]
    for number in range(SUMS):
        stream = side if number % 3 == 1 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            tensors, works = [], []
            for length in lengths:
                for _ in range(5):
                    slow = (slow @ slow).clamp(-1, 1)  # the stream is busy for longer than a copy takes
                tensors.append(torch.full((length,), float(number + rank), device=GPU) + 0 * slow[0, 0])
                works.append(dist.all_reduce(tensors[-1], async_op=True))
            # what the script lets go must not be used for something else meanwhile
            del tensors[1 if number % 5 else 0 :]
            torch.full((5_000_000,), -1.0, device=GPU)
            if number % 2:
                got = [work.get_future().wait()[0] for work in works]
            else:
                got = []
                for work in works:
                    work.wait()
                    got.append(work.result()[0])
            doubled = [2 * one for one in got]
            expected = 2.0 * sum(number + one for one in range(size))
            for one, length in zip(doubled, lengths, strict=True):
                assert len(one) == length
                assert bool((one == expected).all()), f"sum {number} of {length} elements: {one.min()} to {one.max()}"
    strided = torch.arange(200_000.0, device=GPU).view(400, 500).t()
    dist.all_reduce(strided)
    assert torch.equal(strided.cpu(), size * torch.arange(200_000.0).view(400, 500).t())
    assert by_plane() - before > 2 * SUMS
    memory = torch.cuda.memory_allocated()
    for _ in range(SUMS):
        dist.all_reduce(torch.ones(1_000_000, device=GPU))
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= memory, "memory of the GPU is not given back"


def trained(group: dist.ProcessGroup, device: torch.device, mixed: bool = False) -> tuple[list[float], torch.Tensor]:
    """Losses and parameters of a small residual net."""
    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(models().resnet18().to(device), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=mixed)
    draw, losses = torch.Generator().manual_seed(dist.get_rank()), []
    for _ in range(STEPS):
        images = torch.randn(16, 3, 64, 64, generator=draw).to(device)
        labels = torch.randint(1000, (16,), generator=draw).to(device)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16, enabled=mixed):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, torch.cat([one.detach().reshape(-1) for one in model.parameters()])


def require_as_gloo(device: torch.device, mixed: bool = False, tolerance: float = 1e-3) -> None:
    gloo, before = dist.new_group(backend="gloo"), by_plane()
    ours, parameters = trained(dist.group.WORLD, device, mixed)
    assert by_plane() > before
    nets.require_same_bits(parameters.cpu())  # other ranks may hold theirs on a CPU
    theirs, _ = trained(gloo, device, mixed)
    apart = max(abs(one - other) / other for one, other in zip(ours, theirs, strict=True))
    print(f"losses: {apart:.1e} apart from gloo's", flush=True)
    assert apart < tolerance


def training() -> None:
    """ResNet-18 as under gloo."""
    torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32 = True, False
    require_as_gloo(GPU)


def mixed_precision() -> None:
    """ResNet-18 with autocast and GradScaler."""
    torch.backends.cudnn.deterministic = True
    require_as_gloo(GPU, mixed=True, tolerance=2e-2)


def beside_a_cpu() -> None:
    """Rank 0 trains on the GPU, the others on CPUs: the same sums for all."""
    torch.set_num_threads(4)
    require_as_gloo(GPU if dist.get_rank() == 0 else torch.device("cpu"), tolerance=2e-2)


def nccl() -> None:
    """A group of one rank: two cannot share a GPU under NCCL."""
    tensor = torch.full((5000,), 3.0, device=GPU)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.cpu(), torch.full((5000,), 3.0))
    for device in (GPU, torch.device("cpu")):
        whole = torch.empty(5000, device=device)
        dist.all_gather_into_tensor(whole, torch.full((5000,), 2.0, device=device))
        assert torch.equal(whole.cpu(), torch.full((5000,), 2.0))
        dist.broadcast(whole, 0)
    assert type(dist.group.WORLD._get_backend(GPU)).__name__ == "ProcessGroupNCCL"


def cost() -> None:
    """Times of steps of ResNet-50 (102 MB), where no link is slow: by gloo, by the plane alone."""
    gloo = dist.new_group(backend="gloo")
    for name, group in (("gloo", gloo), ("plane", dist.group.WORLD)):
        model = nn.parallel.DistributedDataParallel(models().resnet50().to(GPU), process_group=group)
        images = torch.randn(16, 3, 64, 64, device=GPU)
        times_s, begun_cpu_s = [], time.process_time()
        for _ in range(COSTLY_STEPS):
            torch.cuda.synchronize()
            begun_s = time.perf_counter()
            model(images).sum().backward()
            torch.cuda.synchronize()
            times_s.append(time.perf_counter() - begun_s)
        cpu_s = (time.process_time() - begun_cpu_s) / COSTLY_STEPS
        later_s = statistics.median(times_s[COSTLY_STEPS // 2 :])
        print(f"{name}: {later_s:.3f} s a step, {cpu_s:.2f} s of this process's CPU", flush=True)


SECTIONS: dict[str, Callable[[], None]] = {
    one.__name__: one for one in (streams, training, mixed_precision, beside_a_cpu, nccl, cost)
}


def section(name: str) -> None:
    """One rank."""
    torch.set_num_threads(1)
    dist.init_process_group("cpu:nalb,cuda:nccl" if name == "nccl" else "nalb")
    try:
        SECTIONS[name]()
        print("ok", flush=True)
    except Exception:
        traceback.print_exc()
        os._exit(1)
    dist.destroy_process_group()


def told(name: str, begun_s: float, ended: list[ranks.Rank], is_well: bool) -> bool:
    """Print a line, and what was said where it failed."""
    print(f"{name}: {'ok' if is_well else 'FAILED'} after {time.monotonic() - begun_s:.0f} s", flush=True)
    for one in ended:
        lines = one.output.splitlines() if not is_well else [line for line in one.output.splitlines() if ": " in line]
        print("\n".join(f"    {line}" for line in lines[-60:]), flush=True)
    return is_well


def pitfalls(size: int, **environment: Any) -> bool:
    """tests/torch/pitfalls.py, all tensors on the GPU."""
    begun_s = time.monotonic()
    ended = ranks.run("pitfalls.py", size=size, within_s=WITHIN_S, DEVICE="cuda", **BY_PLANE, **environment)
    is_well = all(one.code == 0 and "failed " not in one.output for one in ended)
    return told(f"pitfalls of {size} ranks {environment or ''}", begun_s, ended, is_well)


def killed() -> bool:
    """An agent is killed while gradients of a GPU are summed: all ranks end, and say why."""
    begun_s = time.monotonic()
    started = ranks.start("endings.py", "backward", size=2, DEVICE="cuda", **BY_PLANE)
    assert started[1].stdout is not None
    for line in started[1].stdout:
        if line == "trains\n":
            break
    for pid in ranks.agents_of(started[1].pid):
        os.kill(pid, signal.SIGKILL)
    ended = ranks.wait(started, 60.0)
    return told("killed", begun_s, ended, all(one.code for one in ended) and "JobFailed" in ended[0].output)


def main() -> int:
    """Run all, or those that are named."""
    if not torch.cuda.is_available():
        print("gpu: PyTorch finds no GPU: run this where `python -c 'import torch; torch.cuda.init()'` works")
        return 1
    gpus = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.strip()
    print(f"torch {torch.__version__}, {gpus or torch.cuda.get_device_name()}", flush=True)
    names = sys.argv[1:] or ["pitfalls", "machines", *SECTIONS, "killed"]
    well = []
    for name in names:
        if name == "pitfalls":
            well.append(pitfalls(3))
        elif name == "machines":
            well.append(pitfalls(4, RANKS_OF_A_MACHINE="2"))
        elif name == "killed":
            well.append(killed())
        else:
            begun_s = time.monotonic()
            ended = ranks.run(__file__, "section", name, size=1 if name == "nccl" else 2, **BY_PLANE)
            well.append(told(name, begun_s, ended, all(one.code == 0 for one in ended)))
    return int(not all(well))


if __name__ == "__main__":
    if sys.argv[1:2] == ["section"]:
        section(sys.argv[2])
    else:
        sys.exit(main())
