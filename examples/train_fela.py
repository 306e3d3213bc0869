"""Train a VGG-like net on Fashion-MNIST by tokens (Fela): workers compute parts of the net for parts of the samples.

    nalb launch --local 2 -- python examples/train_fela.py
    nalb launch --local 2 --parallel dp -- python examples/train_fela.py                      # data parallelism by tokens
    nalb launch --local 4 --parallel mp -- python examples/train_fela.py --stages 4           # model parallelism
    nalb launch --local 2 --parallel fela --weights 1,2,4 --subset 1 -- python examples/train_fela.py    # nothing is tuned
    nalb launch --local 2 --max-restarts 3 -- python examples/train_fela.py --checkpoint-every 20
    python examples/train_fela.py --alone                                                     # one process, same samples

Three changes make the script train by tokens: the net is cut into three blocks, fela.Trainer replaces Gluon's Trainer, and a step
gets a function that fetches the samples that this worker needs.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet import autograd, gluon
from mxnet.gluon import nn
from train_fashion_mnist import DATA, Bytes, accuracy, load, to_input, vgg_blocks

from nalb.mxnet import Checkpoints, Progress, Stream, fela

Labels = npt.NDArray[np.float32]


def build(seed: int, is_smooth: bool = False) -> list[nn.HybridBlock]:
    """Build the blocks of vgg_blocks, with the parameters that the seed gives."""
    mx.random.seed(seed)
    np.random.seed(seed)
    blocks = vgg_blocks(is_smooth)
    x = mx.nd.zeros((1, 1, 28, 28))
    for block in blocks:
        block.initialize(mx.init.Xavier())
        x = block(x)
    return blocks


def train_alone(args: argparse.Namespace, net: nn.HybridSequential, images: Bytes, labels: Labels) -> None:
    """Train the same steps in one process, without a job; print one JSON line per epoch."""
    net.hybridize()
    trainer = gluon.Trainer(net.collect_params(), args.optimizer, {"learning_rate": args.lr}, kvstore=None)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    stream = Stream(
        len(images), args.total, lambda epoch: np.random.default_rng([args.seed, epoch]).permutation(len(images))
    )
    begin = 0
    for epoch in range(args.steps or args.epochs):  # every epoch has a step
        start_s, total = time.monotonic(), mx.nd.zeros((1,))
        end = stream.end_of_epoch(begin)
        if args.steps:
            end = min(end, args.steps)
        for iteration in range(begin, end):
            chosen = stream.batch(iteration, 0, args.total)
            with autograd.record():
                loss = loss_of(net(to_input(images[chosen])), mx.nd.array(labels[chosen]))
            loss.backward()
            trainer.step(args.total)
            total += loss.sum()
        mean_loss = float(total.asscalar()) / ((end - begin) * args.total)
        show(args, net, epoch, end, mean_loss, time.monotonic() - start_s)
        begin = end
        if end == args.steps:
            break


def show(
    args: argparse.Namespace, net: nn.HybridSequential, epoch: int, updates: int, loss: float, took_s: float
) -> None:
    """Print an epoch's loss, its time, and the net's accuracy on test images as a JSON line."""
    images, labels = load(args.data, "t10k")
    row = {
        "epoch": epoch,
        "updates": updates,
        "loss": round(loss, 6),
        "accuracy": accuracy(net, images[: args.test_images], labels[: args.test_images]),
        "seconds": round(took_s, 2),
    }
    print(json.dumps(row), flush=True)


def train(args: argparse.Namespace, net: nn.HybridSequential, images: Bytes, labels: Labels) -> None:
    """Train by tokens; rank 0 prints one JSON line per epoch."""
    store = mx.kv.create("nalb")
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    blocks: list[gluon.Block] = [net[i] for i in range(len(net))]
    if args.stages:
        blocks[:] = fela.stages(net, to_input(images[:1]), args.stages, store)
    for block in blocks:
        block.hybridize()
    trainer = fela.Trainer(
        blocks,
        loss_of,
        args.optimizer,
        {"learning_rate": args.lr},
        store,
        args.total,
        args.threshold,
    )
    batches = trainer.batches(len(images), args.seed)
    checkpoints = Checkpoints(net, trainer, args.checkpoint_every, seed=args.seed, settings={"total": args.total})

    def samples(part: list[int]) -> tuple[mx.nd.NDArray, Labels]:
        """The samples at these indices, and their labels."""
        return to_input(images[part]), labels[part]

    at = checkpoints.restore()
    batches.go_to(at.iteration)
    for epoch in range(at.epoch, args.steps or args.epochs):  # every epoch has a step
        start_s, total = time.monotonic(), at.notes.get("total", 0.0)
        end = at.batch + len(batches)
        if args.steps:
            end = min(end, at.batch + args.steps - at.iteration)
        for _ in itertools.islice(batches, end - at.batch):
            trainer.step(samples)
            at = Progress(at.iteration + 1, epoch, at.batch + 1)
            if at.batch < end and checkpoints.is_due(at):
                total += trainer.loss_sum()
                checkpoints.save(Progress(at.iteration, epoch, at.batch, {"total": total}))
        total += trainer.loss_sum()
        took_s = time.monotonic() - start_s
        if store.rank == 0:
            show(args, net, epoch, at.iteration, total / (end * args.total), took_s)
        if at.iteration == args.steps:
            break
        at = Progress(at.iteration, epoch + 1)
        checkpoints.after_step(at)
    trainer.gather()


def main() -> int:
    """Parse the flags, train the net and save its parameters."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--alone", action="store_true", help="in this process alone")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="in all, over as many epochs as they take; 0: --epochs")
    parser.add_argument("--total", type=int, default=256, help="samples of a step, over all workers")
    parser.add_argument("--threshold", type=int, default=fela.THRESHOLD, help="samples of a token of the first block")
    parser.add_argument("--stages", type=int, default=0, metavar="N", help="of --parallel mp; 0: the three blocks")
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smooth", action="store_true", help="a net without kinks, to compare parameters")
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="N", help="iterations; 0: no checkpoints")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--save", help="file for the parameters, on every worker: {rank} in it becomes the worker's rank"
    )
    args = parser.parse_args()
    images, labels = load(args.data, "train")
    net = nn.HybridSequential()
    net.add(*build(args.seed, args.smooth))
    (train_alone if args.alone else train)(args, net, images, labels)
    if args.save:
        rank = 0 if args.alone else mx.kv.create("nalb").rank
        net.save_parameters(args.save.replace("{rank}", str(rank)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
