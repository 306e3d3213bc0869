"""Repeats figure 5 of Dynamic Batching (Tyagi and Sharma, 2020) on a CPU: images per second of one worker, by batch size.

    python scripts/figures/batch_throughput.py [--out DIR]

One process, without any exchange, trains the CNN of examples/ on one core: gradients of a batch, REPEATS times for each size, of
which the fastest counts. The script writes DIR/throughput.json.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # MXNet reads it when it is imported

import argparse
import sys
import time
from pathlib import Path

import msgspec
import mxnet as mx
from mxnet import autograd, gluon
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from train_fashion_mnist import DATA, load, small_cnn, to_input

from nalb.reporting.run_file import write_whole

SIZES = tuple(1 << power for power in range(15))
REPEATS = 4


def main() -> int:
    """Measure each size, and print and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("runs/dynamic-batching/figure-5"))
    out: Path = parser.parse_args().out
    images, labels = load(DATA, "train")
    net, loss_of = small_cnn(), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    net.hybridize()
    per_s: dict[str, float] = {}
    table = Table("batch", "images a second", title="Fig. 5: throughput of one core by batch size")
    for size in SIZES:
        x, y = to_input(images[:size]), mx.nd.array(labels[:size])
        took_s = []
        for _ in range(REPEATS):
            mx.nd.waitall()
            begun_s = time.perf_counter()
            with autograd.record():
                loss = loss_of(net(x), y)
            loss.backward()
            mx.nd.waitall()
            took_s.append(time.perf_counter() - begun_s)
        per_s[str(size)] = size / min(took_s)
        table.add_row(str(size), f"{per_s[str(size)]:.0f}")
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "throughput.json", msgspec.json.format(msgspec.json.encode(per_s), indent=2) + b"\n")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
