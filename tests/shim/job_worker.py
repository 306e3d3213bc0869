"""What each worker of the test job runs: push and pull with and without forecasts, and pyzmq beside it.

Prints one line of JSON: what its shim saw.
"""

import json

import mxnet as mx
import zmq

from kvstore_patch.shim import Shim

ELEMENTS, ITERATIONS = 50_000, 4


def exchange(store: mx.kv.KVStore, arrays: list[mx.nd.NDArray]) -> float:
    """One push and pull of each key; returns an element of the last sum."""
    for key, array in enumerate(arrays):
        store.pushpull(key, array, out=array)
    mx.nd.waitall()
    return float(arrays[-1][0].asscalar())


def echo() -> bool:
    """pyzmq in the same process: what looks like a forecast is its user's own business."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer.setsockopt(zmq.IDENTITY, b"ps99")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(b"NALBFC01")
        dealer.send_multipart([b"meta", b"data"])
        first, second = router.recv_multipart(), router.recv_multipart()
        return first == [b"ps99", b"NALBFC01"] and second == [b"ps99", b"meta", b"data"]


def main() -> None:
    """Exchange announced, then unannounced, and report."""
    store = mx.kv.create("dist_sync")
    shim = Shim.loaded()
    arrays = [mx.nd.ones(ELEMENTS), mx.nd.ones(ELEMENTS)]
    for key in range(len(arrays)):
        store.init(key, mx.nd.zeros(ELEMENTS))
    store._barrier()
    shim.drain()
    sums = [exchange(store, arrays) for _ in range(ITERATIONS)]
    announced = shim.counters()
    shim.set_forecasts(False)
    sums += [exchange(store, arrays) for _ in range(ITERATIONS)]
    untouched = echo()
    store._barrier()
    report = {
        "rank": store.rank,
        "self_id": shim.self_id,
        "transport": shim.transport,
        "sums": sums,
        "untouched": untouched,
        "samples": shim.drain(),
        "drops": shim.drops,
        "announced": announced,
        "silent": shim.counters(),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
