"""What each worker of the checkpoint tests runs: a small net on fixed random data, and the interruption that flags ask for.

Rank 0 prints `loss ITERATION VALUE` with every digit. Without --always an interruption happens only in a training that
has not been restored.
"""

import argparse
import os
import resource
import signal
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

from kvstore_patch import batching
from kvstore_patch.checkpoints import Checkpoints, Progress

SAMPLES, FEATURES, CLASSES = 96, 12, 4


def net_of(is_plain: bool, hidden: int) -> nn.HybridBlock:
    """With every kind of what must be restored: weights, running averages, and random numbers in the forward pass.

    The plain one has weights alone, so that it does not matter which worker computes which sample.
    """
    net = nn.HybridSequential()
    net.add(nn.Dense(hidden, activation="relu"))
    if not is_plain:
        net.add(nn.BatchNorm(), nn.Dropout(0.3))
    net.add(nn.Dense(CLASSES))
    return net


def interrupt(how: str) -> None:
    """As flags ask."""
    if how == "wait":  # for the test to interrupt something else
        signal.pause()
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "kill-in-checkpoint":  # the file is written, but has not got its name yet
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    if how == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--own-folder", action="store_true", help="for each node, as on hosts that share no disk")
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--kvstore", default="nalb")
    parser.add_argument("--fault", choices=("wait", "kill", "kill-in-checkpoint", "full"))
    parser.add_argument("--always", action="store_true", help="in every attempt")
    parser.add_argument("--fault-at", type=int, default=13)
    parser.add_argument("--node", default="n0")
    args = parser.parse_args()
    mx.random.seed(1)
    generator = np.random.default_rng(1)
    samples = generator.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    labels = generator.integers(0, CLASSES, SAMPLES).astype(np.float32)
    store = mx.kv.create(args.kvstore)
    balancer = batching.join(store, args.batch)
    batches = balancer.batches(SAMPLES, seed=1)
    net = net_of(args.plain, args.hidden)
    net.initialize(mx.init.Xavier())
    net(mx.nd.array(samples[:2]))
    trainer = gluon.Trainer(
        net.collect_params(), args.optimizer, {"learning_rate": 0.01}, kvstore=store, update_on_kvstore=False
    )
    folder = Path(os.environ["NALB_CHECKPOINTS"], os.environ["NALB_NODE"]) if args.own_folder else None
    checkpoints = Checkpoints(net, trainer, args.every, folder, seed=1, settings={"total": balancer.total})
    progress = checkpoints.restore()
    iteration, is_first = progress.iteration, progress.iteration == 0
    batches.go_to(iteration)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for epoch in range(progress.epoch, args.epochs):
        done = progress.batch if epoch == progress.epoch else 0
        for batch, chosen in enumerate(batches, done):
            with autograd.record():
                loss = loss_of(net(mx.nd.array(samples[chosen])), mx.nd.array(labels[chosen]))
            loss.backward()
            trainer.step(balancer.total)
            value = float(loss.mean().asscalar())  # on every worker: none runs ahead of the others' checkpoints
            if store.rank == 0:
                print(f"loss {iteration} {value!r}", flush=True)
            iteration += 1
            at_fault = iteration == args.fault_at and os.environ["NALB_NODE"] == args.node
            if at_fault and (is_first or args.always):
                interrupt(args.fault)
            is_last = iteration * balancer.total % SAMPLES == 0
            checkpoints.after_step(Progress(iteration, epoch + is_last, 0 if is_last else batch + 1))
    mx.nd.waitall()  # MXNet drops what is still queued at exit, and its peers would wait for that
    if store.rank == 0:
        print(f"evaluated {float(net(mx.nd.array(samples)).mean().asscalar())!r}", flush=True)


if __name__ == "__main__":
    main()
