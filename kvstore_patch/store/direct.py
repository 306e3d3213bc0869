"""Sums without a plan: for broadcasts of parameters, and for keys that belong to no known iteration.

An array is cut into pieces of at most 64 Ki elements. The pieces go to the servers in turn, through fixed slots of three sizes,
DEPTH of each size on each server; the last piece takes the smallest slot that it fits into. Using slots again needs no barrier: in
the engine a worker's next use of a slot waits for the slot's last answer, and a server answers only once every worker has pushed.

Sums go back into the array that was pushed. A sum is copied out of its slot only when the slot is needed again. To the engine the
whole array is one variable, so an earlier copy would delay the next piece, and a large array would travel piece by piece.

A broadcast is a sum in which all workers but rank 0 push zeros. It takes as long as one unplanned iteration, but leaves no copy of
the model on the servers, as a key for each parameter would.
"""

from collections import deque
from collections.abc import Callable, Sequence

import mxnet as mx
from mxnet import nd
from mxnet.ndarray import NDArray

from kvstore_patch.keys.slots import DEPTH, DTYPES, PIECE_ELEMENTS
from kvstore_patch.store import ndarrays
from kvstore_patch.store.one_level import SlotRoute
from kvstore_patch.store.two_levels import Levels


class DirectPath:
    """Piecewise sums over stock dist_sync; every worker must call in the same order (nalb/services/exchange/calls.py)."""

    def __init__(self, inner: mx.kvstore.KVStore, levels: Levels):
        self._inner, self._levels = inner, levels
        self._columns = levels.columns  # pieces go to the columns in turn
        self._journeys: dict[tuple[str, int], Sequence[Callable[[SlotRoute, int], None]]] = {}
        self._buffers: dict[tuple[str, int], list[NDArray]] = {}
        self._next_buffer = 0

    def broadcast(self, key: object, value: NDArray, outs: Sequence[NDArray]) -> None:
        """Queue copies of rank 0's `value` to every array of `outs`."""
        _settle(value, *outs)
        source = value if self._inner.rank == 0 else None
        self._sum(source, ndarrays.dtype_name(value, key), [ndarrays.flat(out) for out in outs])

    def add_up(self, key: object, values: Sequence[NDArray], outs: Sequence[NDArray]) -> None:
        """Queue the sum of `values` over workers and devices, to every array of `outs`."""
        _settle(*values, *outs)
        self._sum(ndarrays.add_up(values), ndarrays.dtype_name(values[0], key), [ndarrays.flat(out) for out in outs])

    def _sum(self, source: NDArray | None, dtype: str, outs: Sequence[NDArray]) -> None:
        size, done = outs[0].size, 0
        flat_source = ndarrays.flat(source) if source is not None and size else None
        under_way: deque[tuple[NDArray, int, int]] = deque()

        def copy_out() -> None:
            piece, start, length = under_way.popleft()
            for out in outs:
                ndarrays.copy(piece, ndarrays.part(out, start, length))

        while done < size:
            if len(under_way) == DEPTH * self._columns:
                copy_out()
            length = min(size - done, PIECE_ELEMENTS[0])
            capacity = min(elements for elements in PIECE_ELEMENTS if elements >= length)
            number = self._next_buffer
            buffer = self.slots(dtype, capacity)[number]
            self._next_buffer = (number + 1) % (DEPTH * self._columns)
            piece = ndarrays.part(buffer, 0, length)
            if flat_source is None:
                piece[:] = 0
            else:
                ndarrays.copy(ndarrays.part(flat_source, done, length), piece)
            self._exchange(dtype, capacity, number)
            under_way.append((piece, done, length))
            done += length
        while under_way:
            copy_out()

    def _exchange(self, dtype: str, capacity: int, number: int) -> None:
        turn, column = divmod(number, self._columns)
        slot = self._slot_number(dtype, capacity, turn)
        self._journeys[dtype, capacity][number](self._levels.direct_route(column, slot), 0)

    def _slot_number(self, dtype: str, capacity: int, turn: int) -> int:
        kind = DTYPES.index(dtype) * len(PIECE_ELEMENTS) + PIECE_ELEMENTS.index(capacity)
        return kind * DEPTH + turn

    def slots(self, dtype: str, capacity: int) -> list[NDArray]:
        """The buffers of a dtype and size, DEPTH per server. At their first use the slots are created, and all workers wait."""
        if (dtype, capacity) not in self._buffers:
            buffers = [nd.zeros((capacity,), dtype=dtype) for _ in range(DEPTH * self._columns)]
            self._buffers[dtype, capacity] = buffers
            self._journeys[dtype, capacity] = self._levels.journeys(buffers)
            for number, buffer in enumerate(buffers):
                turn, column = divmod(number, self._columns)
                for key in self._levels.own_direct_keys(column, self._slot_number(dtype, capacity, turn)):
                    self._inner.push(key, buffer)
            for buffer in buffers:
                ndarrays.wait_until_sent(buffer)
            self._inner._barrier()
        return self._buffers[dtype, capacity]


def _settle(*arrays: NDArray) -> None:
    """Bring arrays into MXNet's layout, since first pieces are written before the last ones are read (ndarrays.py)."""
    for array in arrays:
        ndarrays.settle(array)
