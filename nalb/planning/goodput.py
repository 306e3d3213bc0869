"""What TCP leaves of a network for data: the capacities behind the goodput bound.

A segment of 1,448 bytes of data takes 66 bytes of headers. Its receiver acknowledges it in the other direction, by a
packet of 66 bytes for all the segments that reach it at once. Every node sends as much data as it receives
(nodes.py), so each direction of a link carries, for 1,448 bytes of its own data,

    1448 + 66 + 66 / k bytes,   k segments per acknowledgement of the data that comes the other way.

Left out, since they depend on how the data are sent: packets that are not full, headers of messages, packets that are
sent again.
"""

import numpy as np
import numpy.typing as npt

from nalb.planning.nodes import Capacities, Floats
from nalb.planning.sites import Sites, Uplinks
from nalb.units import HEADER_BYTES, SEGMENT_BYTES


def goodput_part(segments_per_ack: float | Floats) -> float | Floats:
    """Data per byte that a direction carries, where as much data comes the other way; in (0, 1)."""
    return SEGMENT_BYTES / (SEGMENT_BYTES + HEADER_BYTES * (1 + 1 / segments_per_ack))


def goodput_capacities(capacities: Capacities, segments_per_ack: npt.NDArray[np.int64]) -> Capacities:
    """What headers and the fewest acknowledgements leave of each direction, bytes of data per second.

    segments_per_ack: at most, of the data from node i to node j, shape (N, N), at least 1 off the diagonal, which
    is not read. A node's uplink carries acknowledgements of what it receives, its downlink of what it sends: of all
    peers, the one with the fewest counts, so that no traffic does better. A pair's cap holds for the data from i to
    j, and for acknowledgements of the data from j to i.
    """
    others = ~np.eye(len(capacities.up), dtype=np.bool_)
    received = np.max(segments_per_ack, axis=0, where=others, initial=1)
    sent = np.max(segments_per_ack, axis=1, where=others, initial=1)
    pairs = {(i, j): rate * float(goodput_part(segments_per_ack[j, i])) for (i, j), rate in capacities.pairs.items()}
    uplinks = capacities.uplinks
    if uplinks is not None:
        up, down = (_of_sites(uplinks.sites, goodput_part(acked)) for acked in (received, sent))
        uplinks = Uplinks(uplinks.sites, uplinks.up * up, uplinks.down * down)
    return Capacities(
        capacities.up * goodput_part(received), capacities.down * goodput_part(sent), pairs, None, uplinks
    )


def _of_sites(sites: Sites, parts: float | Floats) -> Floats:
    """The mean over each site's machines, shape (S,): their traffic shares the uplink."""
    of_node = np.broadcast_to(parts, len(sites.of_node))
    return np.array([of_node[list(members)].mean() for members in sites.members])
