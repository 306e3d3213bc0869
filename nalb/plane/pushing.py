"""Which slices of an iteration may leave, and what of its tensors is summed. Pure.

A slice may leave once its elements are ready and no more than the window is under way: bytes that other ranks sum and have not
answered. Of those that are ready the first one leaves first. It leaves despite a full window if all that is under way comes after
it: ranks' sums may become ready in different orders, as those of two GPUs do, and each rank would wait for what the other holds
back. The training process hears of sums in parts of TELL_BYTES, so that it copies the first while the others travel.
"""

from collections import Counter
from heapq import heappop, heappush
from itertools import accumulate

from nalb.planning.slices import ITEM_BYTES, Layout, sum_dtype, value_dtype

TELL_BYTES = 1 << 20


class Cut:
    """A layout's slices in plain lists; each slice is part of one tensor, and a tensor's slices follow each other."""

    def __init__(self, layout: Layout, precision: str = "float32"):
        """precision: in which sums are answered."""
        self.precision = precision
        assert all(len(one.fragments) == 1 for one in layout.slices), "each tensor is a group of its own"
        fragments = [one.fragments[0] for one in layout.slices]
        self.tensor = [one.tensor for one in fragments]  # by slice
        self.start = [one.tensor_offset for one in fragments]  # its first element within the tensor
        self.stop = [one.tensor_offset + one.length for one in fragments]
        self.size_bytes = [one.size_bytes for one in layout.slices]  # on their way
        self.elements = [tensor.elements for tensor in layout.tensors]
        self.script_dtype = [value_dtype(tensor.dtype) for tensor in layout.tensors]  # as the script has them
        self.dtype = [sum_dtype(dtype) for dtype in self.script_dtype]  # in memory
        self.tell_elements = [int(TELL_BYTES // ITEM_BYTES[dtype]) for dtype in self.dtype]  # by tensor
        slices = Counter(self.tensor)  # of each tensor
        # By tensor, its first slice; at the end the number of slices.
        self.first = list(accumulate((slices[tensor] for tensor in range(len(layout.tensors))), initial=0))


class SliceProgress:
    """How far one iteration is."""

    def __init__(self, cut: Cut, window_bytes: int):
        """window_bytes: 0 for no limit."""
        self._cut, self._window_bytes = cut, window_bytes
        self._queue: list[int] = []  # a heap of slices that are ready and have not left
        self._left: list[int] = []  # a heap of those that have; answered ones are taken out once they are the first
        self._queued = list(cut.first)  # by tensor, its first slice that is not ready
        self._answered = bytearray(cut.first[-1])
        self._complete = list(cut.first)  # by tensor, its first slice without an answer
        self._told = [0] * len(cut.elements)  # by tensor, elements that the training process knows to be summed
        self.under_way_bytes = 0
        self.tensors = len(cut.elements)  # that the iteration has; fewer where it was broken off
        self.ready_tensors = 0  # the first so many tensors are there
        self.summed_tensors = 0  # the sums of the first so many are back

    def make_ready(self, tensor: int, elements: int) -> None:
        """Take in that the first elements of a tensor are there."""
        cut, index = self._cut, self._queued[tensor]
        end = cut.first[tensor + 1]
        while index < end and cut.stop[index] <= elements:
            heappush(self._queue, index)
            index += 1
        self._queued[tensor] = index
        self.ready_tensors = self._leading(self._queued, self.ready_tensors, len(cut.elements))

    def _leading(self, place: list[int], first: int, last: int) -> int:
        """The first tensor from `first` on whose slices are not all before its place; `last` if there is none."""
        while first < last and place[first] == self._cut.first[first + 1]:
            first += 1
        return first

    @property
    def has_next(self) -> bool:
        """Whether a slice may leave: one is ready, and the window is not full or holds later ones alone."""
        if not self._queue or not self._window_bytes or self.under_way_bytes < self._window_bytes:
            return bool(self._queue)
        while self._left and self._answered[self._left[0]]:
            heappop(self._left)
        return not self._left or self._queue[0] < self._left[0]

    def next_slice(self) -> int | None:
        """The slice that leaves now; None: none may."""
        if not self.has_next:
            return None
        heappush(self._left, self._queue[0])
        return heappop(self._queue)

    def note_answer(self, index: int) -> int | None:
        """Take in that a slice's sum is back; returns how many elements of its tensor to tell of as summed, or None."""
        cut, tensor = self._cut, self._cut.tensor[index]
        self._answered[index] = 1
        place, end = self._complete[tensor], cut.first[tensor + 1]
        if index != place:
            return None
        while place < end and self._answered[place]:
            place += 1
        self._complete[tensor] = place
        self.summed_tensors = self._leading(self._complete, self.summed_tensors, self.ready_tensors)
        elements = cut.stop[place - 1]
        if place < end and elements - self._told[tensor] < cut.tell_elements[tensor]:
            return None
        self._told[tensor] = elements
        return elements

    @property
    def is_complete(self) -> bool:
        """Whether all sums of the iteration are back."""
        return self.summed_tensors >= self.tensors
