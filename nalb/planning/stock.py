"""The routing of MXNet 1.9.1's own dist_sync: KVStoreDist::EncodeDefaultKey in src/kvstore/kvstore_dist.h."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from nalb.planning.slices import ITEM_BYTES, Ints, Tensor

HASH_PRIME = 9973  # KVStoreDist::EncodeDefaultKey, MXNet 1.9.1
STOCK_KEYS = 4096  # keys that MXNet's own routing has here; nalb's slots have others
BIGARRAY_BOUND = 1_000_000  # elements: MXNET_KVSTORE_BIGARRAY_BOUND's default


class OwnKeys:
    """The keys of all sets of tensors that a job sums by MXNet's own routing. No two sets share a key."""

    def __init__(self) -> None:
        self._keys: dict[tuple[Tensor, ...], list[int]] = {}

    def of(self, tensors: Sequence[Tensor]) -> list[int]:
        """The keys of a set of tensors, in their order; a later set's come after all earlier ones'.

        They are Gluon's where all names are: its Trainer numbers parameters by name, those without gradients too, so numbers have
        gaps. Otherwise tensors are counted. A key may be STOCK_KEYS or more: there is no such one then.
        """
        wanted = tuple(tensors)
        if wanted not in self._keys:
            first = max((keys[-1] for keys in self._keys.values() if keys), default=-1) + 1
            names = [one.name for one in wanted]
            numbers = [int(name) for name in names] if all(map(str.isdecimal, names)) else []
            is_fit = (
                bool(numbers)
                and all(low < high for low, high in pairwise(numbers))
                and first + numbers[-1] < STOCK_KEYS
            )
            self._keys[wanted] = [first + one for one in (numbers if is_fit else range(len(wanted)))]
        return self._keys[wanted]


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
