"""What each worker of a test job runs: sums of a small array, and on one node the fault that the flags ask for."""

import argparse
import os
import sys
import time


def fail(how: str) -> None:
    """Do what a user's script may do."""
    if how == "raise":
        raise ValueError("the loss is not a number")
    if how == "exit-3":
        sys.exit(3)
    if how == "os-exit":
        sys.stderr.write("\r50% |##  |")
        sys.stderr.flush()
        os._exit(0)
    if how == "exit-of-site":
        exit(3)


def main() -> None:
    """Push and pull; 'step 3' tells the test that the job is under way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--fault", choices=("raise", "exit-3", "exit-of-site", "os-exit", "leave"))
    parser.add_argument("--node", default="n1")
    args = parser.parse_args()
    import mxnet as mx

    store = mx.kv.create("nalb")
    faulty = os.environ["NALB_NODE"] == args.node
    if faulty and args.fault == "leave":
        sys.exit(0)
    array = mx.nd.ones((1000,))
    for step in range(args.steps):
        array[:] = store.rank + 1
        store.pushpull([0], [array])
        assert float(array[0].asscalar()) == store.num_workers * (store.num_workers + 1) / 2
        if step == 3:
            print("step 3", flush=True)
        if step == 4 and faulty and args.fault:  # its sum shows that every worker has printed 'step 3'
            fail(args.fault)
        if step == args.steps - 1:
            print("last step", flush=True)
        time.sleep(0.005)


if __name__ == "__main__":
    main()
