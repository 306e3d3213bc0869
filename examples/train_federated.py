"""Train by FedAvg on Fashion-MNIST: five clients with two classes each on uneven machines, with batch sizes by speed or equal.

    nalb launch --network uneven5-cpu --batching off -- python examples/train_federated.py
    nalb launch --network uneven5-cpu --batching lb-bsp-federated -- python examples/train_federated.py

Rank 0 prints one JSON line with the median time of a round and the mean accuracy of the last five models.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from train_fashion_mnist import DATA, accuracy, load, small_cnn, to_input

from nalb.mxnet import federated

JUDGED = 5  # the last models that are judged: clients without common classes pull the average to and fro


def main() -> int:
    """Train this worker's client; rank 0 prints the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--local-steps", type=int, default=20, help="tau")
    parser.add_argument("--batch", type=int, default=100, help="of a step, to begin with")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--test-images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, default=DATA)
    args = parser.parse_args()

    mx.random.seed(args.seed)
    store = mx.kv.create("nalb")
    images, labels = load(args.data, "train")
    mine = np.flatnonzero(labels.astype(int) * store.num_workers // 10 == store.rank)
    generator = np.random.default_rng([args.seed, store.rank])

    net = small_cnn()
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 1, 28, 28)))
    net.hybridize()
    rounds = federated.join(store, net.collect_params().values(), args.batch)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": args.lr}, kvstore=None)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    models, round_s, sizes = [], [], []
    for number in range(args.rounds):
        begun_s = time.monotonic()
        sizes.append(rounds.begin())
        for _ in range(args.local_steps):
            chosen = generator.choice(mine, sizes[-1], replace=False)
            with autograd.record():
                loss = loss_of(net(to_input(images[chosen])), mx.nd.array(labels[chosen]))
            loss.backward()
            trainer.step(len(chosen))
        rounds.end()
        round_s.append(time.monotonic() - begun_s)
        if store.rank == 0 and number >= args.rounds - JUDGED:
            models.append([value.data().asnumpy() for value in net.collect_params().values()])
    if store.rank == 0:
        test_images, test_labels = load(args.data, "t10k")
        right = []
        for model in models:
            for parameter, value in zip(net.collect_params().values(), model, strict=True):
                parameter.set_data(mx.nd.array(value))
            right.append(accuracy(net, test_images[: args.test_images], test_labels[: args.test_images]))
        row = {"rounds": args.rounds, "round_s": float(np.median(round_s[len(round_s) // 2 :]))}
        print(json.dumps(row | {"accuracy": round(float(np.mean(right)), 4), "sizes": sizes}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
