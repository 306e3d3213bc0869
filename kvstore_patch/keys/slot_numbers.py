"""Numbers the slots of each server, and gives them to the slices of plans. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from kvstore_patch.keys.slots import most_plan_slots, most_site_slots
from nalb.errors import InputError
from nalb.planning.distribution import Distribution
from nalb.planning.leaders import SitePlan
from nalb.planning.slices import Layout
from nalb.services.exchange import messages as m
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.planes import PlacedSlices

SlotClass = tuple[str, int]  # dtype, elements


class SlotNumbers:
    """The slots of one level that plans have asked for so far; they are numbered from 0 on each server and stay."""

    def __init__(self, rank_of_node: Mapping[int, int]):
        self._rank_of_node = rank_of_node
        self._slots: dict[tuple[int, SlotClass], list[int]] = {}  # (node, class) -> slot numbers on its server
        self._next_slot = dict.fromkeys(rank_of_node, 0)

    @property
    def total(self) -> int:
        """The number of slots of this level."""
        return sum(self._next_slot.values())

    def ranks(self, nodes: Iterable[int]) -> list[int]:
        """The ranks of the servers on these nodes."""
        return [self._rank_of_node[node] for node in nodes]

    def place(
        self, layout: Layout, node_of_slice: Sequence[int], slot_of_slice: Sequence[int], most: Counter[SlotClass]
    ) -> tuple[list[int], list[m.NewSlots]]:
        """Give the k-th slice of a class on a server its k-th slot of that class; missing slots are numbered and returned too.

        most: the largest number of slices of a class in any layout, and so of slots that a server may need.
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


class PlanSlots:
    """The slots of one job, of both levels where sums have two. They are refused where keys may run out."""

    def __init__(self, nodes: JobNodes):
        self._between, self._within = SlotNumbers(nodes.rank_of_node), SlotNumbers(nodes.site_rank_of_node)  # sites
        count = self._num_servers = len(nodes.rank_of_node) + len(nodes.site_rank_of_node)
        self._most = most_plan_slots(count) if nodes.sites is None else most_site_slots(len(nodes.nodes), count)
        self._most_of_class: Counter[SlotClass] = Counter()  # slices of a class, in the layout that has most of it

    @property
    def total(self) -> int:
        """The number of slots of both levels."""
        return self._between.total + self._within.total

    def reserve(self, layout: Layout) -> None:
        """Raises InputError where plans of this layout and of earlier ones might need more slots on a server than there are keys.

        A server gets a new slot of a class only when a plan gives it more slices of that class than it has slots. So it never
        has more slots of a class than some layout has slices of it. Summed over all classes that is the most slots that a
        server can come to have, whatever the rates and in whatever order plans and layouts come. That sum is checked here.
        """
        for slot_class, count in Counter((s.dtype, s.elements) for s in layout.slices).items():
            self._most_of_class[slot_class] = max(self._most_of_class[slot_class], count)
        if (needed := self._most_of_class.total()) > self._most:
            raise InputError(
                f"one server may come to hold {needed} slices, counting those of earlier layouts, and MXNet's key hash allows "
                f"{self._most} on each of {self._num_servers} servers: use larger slices (--alpha-bytes), or push the same keys "
                "each time"
            )

    def place(self, layout: Layout, plan: Distribution) -> PlacedSlices:
        """Give a plan's slices their slots; missing ones are numbered."""
        slots, new = self._between.place(layout, plan.server_of_slice, plan.slot_of_slice, self._most_of_class)
        leaders, site_new = ([], []) if plan.by_site is None else self._lead(layout, plan.by_site)
        return PlacedSlices(self._between.ranks(plan.server_of_slice), slots, leaders, new + site_new)

    def _lead(self, layout: Layout, by_site: SitePlan) -> tuple[list[m.SiteLeaders], list[m.NewSlots]]:
        """The leaders of each slice within each site, and the slots that they need."""
        leaders, new_slots = [], []
        for nodes, slots in zip(by_site.leader_of_slice, by_site.slot_of_slice, strict=True):
            if not slots:  # a site of one machine
                leaders.append(m.SiteLeaders([], []))
                continue
            numbers, new = self._within.place(layout, nodes, slots, self._most_of_class)
            leaders.append(m.SiteLeaders(self._within.ranks(nodes), numbers))
            new_slots += new
        return leaders, new_slots
