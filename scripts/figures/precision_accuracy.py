"""Train small models with gradients in every precision, to see what rounding does to accuracy: the table in docs/precision.md.

    .venv-torch/bin/python scripts/figures/precision_accuracy.py --out accuracy.jsonl --limit-s 280     # again and again
    .venv-torch/bin/python scripts/figures/precision_accuracy.py --out accuracy.jsonl --table --models mobilenet,transformer

Four ranks sum in one process with the agents' own exchange (experiments/plane_in_process.py), so weights have the bits of a real
job's. As these are the same on all ranks, one model stands for all four. A seed fixes initial weights and batches, so variants of
one seed differ by rounding alone; differences are paired by seed, with 95 % intervals of Student's t. Each run is a line of --out.

PowerSGD is the hook of PyTorch's DDP. It gets the mean of the four ranks' gradients, in a group of one rank: all that it sums is
linear in gradients and in what ranks keep, so this is what four ranks would get, up to the order of sums.
"""

import argparse
import gzip
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.stats import t as student_t
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn import functional

from experiments.plane_in_process import PlaneInProcess
from nalb.launch.network import configured_capacities, job_nodes
from nalb.planning.precisions import AUTO_PRECISION, asked_for
from nalb.planning.slices import Tensor
from netem.network_file import find_network, load_network

DATA = Path("/usr/share/datasets/fashion-mnist")  # Debian package dataset-fashion-mnist
RANKS, BATCH, TESTED, LOOKS = 4, 32, 4000, 30
BELOW = 2.0  # points below float32's last accuracy: what "updates to" a fixed accuracy asks for
NETWORK = "wan4-static"  # whose links auto chooses by
KEPT = ("float32", "float16", "int8", "int4", AUTO_PRECISION)  # with error feedback
DROPPED = tuple(f"{one} without feedback" for one in KEPT[1:4])
POWER = "PowerSGD rank "
VARIANTS = (*KEPT, *DROPPED, *(f"{POWER}{rank}" for rank in (1, 4, 16)))
POWER_FROM = 10  # the step from which PowerSGD compresses


