"""The only worker of a job of several servers: which server answers for a key, by what the shim saw.

Prints one line of JSON: [server that slot_key meant, ps-lite ids of those that answered, sum] for slots of many ranges of keys.
"""

import json
import os

import mxnet as mx

from kvstore_patch.keys.slots import DIRECT_SLOTS, TURNS, most_plan_slots, slot_key
from kvstore_patch.shim import Sample, Shim

STEP = 401  # ranges between two that are tried


def main() -> None:
    """One key after another, each initialised and summed."""
    count = int(os.environ["DMLC_NUM_SERVER"])
    slots = DIRECT_SLOTS + most_plan_slots(count)
    rows = slots // TURNS
    store, shim, found = mx.kv.create("dist_sync"), Shim.loaded(), []
    for slot in [0, *(turn * rows + end for turn in range(0, TURNS, STEP) for end in (-1, 0) if turn), slots - 1]:
        for server in range(count):
            array, key = mx.nd.ones(8), slot_key(server, slot, count)
            shim.drain()
            store.init(key, array)
            store.pushpull(key, array, out=array)
            mx.nd.waitall()
            peers = {sample.peer for sample in (Sample(*row) for row in shim.drain())}
            found.append([server, sorted(peers), float(array.sum().asscalar())])
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
