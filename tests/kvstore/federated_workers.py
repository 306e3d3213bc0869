"""What the clients of the federated tests run: `python federated_workers.py ROUNDS`. An assertion fails the job."""

import json
import sys
import time

import mxnet as mx
import numpy as np
from mxnet import gluon, nd

from kvstore_patch import federated

START, STEPS = 40, 3


def main():
    store = mx.kv.create("nalb")
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Constant(store.rank + 1.0))
    convolution = gluon.nn.Conv2D(64, 3, groups=4, in_channels=64)
    convolution.initialize(mx.init.Constant(store.rank + 1.0))
    parameters = [*net.collect_params().values(), *convolution.collect_params().values()]
    rounds = federated.join(store, parameters, START)
    sizes, expected = [], np.ones((3, 4))
    for number in range(int(sys.argv[1])):
        np.testing.assert_allclose(
            net.weight.data().asnumpy(), expected, rtol=1e-6
        )  # rank 0's at first, the mean later
        sizes.append(rounds.begin())
        for _ in range(STEPS):
            time.sleep(0.001 * (1 + 9 * store.rank) * sizes[-1] / STEPS)
            net.weight.set_data(net.weight.data() + nd.full((3, 4), store.rank + 0.5 * number))
        for _ in range(3):
            convolution(nd.ones((2, 64, 12, 12)))  # leaves its weight in oneDNN's layout
        rounds.end()
        assert (convolution.weight.data().asnumpy() == 1).all()
        expected = expected + STEPS * (np.mean(range(store.num_workers)) + 0.5 * number)
    print(json.dumps({"rank": store.rank, "sizes": sizes}), flush=True)


main()