class SmallCnn(nn.Sequential):  # type: ignore[misc]
    """Two convolutions and two dense layers."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 9, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip


class MobileNet(nn.Sequential):  # type: ignore[misc]
    """MobileNet's blocks: a depthwise and a pointwise convolution with batch normalisation each (Howard et al. 2017, table 1).

    Channels are those of the first convolution and of each block, strides those of the blocks.
    """

    def __init__(self, channels: Sequence[int], strides: Sequence[int]) -> None:
        def block(before: int, after: int, stride: int) -> list[nn.Module]:
            return [
                nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False), nn.BatchNorm2d(before), nn.ReLU(),
                nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            ]  # fmt: skip

        first, last = channels[0], channels[-1]
        blocks = [
            part for ends, stride in zip(pairwise(channels), strides, strict=True) for part in block(*ends, stride)
        ]
        super().__init__(
            nn.Conv2d(1, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU(),
            *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10),
        )  # fmt: skip


def small_mobilenet() -> nn.Module:
    """Three blocks, 0.03 MB of float32."""
    return MobileNet((16, 32, 64, 64), (2, 2, 1))


def whole_mobilenet() -> nn.Module:
    """All blocks at their full width, 12.9 MB of float32."""
    return MobileNet((32, 64, 128, 128, 256, 256, *[512] * 6, 1024, 1024), (1, 2, 1, 2, 1, 2, *[1] * 5, 2, 1))


class SmallTransformer(nn.Module):  # type: ignore[misc]
    """A vision transformer of two layers on 49 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(4, 32), nn.Parameter(torch.zeros(49, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        patches = functional.unfold(images, 2, stride=2).transpose(1, 2)
        return self.head(self.encoder(self.embed(patches) + self.place).mean(dim=1))


MODELS: dict[str, tuple[Any, float]] = {  # and SGD's learning rate; 0: Adam
    "cnn": (SmallCnn, 0.05),
    "mobilenet": (small_mobilenet, 0.05),
    "mobilenet-1.0": (whole_mobilenet, 0.05),
    "transformer": (SmallTransformer, 0.0),
}


def load(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 14 x 14, and labels."""
    images, labels = (
        np.frombuffer(gzip.decompress((DATA / f"{split}-{name}-ubyte.gz").read_bytes()), np.uint8, offset=offset)
        for name, offset in (("images-idx3", 16), ("labels-idx1", 8))
    )
    pixels = torch.from_numpy(images.reshape(-1, 1, 28, 28).astype(np.float32) / 255 - 0.5)
    return functional.avg_pool2d(pixels, 2), torch.from_numpy(labels.astype(np.int64))


def accuracy_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """In per cent."""
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part) for part in images.split(500)])
    model.train()
    return 100 * int((scores.argmax(1) == labels).sum()) / len(labels)


class PowerSgd:
    """Sums gradients of these parameters' shapes as DDP's hook with matrices of this rank would."""

    def __init__(self, parameters: Sequence[nn.Parameter], rank: int, seed: int):
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self._given = _Given([torch.zeros_like(one) for one in parameters])
        # one bucket: the hook waits for sums on gloo's two threads, so that two buckets can block each other for ever
        self._hooked = nn.parallel.DistributedDataParallel(self._given, bucket_cap_mb=1000)
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=POWER_FROM, random_seed=seed
        )
        self._hooked.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def __call__(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What ranks get where this is the mean of their gradients."""
        self._given.gradients = gradients
        self._hooked.zero_grad()
        self._hooked().backward()
        return [one.grad for one in self._given.own if one.grad is not None]


class _Given(nn.Module):  # type: ignore[misc]
    """Parameters whose gradients are given."""

    def __init__(self, own: Sequence[torch.Tensor]):
        super().__init__()
        self.own, self.gradients = nn.ParameterList(own), own

    def forward(self) -> torch.Tensor:
        return sum((one * given).sum() for one, given in zip(self.own, self.gradients, strict=True))


def optimizer_for(model: nn.Module, rate: float, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer of a training, and the schedule of its rate, which is stepped after it. rate: as in MODELS."""
    parameters = model.parameters()
    optimizer = torch.optim.SGD(parameters, rate, momentum=0.9) if rate else torch.optim.Adam(parameters, 2e-3)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, rate or 2e-3, steps)


def is_look(step: int, steps: int, looks: int) -> bool:
    """Whether one of so many equal parts of the steps ends with this step."""
    return (step + 1) * looks // steps > step * looks // steps


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The runs in a file, which may not be there yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def note(path: Path, model: str, variant: str, seed: int, steps: int, curve: list[float], begun_s: float) -> None:
    """Append a run to a file. begun_s: on the monotonic clock."""
    line = {"model": model, "variant": variant, "seed": seed, "steps": steps, "accuracy": curve[-1], "curve": curve}
    with path.open("a") as file:
        file.write(json.dumps(line | {"took_s": round(time.monotonic() - begun_s, 1)}) + "\n")


def train(model_name: str, seed: int, variant: str, steps: int, data: Sequence[torch.Tensor]) -> list[float]:
    """The accuracy on test images in per cent, after each of LOOKS equal parts of the steps."""
    images, labels, test_images, test_labels = data
    torch.manual_seed(seed)
    kind, rate = MODELS[model_name]
    model = kind()
    optimizer, schedule = optimizer_for(model, rate, steps)
    parameters = list(model.parameters())
    size = sum(one.numel() for one in parameters)
    job = PlaneInProcess(RANKS, [size])
    power = PowerSgd(parameters, int(variant.removeprefix(POWER)), seed) if variant.startswith(POWER) else None
    precision, _, without = ("float32" if power else variant).partition(" ")
    network = load_network(find_network(NETWORK))
    nodes = job_nodes(network)
    chosen = asked_for(precision, nodes, [Tensor("all", size, "float32")], configured_capacities(network, 0.0))
    job.cut(chosen.answers)
    servers = [k % RANKS for k in range(len(job.layout.slices))]
    random = torch.Generator().manual_seed(seed)
    accuracies = []
    for step in range(steps):
        picked = torch.randint(len(images), (RANKS, BATCH), generator=random)
        for rank in range(RANKS):
            model.zero_grad()
            functional.cross_entropy(model(images[picked[rank]]), labels[picked[rank]]).backward()
            gradients = torch.cat([one.grad.flatten() for one in parameters if one.grad is not None])
            job.values[rank][0][:] = gradients.numpy() / RANKS
        job.sum(servers, chosen.pushes)
        if without:
            job.drop_kept()
        total = torch.from_numpy(job.values[0][0].copy())
        parts = total.split([one.numel() for one in parameters])
        shaped = [part.view_as(one) for one, part in zip(parameters, parts, strict=True)]
        for one, gradient in zip(parameters, power(shaped) if power else shaped, strict=True):
            one.grad = gradient
        optimizer.step()
        schedule.step()
        if is_look(step, steps, LOOKS):
            accuracies.append(accuracy_of(model, test_images, test_labels))
    return accuracies


def by_run(lines: list[dict[str, Any]], models: Sequence[str]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The runs of these models by model, variant and seed. Ends with a message where runs of a model differ in length."""
    found, steps = {}, dict[str, int]()
    for one in lines:
        if (model := one["model"]) in models:
            if steps.setdefault(model, one["steps"]) != one["steps"]:
                sys.exit(
                    f"{model} has runs of {steps[model]} and of {one['steps']} steps: give each length its own --out"
                )
            found[model, one["variant"], one["seed"]] = one
    return found


def table(
    lines: list[dict[str, Any]], variants: Iterable[str], models: Sequence[str], base: str = "float32"
) -> list[str]:
    """Markdown: the base's accuracies, and differences to them, paired by seed."""
    found = {run: float(one["accuracy"]) for run, one in by_run(lines, models).items()}
    rows = ["| gradients | " + " | ".join(models) + " |", "|---" * (len(models) + 1) + "|"]
    for variant in variants:
        cells = []
        for model in models:
            seeds = [s for (m, v, s) in found if (m, v) == (model, variant) and (model, base, s) in found]
            values = [found[model, variant, seed] for seed in seeds]
            apart = [found[model, variant, seed] - found[model, base, seed] for seed in seeds]
            if len(seeds) < 2:
                cells.append("-")
            elif variant == base:
                cells.append(f"{mean(values):.2f} % of {len(seeds)} seeds")
            else:
                half = float(student_t.ppf(0.975, len(seeds) - 1)) * stdev(apart) / math.sqrt(len(seeds))
                cells.append(f"{mean(apart):+.2f} ± {half:.2f} of {len(seeds)} seeds")
        rows.append(f"| {variant} | " + " | ".join(cells) + " |")
    return rows


def updates(lines: list[dict[str, Any]], models: Sequence[str]) -> list[str]:
    """Markdown: updates until the accuracy is BELOW points under what float32 reaches with the same seed, mean over seeds."""
    curves = {run: (one["curve"], one["steps"]) for run, one in by_run(lines, models).items()}
    rows = ["| updates to a fixed accuracy | " + " | ".join(models) + " |", "|---" * (len(models) + 1) + "|"]
    for variant in VARIANTS:
        cells = []
        for model in models:
            counts = []
            for (m, v, seed), (curve, steps) in curves.items():
                if (m, v) == (model, variant) and (model, "float32", seed) in curves:
                    goal = curves[model, "float32", seed][0][-1] - BELOW
                    at = next((index for index, one in enumerate(curve) if one >= goal), None)
                    counts.append(math.inf if at is None else (at + 1) * steps / len(curve))
            reached = [one for one in counts if one < math.inf]
            never = f", {len(counts) - len(reached)} never" if len(reached) < len(counts) else ""
            cells.append(f"{mean(reached):.0f}{never}" if reached else "never" if counts else "-")
        rows.append(f"| {variant} | " + " | ".join(cells) + " |")
    return rows


def main() -> int:
    """Run what is missing, for as long as allowed, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--limit-s", type=float, default=1e9)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    lines = lines_of(args.out)
    if args.table:
        models = args.models.split(",")
        print("\n".join([*table(lines, VARIANTS, models), "", *updates(lines, models)]))
        return 0
    torch.set_num_threads(1)
    done = {(one["model"], one["variant"], one["seed"], one["steps"]) for one in lines}
    test = load("t10k")
    data = [*load("train"), test[0][:TESTED], test[1][:TESTED]]
    end_s = time.monotonic() + args.limit_s
    for seed in map(int, args.seeds.split(",")):
        for model in args.models.split(","):
            for variant in args.variants.split(","):
                if (model, variant, seed, args.steps) in done:
                    continue
                if time.monotonic() > end_s:
                    return 0
                begun_s = time.monotonic()
                curve = train(model, seed, variant, args.steps, data)
                note(args.out, model, variant, seed, args.steps, curve, begun_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
