"""`python -m kvstore_patch.roles.replay MODEL`: a worker that pushes a model's real tensors without computing them.

A sleep of the given length stands for computing; then all gradients are ready at once. So nothing overlaps: the worst case for
communication. The worker runs until the coordinator says Finish (`nalb compare`), or for --iterations.
"""

import sys
import time
from typing import TYPE_CHECKING

from nalb.errors import NalbError
from nalb.failures import Cause, Failure
from nalb.process.last_words import die
from nalb.workloads import load, replay_arguments

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray


def main() -> int:
    """Sum the model's tensors over all workers again and again."""
    args = replay_arguments("replay a model's gradient traffic")
    import mxnet as mx

    from kvstore_patch.gluon.patch import install
    from kvstore_patch.store.exchange import JobFinished

    install()
    try:
        store = mx.kv.create("nalb")
        tensors = load(args.model)
        fill = store.rank + 1 if args.verify else 0  # unverified sums are not reset, so any value but 0 would grow
        gradients = [mx.nd.full(t.shape, fill, dtype=t.dtype) for t in tensors]
        keys = list(range(len(tensors)))
        expected = store.num_workers * (store.num_workers + 1) / 2
        iteration = 0
        try:
            while not args.iterations or iteration <= args.iterations:  # the first records what is pushed
                time.sleep(args.compute_ms / 1000)
                store.pushpull(keys, gradients)
                if args.verify:
                    _check(gradients, expected, fill)
                else:
                    mx.nd.waitall()
                iteration += 1
        except JobFinished:
            pass
    except NalbError as error:
        die(Failure(cause=Cause.PROCESS, detail=str(error)), error.exit_code)
    return 0


def _check(gradients: "list[NDArray]", expected: float, fill: float) -> None:
    for index, gradient in enumerate(gradients):
        low, high = float(gradient.min().asscalar()), float(gradient.max().asscalar())
        if (low, high) != (expected, expected):
            sys.exit(f"wrong sum in tensor {index}: {low}..{high} instead of {expected}")
        gradient[:] = fill


if __name__ == "__main__":
    sys.exit(main())
