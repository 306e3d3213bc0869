"""Workers that do not make the same calls: `python unequal_calls.py CASE`. None may ever print a sum that is none."""

import sys

import mxnet as mx
from mxnet import nd

store = mx.kv.create("nalb")
RANK, COUNT = store.rank, store.num_workers


def summed(key, value, size=1):
    """What every worker must get."""
    array = nd.full((size,), value)
    store.pushpull(key, array)
    print(f"summed {key}: {array.asnumpy()[0]:g}", flush=True)


def train(steps, after_step=lambda _: None):
    """A Trainer's steps; the first two learn what an iteration is."""
    net = mx.gluon.nn.Dense(4, in_units=5)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="nalb")
    for step in range(steps):
        with mx.autograd.record():
            loss = net(nd.ones((2, 5)) * (RANK + 1)).sum()
        loss.backward()
        trainer.step(2 * COUNT)
        after_step(step)


def other_order():
    """Metrics of each worker's own dictionary."""
    for key, value in [("loss", 1), ("accuracy", 100)][:: -1 if RANK else 1]:
        summed(key, value)


def other_size():
    """ps-lite ends by SIGABRT where pushes to one key differ in size."""
    summed("metric", 1, size=9000 if RANK else 1)


def one_call_more():
    """A flag that one worker alone sums amid the training."""
    train(12, lambda step: summed("stop", 1) if step == 6 and RANK == 0 else None)


def one_trainer():
    """The others have only a metric."""
    if RANK == 0:
        train(3)
    summed("metric", 1)


def fails_half_way():
    """One worker's value is none, and it goes on as if nothing had happened."""
    array = mx.nd.take(nd.ones((3,)), nd.array([99 if RANK == 0 else 0]), mode="raise")
    try:
        store.pushpull("metric", array)
    except mx.MXNetError as error:
        print("caught", type(error).__name__, flush=True)
    summed("another", 1)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
