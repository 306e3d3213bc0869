"""What the workers of the batching tests run: `python batching_workers.py STORE server|worker [exit]`. An assertion fails the job.

Every worker keeps the sums honest by itself: it knows the union of each iteration, so it computes the union's gradient, once
with numpy and once as a single Gluon worker would, and compares the step that the job made. The learning rate is 1.
"""

import json
import os
import sys
import time
from contextlib import suppress

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from kvstore_patch import batching
from nalb.errors import StoreError

SAMPLES, FEATURES, ITERATIONS = 50, 6, 14
START = (20, 8, 4)  # by rank, against paces of 1 : 2 : 3 seconds per sample below: sizes must change

store = mx.kv.create(sys.argv[1])
generator = np.random.RandomState(1)
DATA = generator.uniform(-1, 1, (SAMPLES, FEATURES)).astype(np.float32)
TARGET = generator.uniform(-1, 1, (SAMPLES, 1)).astype(np.float32)


def network():
    """Two layers: enough for fused slices of several tensors, little enough for numpy."""
    net = nn.HybridSequential()
    net.add(nn.Dense(70, activation="tanh", in_units=FEATURES), nn.Dense(1, in_units=70))
    net.initialize(mx.init.Xavier())
    return net


def weights(net):
    return [p.data().asnumpy().astype(np.float64) for p in net.collect_params().values()]


def by_numpy(before, chosen):
    """Mean gradient of (out - y)^2 / 2 over the samples, all parameters."""
    w1, b1, w2, b2 = before
    x, y = DATA[chosen].astype(np.float64), TARGET[chosen].astype(np.float64)
    hidden = np.tanh(x @ w1.T + b1)
    off = (hidden @ w2.T + b2 - y) / len(chosen)
    back = (off @ w2) * (1 - hidden**2)
    return [back.T @ x, back.sum(axis=0), off.T @ hidden, off.sum(axis=0)]


def by_one_worker(net, before, chosen, loss_of):
    """The same from Gluon, all samples in one batch."""
    for parameter, value in zip(net.collect_params().values(), before, strict=True):
        parameter.set_data(nd.array(value))
    with autograd.record():
        loss = loss_of(net(nd.array(DATA[chosen])), nd.array(TARGET[chosen]))
    loss.backward()
    return [p.grad().asnumpy() / len(chosen) for p in net.collect_params().values()]


def refuses(call, text):
    try:
        call()
    except StoreError as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no error about {text}")


def main():
    mx.random.seed(3)
    net, alone, loss_of = network(), network(), gluon.loss.L2Loss()
    balancer = batching.join(store, START[store.rank])
    total = balancer.total
    assert total == sum(START[: store.num_workers])
    options = {"kvstore": store} | (
        {} if store.type == "dist_sync_nalb" else {"update_on_kvstore": sys.argv[2] == "server"}
    )
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, **options)
    batches = balancer.batches(SAMPLES, seed=5)
    stream = np.concatenate([np.random.default_rng([5, epoch]).permutation(SAMPLES) for epoch in range(10)])
    drawn = []
    while len(drawn) < ITERATIONS:
        for chosen in batches:
            iteration = len(drawn)
            if "NALB_BATCHING" in os.environ:  # someone looks at how fast it is
                time.sleep(
                    0.004 * (store.num_workers - store.rank) * len(chosen)
                )  # the larger its first batch, the slower
            with autograd.record():
                loss = loss_of(net(nd.array(DATA[chosen])), nd.array(TARGET[chosen]))
                if iteration % 2:  # a mean loss is as good, times its samples
                    loss = loss.mean() * len(chosen)
            loss.backward()
            before = weights(net)
            for wrong in {len(chosen), len(chosen) * store.num_workers, 1} - {total}:
                refuses(lambda wrong=wrong: trainer.step(wrong), f"step(balancer.total), which is {total}")
            if iteration == 1:
                refuses(balancer.draw, "before trainer.step")
            trainer.step(total)
            union = stream[iteration * total : (iteration + 1) * total]
            for step, expected, single in zip(
                [old - new for old, new in zip(before, weights(net), strict=True)],
                by_numpy(before, union), by_one_worker(alone, before, union, loss_of), strict=True,
            ):  # fmt: skip
                np.testing.assert_allclose(step, expected, rtol=0, atol=1e-6, err_msg=f"iteration {iteration}, numpy")
                np.testing.assert_allclose(
                    step, single, rtol=0, atol=1e-6, err_msg=f"iteration {iteration}, one worker"
                )
            drawn.append(chosen)
            if len(drawn) == 2:
                with suppress(SystemExit):
                    sys.exit(2)
            if sys.argv[3:] == ["exit"] and len(drawn) == 4 and store.rank == 1:
                sys.exit(3)
            if len(drawn) == ITERATIONS:
                break
    print(json.dumps({"rank": store.rank, "drawn": drawn}), flush=True)


main()
