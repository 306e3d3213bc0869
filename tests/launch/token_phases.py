"""What each worker of a campaign of faults runs where workers compute tokens: three blocks, in steps of a tenth of a second.

Prints 'forward 3' (a step begins), 'push 3' (its first token) and 'pull 3' (it is done). At the end the parameters are held against
one process's training of the same samples. A job that is started again goes on from the newest checkpoint.
"""

import argparse
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from kvstore_patch import fela
from kvstore_patch.checkpoints import Checkpoints, Progress
from nalb.batching.stream import Stream

FEATURES, UNITS, SAMPLES, TOTAL = 400, 300, 60, 24  # 0.8 MB of parameters
TOKEN_S = 0.04  # a first token takes so long, at least
OPTIMIZER = {"learning_rate": 0.1, "momentum": 0.9}
generator = np.random.RandomState(1)
DATA = generator.uniform(-1, 1, (SAMPLES, FEATURES)).astype(np.float32)
TARGET = generator.uniform(-1, 1, (SAMPLES, 1)).astype(np.float32)
loss_of = gluon.loss.L2Loss()


def build() -> list[nn.HybridBlock]:
    """The blocks, the same ones each time."""
    mx.random.seed(3)
    blocks, x = [], nd.zeros((2, FEATURES))
    for block in (nn.Dense(UNITS, activation="tanh"), nn.Dense(UNITS, activation="tanh"), nn.Dense(1)):
        block.initialize(mx.init.Xavier())
        x = block(x)
        blocks.append(block)
    return blocks


def values(blocks: list[nn.HybridBlock]) -> list[np.ndarray]:
    """All parameters."""
    return [one.data().asnumpy() for block in blocks for one in block.collect_params().values()]


def by_one_process(steps: int) -> list[np.ndarray]:
    """The parameters after so many steps on all samples of each."""
    blocks = build()
    net = nn.HybridSequential()
    net.add(*blocks)
    trainer = gluon.Trainer(net.collect_params(), "sgd", dict(OPTIMIZER), kvstore=None)
    stream = Stream(SAMPLES, TOTAL, lambda epoch: np.random.default_rng([1, epoch]).permutation(SAMPLES))
    for step in range(steps):
        chosen = stream.batch(step, 0, TOTAL)
        with autograd.record():
            loss = loss_of(net(nd.array(DATA[chosen])), nd.array(TARGET[chosen]))
        loss.backward()
        trainer.step(TOTAL)
    return values(blocks)


def main() -> None:
    """Train, compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    store, blocks = mx.kv.create("nalb"), build()
    net = nn.HybridSequential()
    net.add(*blocks)
    trainer = fela.Trainer(blocks, loss_of, "sgd", OPTIMIZER, store, TOTAL, threshold=4)
    batches = trainer.batches(SAMPLES, seed=1)
    checkpoints = Checkpoints(net, trainer, 4, seed=1, settings={"total": TOTAL})
    step = checkpoints.restore().iteration
    batches.go_to(step)
    told = -1

    def load(part: list[int]) -> tuple[nd.NDArray, np.ndarray]:
        nonlocal told
        if told < step:
            told = step
            print(f"push {step}", flush=True)
        time.sleep(TOKEN_S)
        return nd.array(DATA[part]), TARGET[part]

    while step < args.steps:
        for _ in batches:
            print(f"forward {step}", flush=True)
            trainer.step(load)
            print(f"pull {step}", flush=True)
            step += 1
            checkpoints.after_step(Progress(step))
            if step == args.steps:
                break
    trainer.gather()
    expected = by_one_process(args.steps)
    largest = max(np.abs(one).max() for one in expected)
    off = max(np.abs(got - want).max() for got, want in zip(values(blocks), expected, strict=True)) / largest
    assert off <= 1e-4, f"wrong sum: rank {store.rank} is off by {off:.1e}"
    print("last step", flush=True)


if __name__ == "__main__":
    main()
