"""Lets all workers go on from the newest whole checkpoint that any of them has: the file is sent to those without it.

Each worker puts iteration, size and digest of its own newest file into a row of its own, with zeros in the other rows; the sum over
all workers is the table of all files. Where all workers have the same file, as in a shared folder, nothing more is sent. Otherwise
the holder of lowest rank pushes the file and the others push zeros. Numbers and files travel as 16-bit pieces in float32, which
servers add up exactly.
"""

from math import ceil
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.kvstore.base import KVStoreBase

from kvstore_patch.store.kvstore import NALB, halves, whole
from nalb.checkpoints.file import DIGEST_BYTES
from nalb.errors import StoreError
from nalb.planning.stock import STOCK_KEYS

# Each element carries two bytes of the file.
PIECE_ELEMENTS = 1 << 18  # through MXNet's own servers, which keep an array of this size
PIECE_ELEMENTS_MOST = 1 << 22  # through nalb's: each piece costs round trips, and a worker up to three arrays of 16 MiB
SIZES_KEY, TABLE_KEY, FILE_KEY = range(STOCK_KEYS - 3, STOCK_KEYS)  # SIZES_KEY: batching.py's; Gluon counts from 0
NUMBER_BYTES = 8
_made: set[int] = set()  # keys that MXNet's own servers have: a second init of a key would count as a worker's push


def agree(store: KVStoreBase, iteration: int, data: bytes | None) -> bytes | None:
    """The newest file of all workers, the same on each worker; None where no worker has one. Call it on every worker.

    data: this worker's newest file, saved after `iteration` steps; None: it has none.
    """
    rows = np.zeros((store.num_workers, 1 + (2 * NUMBER_BYTES + DIGEST_BYTES) // 2), np.float32)
    if data is not None:
        numbers = iteration.to_bytes(NUMBER_BYTES, "little") + len(data).to_bytes(NUMBER_BYTES, "little")
        rows[store.rank, 0] = 1
        rows[store.rank, 1:] = np.frombuffer(numbers + data[-DIGEST_BYTES:], np.uint16)
    table = add_up(store, TABLE_KEY, rows)
    words = {rank: row[1:].astype(np.uint16).tobytes() for rank, row in enumerate(table) if row[0]}
    if not words:
        return None
    holder = max(words, key=lambda rank: (_number(words[rank], 0), -rank))
    if all(words.get(rank) == words[holder] for rank in range(store.num_workers)):
        return data
    return _send(store, data if store.rank == holder else None, _number(words[holder], 1))


def _send(store: KVStoreBase, data: bytes | None, size_bytes: int) -> bytes:
    elements = PIECE_ELEMENTS
    if isinstance(store, NALB):
        elements = ceil(size_bytes / 2 / ceil(size_bytes / 2 / PIECE_ELEMENTS_MOST))  # pieces of one size
    pieces = []
    for start in range(0, size_bytes, 2 * elements):
        piece = np.zeros(elements, np.float32)
        if data is not None:
            part = halves(data[start : start + 2 * elements])
            piece[: len(part)] = part
        pieces.append(whole(add_up(store, FILE_KEY, piece), size_bytes - start))
    return b"".join(pieces)


def add_up(store: KVStoreBase, key: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The sum of `values` over all workers, by whichever store; call it on every worker. Raises StoreError."""
    array = mx.nd.array(values, dtype=values.dtype)
    if isinstance(store, NALB):
        store.add_up_once(key, array)
    elif isinstance(store, mx.kvstore.KVStore):
        if key not in _made:
            store.init(key, mx.nd.zeros_like(array))
            _made.add(key)
        store.pushpull(key, array, out=array)
    else:
        raise StoreError(f"kvstore {store.type!r} adds up gradients alone: use 'nalb' or one of MXNet's own")
    return array.asnumpy()


def _number(word: bytes, place: int) -> int:
    return int.from_bytes(word[place * NUMBER_BYTES : (place + 1) * NUMBER_BYTES], "little")
