"""Repeats figures 5a and 7 of Dynamic Batching (Tyagi and Sharma, 2020) with a GPU: throughput by batch, and a GPU beside a CPU.

    python scripts/figures/gpu_figures.py [--out DIR]

Needs a GPU, PyTorch for CUDA, and torchvision. Figure 5a: one process trains ResNet-50 on images of 224 x 224, REPEATS times for
each size, of which the fastest counts, until memory ends. Figure 7: two ranks of one job, one on the GPU, one on CPU_THREADS cores,
train ResNet-18 on images of 64 x 64 with TOTAL samples an iteration, by equal batches and by those that `--batching` chooses. Each
rank tells its speed with PROBE samples, by which `static` and `dynamic` begin. Writes DIR/figure-5a/throughput.json (images per
second by size) and DIR/figure-7-gpu/throughput.json (seconds of an iteration by scheme).
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nalb.reporting.run_file import write_whole  # noqa: E402 - the repository need not be installed
from nalb.torch import BatchSizes  # noqa: E402

REPEATS = 4
SIZES = tuple(1 << power for power in range(13))
SCHEMES = ("off", "static", "dynamic")
TOTAL, STEPS, CPU_THREADS = 512, 40, 4
PROBE = 32
LIMIT_S = 150.0


def models() -> Any:
    """torchvision's, which only this script needs."""
    return importlib.import_module("torchvision").models


def throughput() -> dict[str, float]:
    """Images per second by batch size, as long as a batch fits."""
    gpu, per_s = torch.device("cuda", 0), {}
    model = models().resnet50().to(gpu)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for size in SIZES:
        took_s = []
        try:
            images = torch.randn(size, 3, 224, 224, device=gpu)
            labels = torch.randint(1000, (size,), device=gpu)
            for _ in range(REPEATS):
                torch.cuda.synchronize()
                begun_s = time.perf_counter()
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                torch.cuda.synchronize()
                took_s.append(time.perf_counter() - begun_s)
        except torch.cuda.OutOfMemoryError:
            print(f"{size} images do not fit into {torch.cuda.get_device_name()}", flush=True)
            break
        per_s[str(size)] = size / min(took_s)
        print(f"{size}: {per_s[str(size)]:.0f} images a second", flush=True)
    return per_s


def probe_s(net: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    """Seconds of PROBE samples' gradients."""
    images, labels = dataset[:PROBE]
    begun_s = time.perf_counter()
    nn.functional.cross_entropy(net(images.to(device)), labels.to(device)).backward()
    net.zero_grad()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun_s


def rank() -> None:
    """One rank of figure 7. Rank 0, on the GPU, prints the times of iterations, and the last sizes."""
    dist.init_process_group("nalb")
    number = dist.get_rank()
    device = torch.device("cuda", 0) if number == 0 else torch.device("cpu")
    torch.set_num_threads(CPU_THREADS)
    torch.manual_seed(1)
    dataset = TensorDataset(torch.randn(4096, 3, 64, 64), torch.randint(1000, (4096,)))
    net = models().resnet18().to(device)
    sizes = BatchSizes(dataset, TOTAL // 2, power=PROBE / min(probe_s(net, dataset, device) for _ in range(3)))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    times_s, begun_s, step = [], time.monotonic(), 0
    while step < STEPS:
        for images, labels in islice(DataLoader(dataset, batch_sampler=sizes), STEPS - step):
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            sizes.scale(loss).backward()
            optimizer.step()
            loss.item()
            times_s.append(time.monotonic() - begun_s)
            begun_s += times_s[-1]
            step += 1
    if number == 0:
        print(
            "times",
            json.dumps({"iteration_s": statistics.median(times_s[STEPS // 2 :]), "sizes": sizes.sizes}),
            flush=True,
        )
    dist.destroy_process_group()


def beside_a_cpu() -> dict[str, float]:
    """Seconds of an iteration by scheme of batch sizes. Ends with a message where a job fails or does not end."""
    found = {}
    for scheme in SCHEMES:
        command = [sys.executable, "-m", "nalb.cli.main", "launch", "--local", "2", "--framework", "torch"]
        command += ["--batching", scheme, "--", sys.executable, __file__, "--rank"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            sys.exit(f"{scheme}: no end within {LIMIT_S:g} s")
        line = next((one for one in done.stdout.splitlines() if "times {" in one), None)
        if done.returncode or line is None:
            sys.exit(f"{scheme}: the job ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        told = json.loads(line.partition("times ")[2])
        found[scheme] = told["iteration_s"]
        print(f"{scheme}: {told['iteration_s']:.3f} s an iteration, last sizes {told['sizes']}", flush=True)
    return found


def main() -> int:
    """Measure both, write, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("runs/dynamic-batching"))
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank()
        return 0
    if not torch.cuda.is_available():
        parser.exit(1, "gpu_figures: PyTorch finds no GPU: see `python -c 'import torch; torch.cuda.init()'`\n")
    os.environ["OMP_NUM_THREADS"] = str(CPU_THREADS)
    for figure, measure in (("figure-7-gpu", beside_a_cpu), ("figure-5a", throughput)):
        result = msgspec.json.format(msgspec.json.encode(measure()), indent=2)
        (args.out / figure).mkdir(parents=True, exist_ok=True)
        write_whole(args.out / figure / "throughput.json", result + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
