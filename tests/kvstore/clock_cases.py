"""What the clock of a worker's computing reports while the engine is busy with an update. Run by test_batching.py."""

import time

import mxnet as mx
import numpy as np
from mxnet import nd

from kvstore_patch.gluon.compute_clock import ComputeClock

UPDATE_S, LOAD_S = 4.0, 0.1  # so long that a busy machine does not take half of it besides


class Slow(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        del is_train, aux
        time.sleep(UPDATE_S)
        self.assign(out_data[0], req[0], in_data[0])


@mx.operator.register("slow")
class SlowProperties(mx.operator.CustomOpProp):
    def create_operator(self, *_):
        return Slow()


def elapsed_s(clock, does):
    """What is reported of a batch that takes LOAD_S to load during an update that takes UPDATE_S."""
    reported = []
    data = nd.ones((1,))
    weight = nd.Custom(data, op_type="slow")
    clock.parameters([weight])
    clock.begin()
    time.sleep(LOAD_S)
    gradient = weight * 2
    if does == "reads":
        gradient.asnumpy()
    if does == "refills":
        data[:] = np.ones(1)
    clock.gradients([gradient], lambda computing: reported.append(computing.elapsed_s))
    clock.settle()
    return reported[0]


def main():
    clock = ComputeClock()
    for does in ("", "reads", "refills", ""):
        took_s = elapsed_s(clock, does)
        assert LOAD_S <= took_s < UPDATE_S / 2, f"{does}: {took_s:.3f} s reported"


if __name__ == "__main__":
    main()
