"""The routing of MXNet 1.9.1's own dist_sync: KVStoreDist::EncodeDefaultKey in src/kvstore/kvstore_dist.h."""

from collections.abc import Sequence

import numpy as np

from nalb.planning.slices import ITEM_BYTES, Ints, Tensor

HASH_PRIME = 9973  # KVStoreDist::EncodeDefaultKey, MXNet 1.9.1
BIGARRAY_BOUND = 1_000_000  # elements: MXNET_KVSTORE_BIGARRAY_BOUND's default


def route(
    tensors: Sequence[Tensor], num_servers: int, keys: Sequence[int] | None = None, bound: int = BIGARRAY_BOUND
) -> tuple[Ints, Ints]:
    """(bytes, server rank) of each message that a worker pushes, in the order of the tensors.

    A tensor of fewer than `bound` elements goes whole to server (key * 9973) mod S. A larger one goes in S parts: server i gets
    elements [round(n i / S), round(n (i + 1) / S)). Empty parts are left out. keys: of the tensors; default: 0, 1, ...
    """
    sizes, servers = [], []
    for key, tensor in zip(range(len(tensors)) if keys is None else keys, tensors, strict=True):
        item_bytes = ITEM_BYTES[tensor.dtype]
        if tensor.elements < bound:
            sizes.append(np.array([tensor.size_bytes]))
            servers.append(np.array([key * HASH_PRIME % num_servers]))
            continue
        # C's round() rounds halves away from zero, numpy's to even
        edges = np.floor(tensor.elements / num_servers * np.arange(num_servers + 1) + 0.5).astype(np.int64)
        sizes.append(np.diff(edges) * item_bytes)
        servers.append(np.arange(num_servers))
    size, server = np.concatenate(sizes).astype(np.int64), np.concatenate(servers).astype(np.int64)
    return size[size > 0], server[size > 0]
