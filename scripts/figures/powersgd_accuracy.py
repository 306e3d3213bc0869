"""Train MobileNet with PyTorch's PowerSGD hook in real jobs, with and without nalb's precisions: a table in docs/precision.md.

    .venv-torch/bin/python scripts/figures/powersgd_accuracy.py --out powersgd.jsonl             # as root; again and again
    .venv-torch/bin/python scripts/figures/powersgd_accuracy.py --out powersgd.jsonl --table

A precision rounds what the hook sums: the two factors of each matrix, and what it leaves whole. So each rank's factors differ, and
one process cannot stand for four. Four ranks train by DDP, as in precision_accuracy.py: its model, images, batches and seeds.
Under gloo they run on loopback, under nalb on the emulated network wan4-static. Each run is a line of --out.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn import functional

from netem.rootless import ensure_privilege
from precision_accuracy import (
    BATCH,
    MODELS,
    POWER,
    POWER_FROM,
    RANKS,
    TESTED,
    accuracy_of,
    is_look,
    lines_of,
    load,
    note,
    optimizer_for,
    table,
)  # fmt: skip

MODEL, NETWORK, LOOKS = "mobilenet-1.0", "wan4-static", 5
SAID = "powersgd_accuracy "
HOOK = f"{POWER}16"
VARIANTS = {  # scheme, precision
    "float32": ("gloo", ""),
    HOOK: ("gloo", ""),
    f"{HOOK}, float16": ("exact", "float16"),
    f"{HOOK}, int8": ("exact", "int8"),
}


def train(variant: str, seed: int, steps: int) -> list[float]:
    """One rank of a job: rank 0's accuracy on test images in per cent, after each of LOOKS equal parts of the steps."""
    torch.set_num_threads(1)
    images, labels = load("train")
    test_images, test_labels = (one[:TESTED] for one in load("t10k"))
    dist.init_process_group("nalb")  # under scheme gloo that is gloo
    torch.manual_seed(seed)
    kind, rate = MODELS[MODEL]
    # one bucket: with several ones the hook's sums come in different orders on different ranks
    model = nn.parallel.DistributedDataParallel(kind(), bucket_cap_mb=1000)
    if variant.startswith(POWER):
        size = int(variant.removeprefix(POWER).partition(",")[0])
        state = powerSGD_hook.PowerSGDState(None, size, start_powerSGD_iter=POWER_FROM, random_seed=seed)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer, schedule = optimizer_for(model, rate, steps)
    random, rank = torch.Generator().manual_seed(seed), dist.get_rank()
    accuracies = []
    for step in range(steps):
        picked = torch.randint(len(images), (RANKS, BATCH), generator=random)[rank]
        optimizer.zero_grad()
        functional.cross_entropy(model(images[picked]), labels[picked]).backward()
        optimizer.step()
        schedule.step()
        if is_look(step, steps, LOOKS) and rank == 0:
            accuracies.append(accuracy_of(model.module, test_images, test_labels))
    dist.destroy_process_group()
    return accuracies


def run(variant: str, seed: int, steps: int) -> list[float]:
    """Run a job. Ends with a message if it fails."""
    scheme, precision = VARIANTS[variant]
    where = ["--local", str(RANKS)] if scheme == "gloo" else ["--network", NETWORK, "--precision", precision]
    command = [sys.executable, "-m", "nalb.cli.main", "launch", "--framework", "torch", "--scheme", scheme, *where]
    command += ["--", sys.executable, __file__, "--worker", variant, "--seeds", str(seed), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    curves = [json.loads(line.partition(SAID)[2]) for line in done.stdout.splitlines() if SAID in line]
    if done.returncode or not any(curves):
        sys.exit(f"{variant}, seed {seed}: the job ended with {done.returncode}: {done.stderr[-300:]}")
    return next(filter(None, curves))


def main() -> int:
    """Run what is missing, or print the table; with --worker take part in a job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--worker", choices=VARIANTS)
    args = parser.parse_args()
    seeds = [int(one) for one in args.seeds.split(",")]
    if args.worker:
        print(SAID + json.dumps(train(args.worker, seeds[0], args.steps)), flush=True)
        return 0
    if args.out is None:
        parser.error("--out is missing: name a file")
    lines = lines_of(args.out)
    if args.table:
        for base in ("float32", HOOK):
            print("\n".join(table(lines, VARIANTS, [MODEL], base)), end="\n\n")
        return 0
    ensure_privilege()
    done = {(one["variant"], one["seed"], one["steps"]) for one in lines}
    for seed in seeds:
        for variant in VARIANTS:
            if (variant, seed, args.steps) in done:
                continue
            begun_s = time.monotonic()
            note(args.out, MODEL, variant, seed, args.steps, run(variant, seed, args.steps), begun_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
