"""The capacities that TCP leaves for data, from which the goodput bound is computed.

A segment of 1,448 bytes of data takes 66 bytes of headers. Its receiver acknowledges it in the other direction, by one packet of
66 bytes for all segments that arrive at once. Every node sends as much data as it receives (nodes.py). So for 1,448 bytes of its
own data each direction of a link carries

    1448 + 66 + 66 / k bytes,   with k segments per acknowledgement of the other direction's data.

Not counted, since they depend on how the data are sent: packets that are not full, headers of messages, and packets that are sent
again.
"""

import numpy as np
import numpy.typing as npt

from nalb.planning.nodes import Capacities, Floats
from nalb.planning.sites import Sites, Uplinks
from nalb.units import HEADER_BYTES, SEGMENT_BYTES


def goodput_part(segments_per_ack: float | Floats) -> float | Floats:
    """The part of a direction's bytes that is data, in (0, 1), where as much data comes the other way."""
    return SEGMENT_BYTES / (SEGMENT_BYTES + HEADER_BYTES * (1 + 1 / segments_per_ack))


def goodput_capacities(capacities: Capacities, segments_per_ack: npt.NDArray[np.int64]) -> Capacities:
    """The rates that headers and the fewest possible acknowledgements leave for data, bytes of data per second.

    segments_per_ack: the most segments per acknowledgement of the data from node i to node j, shape (N, N), at least 1; the
    diagonal is not read. A node's uplink carries acknowledgements of the data that it receives, its downlink those of the data
    that it sends. The peer with the fewest acknowledgements counts for all, so that no traffic does better. A pair's cap holds for
    the data from i to j together with acknowledgements of the data from j to i.
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
    """The mean of `parts` over each site's machines, whose traffic shares the uplink, shape (S,)."""
    of_node = np.broadcast_to(parts, len(sites.of_node))
    return np.array([of_node[list(members)].mean() for members in sites.members])
