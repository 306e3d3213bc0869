"""What each worker of the `--verify-sums` tests runs: some steps, and in the fourth on rank 1 the fault that is asked for."""

import sys

import mxnet as mx

from kvstore_patch.store import ndarrays
from kvstore_patch.store.sliced import SlicedPath

store = mx.kv.create("nalb")
fault = sys.argv[1] if store.rank == 1 else ""
steps = waits = 0
push, wait = ndarrays.PushPull.__call__, SlicedPath.wait


def push_other(self, key, priority):
    """What reaches the server is not what the worker has counted: one bit of it, say."""
    if fault == "push" and steps == 4 and priority == -3:
        self._kept[0][0][0:1] += 1
    push(self, key, priority)


def wait_and_damage(self):
    """What the worker has is not what the server answered."""
    global waits
    wait(self)
    waits += 1
    if fault == "pull" and waits == 3:  # on a thread: the script may be further
        self._arrays[3][0:1] += 1


ndarrays.PushPull.__call__, SlicedPath.wait = push_other, wait_and_damage
for steps in range(6):  # noqa: B007 - the faults look at it
    arrays = [mx.nd.random.normal(shape=(300, 200)), mx.nd.random.normal(shape=(500,), dtype="float64")]
    store.pushpull([0, 1], arrays)
    mx.nd.waitall()
