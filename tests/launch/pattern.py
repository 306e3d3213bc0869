"""What each worker of the encryption tests runs: gradients whose bytes are a known pattern, every sum checked, until told to stop.

The stop is itself summed, so that all workers make the same number of steps.
"""

import argparse
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Push, check, repeat; 'step 3' tells the test that the job is under way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pattern", required=True, help="16 ASCII characters: four float32")
    parser.add_argument("--stop", type=Path, required=True, help="a file that will appear")
    args = parser.parse_args()
    import mxnet as mx

    store = mx.kv.create("nalb")
    gradient = np.frombuffer(args.pattern.encode("ascii") * 4096, dtype=np.float32)
    expected = gradient * np.float32(store.num_workers)  # exact for two workers
    array, stop = mx.nd.zeros(gradient.size), mx.nd.zeros(1)
    step = 0
    while float(stop[0].asscalar()) == 0 or step < 5:
        array[:], stop[:] = gradient, float(args.stop.exists())
        store.pushpull([0, 1], [array, stop])
        assert np.array_equal(array.asnumpy(), expected), f"wrong sum in step {step}"
        step += 1
        if step == 3:
            print("step 3", flush=True)
        time.sleep(0.02)  # leaves the spy and the intruders time
    print("every sum was right", flush=True)


if __name__ == "__main__":
    main()
