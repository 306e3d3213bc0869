"""What each worker of a campaign of faults runs: iterations with phases long enough for a fault to fall into each.

Every sum is checked. Prints 'forward 3', 'push 3' (the exchange begins), 'pull 3' (the first sum is back) as they begin. Rank 0
writes a checkpoint every other iteration, and a job that is started again goes on from there.
"""

import argparse
import os
import time
from pathlib import Path

import mxnet as mx
import numpy as np

from nalb.checkpoints import folder
from nalb.checkpoints.file import Checkpoint, OptimizerState, Progress

ELEMENTS = 2_000_000  # 8 MB: at 300 Mbit/s, a tenth of a second to the other node and a tenth back
FORWARD_S = 0.1


def main() -> None:
    """Compute (sleep), sum, check, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    args = parser.parse_args()
    store = mx.kv.create("nalb")
    place, node = Path(os.environ["NALB_CHECKPOINTS"]), os.environ["NALB_NODE"]
    found, _ = folder.newest(place)
    first = mx.nd.array([found.checkpoint.progress.iteration if found and store.rank == 0 else 0])
    store.pushpull([0], [first])
    small, large = mx.nd.zeros(1000), mx.nd.zeros(args.elements)
    for step in range(int(first.asscalar()), args.steps):
        print(f"forward {step}", flush=True)
        time.sleep(FORWARD_S)
        expected = np.float32(sum(rank + 1 + step for rank in range(store.num_workers)))
        small[:], large[:] = store.rank + 1 + step, store.rank + 1 + step
        store.pushpull([1, 2], [small, large])
        print(f"push {step}", flush=True)
        small.wait_to_read()
        print(f"pull {step}", flush=True)
        sums = large.asnumpy()
        assert np.all(small.asnumpy() == expected), f"wrong sum in step {step}"
        assert np.all(sums == expected), f"wrong sum in step {step}"
        if step % 2 and store.rank == 0:
            done = Checkpoint(Progress(step + 1), {}, OptimizerState("SGD"), {"sums": sums})
            folder.prune(folder.write(place, done, node), 2)
    print("last step", flush=True)


if __name__ == "__main__":
    main()
