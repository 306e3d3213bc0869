"""Gradients that are added up over micro-batches are those of the whole batch."""

import subprocess
import sys

import pytest

PROGRAM = """
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from nalb.mxnet import micro_batches

net, loss_of = gluon.nn.Dense(3), gluon.loss.SoftmaxCrossEntropyLoss()
net.initialize(mx.init.Xavier())
net.hybridize()
x, y = np.random.default_rng(1).normal(size=(50, 8)).astype("float32"), np.arange(50) % 3
chosen = [7, 3, 40, 11, 12, 0, 49, 5, 6, 21, 9]

def gradients(size):
    for one in net.collect_params().values():
        one.grad_req = "add"
        one.zero_grad()
    for part, weights in micro_batches(chosen, size):
        with autograd.record():
            loss = loss_of(net(mx.nd.array(x[part])), mx.nd.array(y[part])) * mx.nd.array(weights)
        loss.backward()
    return [one.grad().asnumpy() for one in net.collect_params().values()]

net(mx.nd.array(x))
whole = gradients(len(chosen))
assert all(np.abs(one).max() > 0.1 for one in whole)
for size in (1, 4, 11, 30):
    for one, other in zip(whole, gradients(size), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.mxnet
def test_they_are_those_of_the_whole_batch() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
