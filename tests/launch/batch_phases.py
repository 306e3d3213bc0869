"""What each worker of a campaign of faults runs where batches are sized: one layer, whose every step is checked by numpy.

Prints 'forward 3', 'push 3' (the gradient is there) and 'pull 3' (the step is made). A job that is started again goes on from the
newest checkpoint.
"""

import argparse
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from kvstore_patch import batching
from kvstore_patch.checkpoints import Checkpoints, Progress

FEATURES, UNITS, SAMPLES, BATCH, RATE = 1000, 500, 60, 12, 1.0  # 2 MB of gradients
SAMPLE_S = 0.006  # by rank, the second worker takes twice as long for a sample
generator = np.random.RandomState(1)
DATA = generator.uniform(-1, 1, (SAMPLES, FEATURES)).astype(np.float32)
TARGET = generator.uniform(-100, 100, (SAMPLES, UNITS)).astype(np.float32)


def main() -> None:
    """Train, and check each step against the one of all workers' samples."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()
    mx.random.seed(3)
    store = mx.kv.create("nalb")
    net = nn.HybridSequential()
    net.add(nn.Dense(UNITS, use_bias=False, in_units=FEATURES))
    net.initialize(mx.init.Xavier())
    loss_of = gluon.loss.L2Loss()
    balancer = batching.join(store, BATCH)
    total = balancer.total
    trainer = gluon.Trainer(
        net.collect_params(), "sgd", {"learning_rate": RATE}, kvstore=store, update_on_kvstore=False
    )
    batches = balancer.batches(SAMPLES, seed=5)
    checkpoints = Checkpoints(net, trainer, 4, seed=1, settings={"total": total})
    step = checkpoints.restore().iteration
    batches.go_to(step)
    stream = np.concatenate([np.random.default_rng([5, epoch]).permutation(SAMPLES) for epoch in range(100)])
    (weight,) = net.collect_params().values()
    while step < args.steps:
        for chosen in batches:
            print(f"forward {step}", flush=True)
            time.sleep(SAMPLE_S * (1 + store.rank) * len(chosen))
            with autograd.record():
                loss = loss_of(net(nd.array(DATA[chosen])), nd.array(TARGET[chosen]))
            loss.backward()
            before = weight.data().asnumpy()
            print(f"push {step}", flush=True)
            trainer.step(total)
            made = before - weight.data().asnumpy()
            print(f"pull {step}", flush=True)
            union = stream[step * total : (step + 1) * total]
            right = RATE * (DATA[union] @ before.T - TARGET[union]).T @ DATA[union] / (total * UNITS)
            limit = 1e-3 * np.abs(right).max()
            np.testing.assert_allclose(made, right, rtol=0, atol=limit, err_msg=f"wrong sum in step {step}")
            step += 1
            checkpoints.after_step(Progress(step))
            if step == args.steps:
                break
    mx.nd.waitall()  # MXNet drops what is still queued at exit, and its peers would wait for that
    print("last step", flush=True)


if __name__ == "__main__":
    main()
