"""Which slots exist on each server of one level, and which of them the slices of a plan take. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nalb.planning.slices import Layout
from nalb.protocol import messages as m

SlotClass = tuple[str, int]  # dtype, elements


class SlotNumbers:
    """The slots that plans have asked for so far; they are numbered from 0 on each server and stay."""

    def __init__(self, rank_of_node: Mapping[int, int]):
        self._rank_of_node = rank_of_node
        self._slots: dict[tuple[int, SlotClass], list[int]] = {}  # (node, class) -> slot numbers on its server
        self._next_slot = dict.fromkeys(rank_of_node, 0)

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self._next_slot.values())

    def ranks(self, nodes: Iterable[int]) -> list[int]:
        """Of the servers on these nodes."""
        return [self._rank_of_node[node] for node in nodes]

    def place(
        self, layout: Layout, node_of_slice: Sequence[int], slot_of_slice: Sequence[int], most: Counter[SlotClass]
    ) -> tuple[list[int], list[m.NewSlots]]:
        """The slot number of each slice: the k-th of its class on its server; missing ones are numbered and returned.

        most: slices of a class that any layout has, and so slots that a server may need.
        """
        classes = layout.slot_classes
        of_slice = np.array(node_of_slice) * len(classes) + layout.class_of_slice
        places, place_of_slice, wanted = np.unique(of_slice, return_inverse=True, return_counts=True)
        have, new = [], []
        for place, count in zip(places.tolist(), wanted.tolist(), strict=True):
            node, which = divmod(place, len(classes))
            numbers = self._slots.setdefault((node, classes[which]), [])
            if (missing := count - len(numbers)) > 0:
                # The job waits while slots are made, and shares wander: a server that has outgrown its slots gets twice as many.
                made = min(max(missing, len(numbers)), most[classes[which]] - len(numbers))
                first = self._next_slot[node]
                self._next_slot[node] += made
                numbers.extend(range(first, first + made))
                dtype, elements = classes[which]
                new.append(m.NewSlots(self._rank_of_node[node], first, made, elements, dtype))
            have.append(numbers)
        slots = [have[k][slot] for k, slot in zip(place_of_slice.tolist(), slot_of_slice, strict=True)]
        return slots, new
