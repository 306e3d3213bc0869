"""Train a CNN or MobileNet on Fashion-MNIST with Gluon: the same script for stock MXNet and for nalb.

    nalb launch --local 2 -- python examples/train_fashion_mnist.py
    nalb launch --local 2 --scheme stock -- python examples/train_fashion_mnist.py     # MXNet's own dist_sync
    nalb launch --local 2 --batching lb-bsp -- python examples/train_fashion_mnist.py  # slow workers get smaller batches
    nalb launch --local 2 --max-restarts 3 -- python examples/train_fashion_mnist.py --checkpoint-every 100

The word kvstore='nalb' alone makes the training a nalb job. The lines with `balancer` let batch sizes follow the workers' speeds;
the lines with `checkpoints` let an interrupted training go on.
"""

import argparse
import gzip
import itertools
import json
import struct
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet import autograd, gluon
from mxnet.gluon import nn

from nalb.mxnet import Checkpoints, Progress, batching, label_skewed, micro_batches

Bytes = npt.NDArray[np.uint8]
DATA = Path("/usr/share/datasets/fashion-mnist")  # Debian package dataset-fashion-mnist


def read_idx(path: Path) -> Bytes:
    """Read an idx file, gzipped or not: unsigned bytes of any rank."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        zero, kind, rank = struct.unpack(">HBB", file.read(4))
        if zero != 0 or kind != 8:
            sys.exit(f"{path} is not an idx file of unsigned bytes")
        shape = struct.unpack(f">{rank}I", file.read(4 * rank))
        data = np.frombuffer(file.read(), dtype=np.uint8)
    if data.size != np.prod(shape):
        sys.exit(f"{path} is truncated: {data.size} values instead of {np.prod(shape)}; install it again")
    return data.reshape(shape)


def load(folder: Path, part: str) -> tuple[Bytes, npt.NDArray[np.float32]]:
    """Load a part of the data: images as bytes of shape (n, 1, 28, 28), and labels of shape (n,)."""
    found = []
    for kind, rank in (("images", 3), ("labels", 1)):
        stem = folder / f"{part}-{kind}-idx{rank}-ubyte"
        path = next((p for p in (stem, stem.with_name(stem.name + ".gz")) if p.exists()), None)
        if path is None:
            sys.exit(f"{stem}[.gz] is missing: apt-get install dataset-fashion-mnist, or give --data")
        found.append(read_idx(path))
    images, labels = found
    return images[:, None], labels.astype(np.float32)


def to_input(images: Bytes) -> mx.nd.NDArray:
    """Convert images from bytes to float32 in [0, 1]."""
    return mx.nd.array(images.astype(np.float32) / 255.0)


def small_cnn() -> nn.HybridBlock:
    """A net of two convolutions and two dense layers, 1.7 MB."""
    net = nn.HybridSequential()
    net.add(
        nn.Conv2D(16, 5, activation="relu"), nn.MaxPool2D(2),
        nn.Conv2D(32, 5, activation="relu"), nn.MaxPool2D(2),
        nn.Dense(256, activation="relu"), nn.Dense(10),
    )  # fmt: skip
    return net


def vgg_blocks(is_smooth: bool = False) -> list[nn.HybridBlock]:
    """Two blocks of convolutions with 91 % of the work, and one of dense layers with 97 % of the 7.8 MB.

    is_smooth: use softplus and average pooling in place of ReLU and max pooling. ReLU and max pooling have kinks, so that rounding
    alone, as when gradients are added in another order, moves parameters by a thousandth within 10 steps.
    """
    kind, pool = ("softrelu", nn.AvgPool2D) if is_smooth else ("relu", nn.MaxPool2D)
    front, middle, head = (nn.HybridSequential() for _ in range(3))
    for block, channels in ((front, 32), (middle, 64)):
        for _ in range(2):
            block.add(nn.Conv2D(channels, 3, padding=1, activation=kind))
        block.add(pool(2))
    head.add(nn.Dense(512, activation=kind), nn.Dense(512, activation=kind), nn.Dense(10))
    return [front, middle, head]


def build(model: str) -> nn.HybridBlock:
    """Build the named model, with 10 classes."""
    if model == "cnn":
        return small_cnn()
    if model == "vgg":
        net = nn.HybridSequential()
        net.add(*vgg_blocks())
        return net
    return gluon.model_zoo.vision.mobilenet1_0(classes=10)


def accuracy(net: gluon.Block, images: Bytes, labels: npt.NDArray[np.float32], batch: int = 500) -> float:
    """The part of the images that the net classifies right, from 0 to 1."""
    right = 0
    for start in range(0, len(images), batch):
        guess = net(to_input(images[start : start + batch])).argmax(axis=1).asnumpy()
        right += int((guess == labels[start : start + batch]).sum())
    return right / len(images)


def main() -> int:
    """Train; rank 0 prints one JSON line per epoch."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvstore", default="nalb")
    parser.add_argument("--model", choices=("cnn", "mobilenet", "vgg"), default="cnn")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32, help="per worker, to begin with")
    parser.add_argument(
        "--micro", type=int, default=0, help="compute so many samples at a time, and add gradients up; 0: all at once"
    )
    parser.add_argument("--max-batches", type=int, default=0, help="per epoch; 0: all of the data")
    parser.add_argument("--steps", type=int, default=0, help="in all, over as many epochs as they take; 0: --epochs")
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--classes", type=int, default=0, help="each worker's data have so many alone; 0: all data")
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="N", help="iterations; 0: no checkpoints")
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()

    mx.random.seed(args.seed)
    np.random.seed(args.seed)
    store = mx.kv.create(args.kvstore)
    images, labels = load(args.data, "train")
    net = build(args.model)
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 1, 28, 28)))
    net.hybridize()
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    learning = [one for one in net.collect_params().values() if one.grad_req != "null"]
    if args.micro:
        for parameter in learning:
            parameter.grad_req = "add"

    def backward(chosen: list[int]) -> mx.nd.NDArray:
        """Compute the gradients of these samples, and return the sum of their losses."""
        losses = []
        for parameter in learning if args.micro else ():
            parameter.zero_grad()
        for part, weights in micro_batches(chosen, args.micro or len(chosen)):
            x, y = to_input(images[part]), mx.nd.array(labels[part])
            with autograd.record():
                loss = loss_of(net(x), y) * mx.nd.array(weights)
            loss.backward()
            losses.append(loss.sum())
        return mx.nd.add_n(*losses)

    balancer = batching.join(store, args.batch, profile=lambda size: backward(list(range(size))))
    batches: batching.BatchSampler | batching.PartitionSampler  # yields indices of this worker's samples
    batches = balancer.batches(len(images), args.seed)
    if args.classes:
        parts = label_skewed(labels.astype(np.int64), store.num_workers, args.classes, np.random.default_rng(args.seed))
        batches = balancer.partitioned_batches(parts, args.seed)
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": args.lr}, kvstore=store)
    same = {"model": args.model, "total": balancer.total, "max_batches": args.max_batches}
    checkpoints = Checkpoints(net, trainer, args.checkpoint_every, seed=args.seed, settings=same)
    at = checkpoints.restore()
    batches.go_to(at.iteration)
    for epoch in range(at.epoch, args.steps or args.epochs):  # every epoch has a step
        start_s, total = time.monotonic(), at.notes.get("total", 0.0)
        end = min(at.batch + len(batches), args.max_batches or sys.maxsize)
        if args.steps:
            end = min(end, at.batch + args.steps - at.iteration)
        for chosen in itertools.islice(batches, end - at.batch):
            loss = backward(chosen)
            trainer.step(balancer.total)  # the samples of all workers, since their gradients are added up
            total += float(loss.asscalar()) / len(chosen)
            at = Progress(at.iteration + 1, epoch, at.batch + 1, {"total": total})
            if at.batch < end:
                checkpoints.after_step(at)
        mx.nd.waitall()
        took_s = time.monotonic() - start_s
        if store.rank == 0:
            test_images, test_labels = load(args.data, "t10k")
            right = accuracy(net, test_images[: args.test_images], test_labels[: args.test_images])
            row: dict[str, object] = {"epoch": epoch, "updates": at.iteration, "loss": round(total / end, 6)}
            row |= {"accuracy": right, "seconds": round(took_s, 2)}
            if isinstance(batches, batching.PartitionSampler):
                row["moves"] = [list(move) for move in batches.stream.moves]
            print(json.dumps(row), flush=True)
        if at.iteration == args.steps:
            break
        at = Progress(at.iteration, epoch + 1)
        checkpoints.after_step(at)
    return 0


if __name__ == "__main__":
    sys.exit(main())
