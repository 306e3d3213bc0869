"""Copies of slices of arrays in oneDNN's own layout, to arrays of the same and of another type. Run by test_ndarrays.py."""

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from kvstore_patch.store import ndarrays


def gradient_of_an_image():
    conv = gluon.nn.Conv2D(64, 3, in_channels=64)
    conv.initialize()
    x = nd.ones((2, 64, 12, 12))
    x.attach_grad()
    with autograd.record():
        loss = conv(x).sum()
    loss.backward()
    return x.grad


def weight_that_inferred():
    conv = gluon.nn.Conv2D(64, 3, in_channels=64)
    conv.initialize()
    conv(nd.ones((2, 64, 12, 12))).wait_to_read()
    return conv.weight.data()


def main():
    for make in (gradient_of_an_image, weight_that_inferred):
        for dtype in ("float16", "float32", "float64"):
            mx.random.seed(1)
            source, target = make(), nd.zeros((300,), dtype=dtype)
            mx.random.seed(1)
            expected = make().asnumpy().reshape(-1)[7:107]
            ndarrays.Copy(ndarrays.part(ndarrays.flat(source), 7, 100), ndarrays.part(target, 50, 100))()
            got = target.asnumpy()
            assert np.array_equal(got[50:150], expected.astype(dtype)), (make, dtype)
            assert not got[:50].any()
            assert not got[150:].any()


if __name__ == "__main__":
    main()
