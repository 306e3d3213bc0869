"""Who sums each slice within its site, on top of a plan that says who sums it for all.

An exchange by sites has two levels. Each slice has one owner, the node whose global server sums it over the sites
(`Distribution.server_of_slice`, as in a job without sites). In every site one machine is the slice's leader: its site server
sums the slice for the site, and its worker carries the sum to the owner and the result back. In the owner's own site the owner
leads, so that this sum stays on its loopback. A site of one machine has nothing to sum: its machine leads, without a site server.
"""

from dataclasses import dataclass

from nalb.planning.sites import Sites


@dataclass(frozen=True)
class SitePlan:
    """The leaders of one plan."""

    sites: Sites
    leader_of_slice: tuple[tuple[int, ...], ...]  # per site and slice, the index of the leading node among all nodes
    # Per site and slice, its slot on the leader's site server, from 0 for each slot class; () for a site of one machine. The slot
    # is a pair of keys of one size: the site's sum goes through the first, the result for its members through the second.
    slot_of_slice: tuple[tuple[int, ...], ...]
    led_bytes: tuple[int, ...]  # per node, the bytes of the slices that it leads; in each site they add up to the model
