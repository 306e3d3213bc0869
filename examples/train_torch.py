"""Train a CNN on Fashion-MNIST with PyTorch's DistributedDataParallel: the same script for gloo and for nalb.

    nalb launch --local 2 -- python examples/train_torch.py
    nalb launch --local 2 --scheme gloo -- python examples/train_torch.py    # gloo alone
    torchrun --nproc-per-node 2 examples/train_torch.py                      # without a launcher of nalb's
    nalb launch --network uneven4-cpu --batching lb-bsp -- python examples/train_torch.py --width 64
    nalb launch --local 2 --max-restarts 1 -- python examples/train_torch.py --checkpoint-every 10

The word "nalb" in init_process_group alone makes the training a nalb job. BatchSizes and Checkpoints are needed only by scripts
whose batches shall suit unequal machines, or which shall go on after a failure.
"""

import argparse
import gzip
import json
import statistics
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from nalb.torch import BatchSizes, Checkpoints, Progress

DATA = Path("/usr/share/datasets/fashion-mnist")  # Debian package dataset-fashion-mnist
DRAWN_IMAGES = 4096  # where there is no such folder


def load(folder: Path, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The training images, shape (n, 1, 28, 28), from 0 to 1, and their labels. Drawn ones where the folder is missing."""
    if not folder.is_dir():
        drawn = np.random.default_rng(seed)
        images = drawn.random((DRAWN_IMAGES, 1, 28, 28), dtype=np.float32)
        return torch.from_numpy(images), torch.from_numpy(drawn.integers(0, 10, DRAWN_IMAGES))
    pixels, labels = (read_idx(folder / f"train-{name}-ubyte") for name in ("images-idx3", "labels-idx1"))
    return pixels.view(-1, 1, 28, 28) / 255.0, labels.long()


def read_idx(path: Path) -> torch.Tensor:
    """The bytes of an idx file, gzipped or not, without its header."""
    zipped = path.with_name(path.name + ".gz")
    data = gzip.decompress(zipped.read_bytes()) if zipped.exists() else path.read_bytes()
    header_bytes = 4 + 4 * data[3]
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=header_bytes)


def build(width: int) -> nn.Module:
    """A net of two convolutions and two dense layers; 13.5 MB at width 1000."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 200, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(200 * 16, width), nn.ReLU(), nn.Linear(width, 10),
    )  # fmt: skip


def main() -> None:
    """Train; rank 0 prints one JSON line for each step and one at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", default="nalb")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32, help="per rank, to begin with")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps; 0: none")
    parser.add_argument("--width", type=int, default=1000, help="of the dense layer")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    dataset = TensorDataset(*load(args.data, args.seed))
    sizes = BatchSizes(dataset, args.batch, args.seed)
    model = DistributedDataParallel(build(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    checkpoints = Checkpoints(model, optimizer, args.checkpoint_every, seed=args.seed, settings={"total": sizes.total})
    at = checkpoints.restore()
    sizes.go_to(at.iteration)
    times_s: list[float] = []
    begun_s = time.monotonic()
    loss = torch.tensor(float("nan"))
    while at.iteration < args.steps:
        for images, labels in islice(DataLoader(dataset, batch_sampler=sizes), args.steps - at.iteration):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            sizes.scale(loss).backward()
            optimizer.step()
            at = Progress(at.iteration + 1)
            checkpoints.after_step(at)
            times_s.append(time.monotonic() - begun_s)
            begun_s += times_s[-1]
            if rank == 0:
                told = {"step": at.iteration - 1, "loss": loss.item(), "seconds": round(times_s[-1], 3)}
                print(json.dumps(told), flush=True)
    if rank == 0 and times_s:
        later_s = statistics.median(times_s[len(times_s) // 2 :])
        print(json.dumps({"steps": args.steps, "loss": loss.item(), "median_seconds": round(later_s, 3)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
