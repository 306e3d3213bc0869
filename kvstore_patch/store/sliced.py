"""Sums by plan: gradients -> slices -> slots -> slices -> gradients, all of it queued with MXNet's engine.

Each slice has an NDArray of its own: views of one big buffer would share an engine variable and travel one after another.
Copies in and out are engine operations. So nothing here blocks, and a slice leaves once the gradients of its fragments are ready,
while the rest of the backward pass still computes. A slice holds tensors of one group (one pushpull call) only: when the call
returns, the sums of all its gradients are queued, as MXNet's users expect.
"""

import bisect
import itertools
import threading
from collections.abc import Sequence

from mxnet import nd
from mxnet.ndarray import NDArray

from kvstore_patch.store import ndarrays
from kvstore_patch.store.calls import Arrays
from kvstore_patch.store.two_levels import Levels
from nalb.planning.slices import Layout
from nalb.services.exchange import messages as m
from nalb.services.exchange.sums import digest, signs


class SlicedPath:
    """The slices of one layout and their ways to the servers. Memory: one copy of the tensors, two where sums are verified.

    The slices' arrays outlive this object: MXNet's store keeps the array last pushed through each key (KVStoreDist's comm_buf_).
    """

    def __init__(self, lock: threading.Lock, layout: Layout, levels: Levels, rank: int, verify: bool = False):
        """rank: this worker's."""
        self._lock, self._layout, self._levels, self._rank = lock, layout, levels, rank
        whole = [nd.zeros((s.elements + 1,), dtype=s.dtype) for s in layout.slices]
        self._arrays = [ndarrays.part(w, 0, w.size - 1) for w in whole]
        self._gates = [ndarrays.part(w, w.size - 1, 1) for w in whole]  # one more element of each, which orders slices
        self._ends_bytes = list(itertools.accumulate(piece.size_bytes for piece in layout.slices))
        self._journeys = levels.journeys(self._arrays)
        self._order_after: dict[int, tuple[int, ndarrays.Copy]] = {}  # by the later slice, its last earlier one
        self._slices_of_last: dict[int, list[int]] = {}  # last tensor of slices -> those slices
        self._fragments_of: dict[int, list[tuple[NDArray, int, int]]] = {}  # tensor -> (view of slice, offset, length)
        self._places: list[list[tuple[int, int]]] = []  # slice -> (tensor, which of its fragments)
        for index, (piece, array) in enumerate(zip(layout.slices, self._arrays, strict=True)):
            self._slices_of_last.setdefault(piece.fragments[-1].tensor, []).append(index)
            places = []
            for fragment in piece.fragments:
                fragments = self._fragments_of.setdefault(fragment.tensor, [])
                places.append((fragment.tensor, len(fragments)))
                view = ndarrays.part(array, fragment.slice_offset, fragment.length)
                fragments.append((view, fragment.tensor_offset, fragment.length))
            self._places.append(places)
        self._pushed = [nd.zeros((s.elements,), dtype=s.dtype) for s in layout.slices] if verify else []
        self._copies: dict[tuple[int, int], tuple[NDArray, list[ndarrays.Copy]]] = {}

    def push_group(self, plan: m.Plan, first_tensor: int, sources: Sequence[NDArray], outs: Arrays) -> None:
        """Queue one group's sums; `sources[i]` and `outs[i]` belong to tensor first_tensor + i.

        The group is queued slice by slice, so that the first slice is on its way while the others are still being queued.
        """
        copies_in = {first_tensor + i: self._copies_of(first_tensor + i, 0, source) for i, source in enumerate(sources)}
        for index in sorted(i for tensor in copies_in for i in self._slices_of_last.get(tensor, ())):
            for tensor, number in self._places[index]:
                copies_in[tensor][number]()
            if self._pushed:
                ndarrays.copy(self._arrays[index], self._pushed[index])
            gate = self._gate(index, plan.window_of(self._rank))
            if gate >= 0:
                self._order(gate, index)
            route = self._levels.route(plan, index)
            with self._lock:
                self._journeys[index](route, -index)
        for offset, targets in enumerate(outs):
            for device, target in enumerate(targets):
                for copy_out in self._copies_of(first_tensor + offset, device + 1, target):
                    copy_out()

    def _order(self, earlier: int, later: int) -> None:
        """Let slice `later` wait until slice `earlier` is back, by a copy between their arrays, which the engine orders."""
        last = self._order_after.get(later)
        if last is None or last[0] != earlier:
            last = self._order_after[later] = earlier, ndarrays.Copy(self._gates[earlier], self._gates[later])
        last[1]()

    def _gate(self, index: int, inflight_bytes: int) -> int:
        """The last slice that must be back before slice `index` leaves, so that at most the window is under way; -1: none must."""
        if not inflight_bytes:
            return -1
        return bisect.bisect_right(self._ends_bytes, self._ends_bytes[index] - inflight_bytes) - 1

    def wait(self) -> None:
        """Block until every slice is back."""
        ndarrays.wait_for_all(self._arrays)

    def sums(self, iteration: int) -> m.Sums | None:
        """Digests by which the coordinator checks the sums, once all slices are back; None where sums are not verified."""
        if not self._pushed:
            return None
        drawn = signs(iteration, max(piece.elements for piece in self._layout.slices))
        pushed, back = ([digest(one.asnumpy(), drawn) for one in arrays] for arrays in (self._pushed, self._arrays))
        return m.Sums(iteration, pushed, back)

    def _copies_of(self, tensor: int, role: int, array: NDArray) -> list[ndarrays.Copy]:
        """The copies between an array and its slices: role 0 into them, role 1 + device out of them.

        They are kept while the caller passes the same array, as Gluon does.
        """
        kept = self._copies.get((tensor, role))
        if kept is not None and kept[0] is array:
            return kept[1]
        whole = ndarrays.flat(array) if array.size else array
        copies = []
        for view, start, length in self._fragments_of.get(tensor, ()):
            piece = ndarrays.part(whole, start, length)
            copies.append(ndarrays.Copy(view, piece) if role else ndarrays.Copy(piece, view))
        self._copies[tensor, role] = (array, copies)
        return copies
