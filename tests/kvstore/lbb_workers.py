"""A job under `--batching lbb` whose computing is sleep: `python lbb_workers.py STEPS DISTURBED_FROM EXTRA_MS`.

Rank r takes PACE_S x (1 + r) a sample and 5 ms besides; from step DISTURBED_FROM on, rank 0 takes EXTRA_MS more.
"""

import sys
import time

import mxnet as mx
from mxnet import autograd, gluon, nd

from kvstore_patch import batching

START, PACE_S, FIXED_S = 60, 0.001, 0.005


def main():
    steps, disturbed_from, extra_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000
    store = mx.kv.create("nalb")
    net, loss_of = gluon.nn.Dense(1, in_units=2), gluon.loss.L2Loss()
    net.initialize()

    def work(size):
        net.weight.data().wait_to_read()  # as a forward pass would: sleep depends on nothing
        time.sleep(FIXED_S + PACE_S * (1 + store.rank) * size)
        with autograd.record():
            loss = loss_of(net(nd.ones((size, 2))), nd.zeros(size))
        loss.backward()

    balancer = batching.join(store, START, profile=work)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=store)
    step = 0
    while step < steps:
        for chosen in balancer.batches(10_000):
            work(len(chosen))
            if store.rank == 0 and step >= disturbed_from:
                time.sleep(extra_s)
            trainer.step(balancer.total)
            step += 1
            if step == steps:
                break


main()
