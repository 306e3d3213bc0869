"""Chooses which machine sums each slice within its site, for a plan that says which server sums it over all sites.

An exchange by sites has two levels. Each slice has one owner, the node whose global server sums it over the sites
(`Distribution.server_of_slice`, as in a job without sites). In every site one machine is the slice's leader: its site server
sums the slice for the site, and its worker carries the sum to the owner and the result back. In the owner's own site the owner
leads, so that this sum stays on its loopback. A site of one machine has nothing to sum: its machine leads, without a site server.
"""

from dataclasses import dataclass

import numpy as np

from nalb.planning.assignment import assign, number_slots, whole_bytes
from nalb.planning.levels import even_led_bytes, least_led_bytes
from nalb.planning.nodes import Capacities, Floats
from nalb.planning.sites import Sites
from nalb.planning.slices import Ints, Layout


@dataclass(frozen=True)
class SitePlan:
    """The leaders of one plan's slices."""

    sites: Sites
    leader_of_slice: tuple[tuple[int, ...], ...]  # per site and slice, the index of the leading node among all nodes
    # Per site and slice, its slot on the leader's site server, from 0 for each slot class; () for a site of one machine. The slot
    # is a pair of keys of one size: the site's sum goes through the first, the result for its members through the second.
    slot_of_slice: tuple[tuple[int, ...], ...]
    led_bytes: tuple[
        int, ...
    ]  # per node, the bytes of the slices that it leads; in each site they add up to all slices'

    @property
    def led_shares(self) -> Floats:
        """led_bytes as floats, as the cost model takes them, shape (N,)."""
        return np.array(self.led_bytes, dtype=np.float64)


def choose_leaders(sites: Sites, layout: Layout, owner_of_slice: Ints, capacities: Capacities | None) -> SitePlan:
    """The leaders for these owners: in each site, whole slices that come as near as possible to `levels.even_led_bytes`.

    owner_of_slice: indices of nodes, shape (n,). capacities: with uplinks; None: not known, so the machines of a site lead equal
    parts. A machine leads the slices that it owns. Slices owned in other sites are assigned as in a job without sites
    (assignment.py); probes owned there go to the members in turn. Deterministic. Cost: `assign` for each site.
    """
    sizes, classes = layout.sizes_bytes, layout.class_of_slice
    nodes, site_of_owner = len(sites.of_node), sites.place[owner_of_slice]
    owned = np.bincount(owner_of_slice, sizes, nodes).astype(np.float64)
    total_bytes = int(sizes.sum())  # of gradients in fewer bytes more than the model's: each slice is rounded up
    if capacities is None:
        wanted = least_led_bytes(sites, owned, total_bytes, None)
    else:
        assert capacities.uplinks is not None, "one level has no leaders"
        wanted = even_led_bytes(capacities.uplinks, owned, total_bytes, capacities.rates)
    leaders, slots, led = [], [], np.zeros(nodes)
    for site, members in enumerate(sites.members):
        leader = np.where(site_of_owner == site, owner_of_slice, members[0])
        others = np.flatnonzero(site_of_owner != site)
        here = np.array(members)
        if len(members) > 1 and len(others):
            left = whole_bytes(np.maximum(wanted - owned, 0.0)[here], int(sizes[others].sum()))
            leader[others] = here[assign(left, sizes[others], classes[others], layout.is_probe[others])[0]]
        led += np.bincount(leader, sizes, nodes)
        leaders.append(tuple(leader.tolist()))
        place = np.searchsorted(here, leader)
        slots.append(tuple(number_slots(place, classes, len(members)).tolist()) if len(members) > 1 else ())
    return SitePlan(sites, tuple(leaders), tuple(slots), tuple(led.astype(np.int64).tolist()))
