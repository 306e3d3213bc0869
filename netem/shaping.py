"""The shaping of each veth end, as numbers. Pure, so that it can be tested without a kernel. qdiscs.py applies rates and
queues, delay_line.py the impairments.

An uplink is the egress of a node's or site's own end of its link, a downlink the egress of the bridge's end. Each is a token
bucket (tbf), except the uplink of a node with capped pairs. That is an htb tree: one leaf for each capped pair, one for all
other traffic.
"""

import math
from dataclasses import dataclass, replace

from nalb.units import HEADER_BYTES, SEGMENT_BYTES, mbps_to_bytes_per_s
from netem.network import Network
from netem.network_tables import Access, Link, NetworkNode, Site
from netem.schedule import NodeRates, PairCaps, access_rates_at, pair_caps_at

FRAME_BYTES = SEGMENT_BYTES + HEADER_BYTES  # a full Ethernet frame at MTU 1500, as tc counts it
BURST_S = 0.001  # measured in docs/network-files.md, "Bursts and queues", as is the next number
MIN_BURST_BYTES = 5 * FRAME_BYTES  # one frame more than a bunch of FEW_SEGMENTS
# How many packets TCP may hand over as one bunch, which costs the kernel hardly more than one packet. tbf splits an arriving bunch
# that is larger than its burst, so bunches are made to fit. htb does not split, so a bunch leaves htb as a burst. If a tbf's burst
# shrinks below a bunch that waits in it, the bunch can never leave. So where rates may change, bunches stay below the smallest
# burst (MIN_BURST_BYTES). See docs/network-files.md, "Bursts and queues".
MOST_SEGMENTS = 16
FEW_SEGMENTS = 4
MIN_QUEUE_BYTES = 10 * FRAME_BYTES  # a shorter queue starves TCP: four duplicate acks need packets in flight
MAX_QUANTUM_BYTES = 60_000  # htb warns above 200,000
LOW_GUARANTEE_MBPS = 0.0003  # htb keeps the time that a burst takes at this rate as 32 bits of 64 ns


@dataclass(frozen=True)
class Impairment:
    """How one direction of a link delays, loses and reorders packets; its rate is set elsewhere."""

    delay_ms: float  # added to each packet
    jitter_ms: float  # spread of the delay
    loss_percent: float  # packets dropped at random
    reorder_percent: float = 0.0  # packets that are not delayed, and so overtake others

    @classmethod
    def of(cls, *parts: "Access | Link | Impairment") -> "Impairment | None":
        """The impairment of parts that a packet passes one after the other: delays add up, the parts kept multiply.

        None if the parts neither delay nor lose anything.
        """
        kept = math.prod(1 - part.loss_percent / 100 for part in parts)
        ordered = math.prod(1 - part.reorder_percent / 100 for part in parts)
        impairment = cls(
            sum(part.delay_ms for part in parts),
            sum(part.jitter_ms for part in parts),
            round(100 * (1 - kept), 6),
            round(100 * (1 - ordered), 6),
        )
        return impairment if impairment.delay_ms or impairment.loss_percent else None


Impairments = dict[str | None, Impairment | None]  # by destination node; None: all other destinations


@dataclass(frozen=True)
class Leaf:
    """One class under an htb root."""

    destination: str | None  # the capped pair's receiving node; None: all other traffic
    guaranteed_mbps: float  # its rate when all leaves are busy
    ceiling_mbps: float  # its highest rate, when other leaves lend theirs
    quantum_bytes: int  # what it sends per turn when leaves borrow
    burst_bytes: int
    queue_bytes: int
    impairment: Impairment | None


@dataclass(frozen=True)
class Egress:
    """The shaping of one interface."""

    rate_mbps: float
    burst_bytes: int
    queue_bytes: int
    impairment: Impairment | None
    leaves: tuple[Leaf, ...]  # empty: a token bucket

    @property
    def impairments(self) -> "Impairments":
        """The impairments of packets that pass the interface, by destination."""
        return {leaf.destination: leaf.impairment for leaf in self.leaves} or {None: self.impairment}

    @property
    def unimpaired(self) -> "Egress":
        """The same egress with rates and queues alone, as qdiscs.py applies it."""
        leaves = tuple(replace(leaf, impairment=None) for leaf in self.leaves)
        return replace(self, impairment=None, leaves=leaves)


def burst_bytes(rate_mbps: float) -> int:
    """The bucket's depth: how many bytes leave at once after a pause."""
    return max(MIN_BURST_BYTES, int(mbps_to_bytes_per_s(rate_mbps) * BURST_S))


def queue_bytes(rate_mbps: float, queue_ms: float) -> int:
    """How many bytes may wait so that none waits longer than queue_ms at the full rate; at least MIN_QUEUE_BYTES."""
    return max(MIN_QUEUE_BYTES, int(mbps_to_bytes_per_s(rate_mbps) * queue_ms / 1000))


def downlink(access: NetworkNode | Site, rates: NodeRates) -> Egress:
    """The shaping of the bridge's end of a node's or site's link."""
    return _bucket(access, rates[access.name][1])


def uplink(network: Network, access: NetworkNode | Site, rates: NodeRates, caps: PairCaps) -> Egress:
    """The shaping of a node's or site's own end.

    With capped pairs, the leaf of each is guaranteed up/(N-1), or its cap if that is less. The leaf of all other traffic is
    guaranteed the rest, so guarantees sum to the node's rate, apart from those raised to LOW_GUARANTEE_MBPS. Quanta are in
    proportion to guarantees, so busy leaves share the uplink as one TCP flow per peer would.
    """
    up_mbps = rates[access.name][0]
    capped = [link for link in network.links if link.src == access.name]
    plain = _bucket(access, up_mbps)
    if not capped:
        return plain
    each_mbps = max(up_mbps / (len(network.nodes) - 1), LOW_GUARANTEE_MBPS)
    ceilings = [min(caps[(link.src, link.dst)], up_mbps) for link in capped]
    guarantees = [min(ceiling_mbps, each_mbps) for ceiling_mbps in ceilings]
    # ARP and the hub need a way even where every peer is capped.
    rest_mbps = max(up_mbps - sum(guarantees), up_mbps * 0.01, LOW_GUARANTEE_MBPS)
    smallest_mbps, largest_mbps = min(*guarantees, rest_mbps), max(*guarantees, rest_mbps)
    unit_bytes = min(FRAME_BYTES / smallest_mbps, MAX_QUANTUM_BYTES / largest_mbps)

    def leaf(link: Link | None, guaranteed_mbps: float, ceiling_mbps: float) -> Leaf:
        return Leaf(
            link.dst if link else None,
            guaranteed_mbps,
            ceiling_mbps,
            max(FRAME_BYTES, int(guaranteed_mbps * unit_bytes)),
            burst_bytes(ceiling_mbps),
            queue_bytes(ceiling_mbps, access.queue_ms),
            Impairment.of(access, link) if link else Impairment.of(access),
        )

    leaves = [leaf(link, *rates) for link, *rates in zip(capped, guarantees, ceilings, strict=True)]
    leaves.append(leaf(None, rest_mbps, up_mbps))
    return Egress(up_mbps, plain.burst_bytes, plain.queue_bytes, None, tuple(leaves))


def _bucket(access: Access, rate_mbps: float) -> Egress:
    queued = queue_bytes(rate_mbps, access.queue_ms)
    return Egress(rate_mbps, burst_bytes(rate_mbps), queued, Impairment.of(access), ())


def passing_segments(network: Network) -> int:
    """The most packets that may pass a bridge as one bunch."""
    return FEW_SEGMENTS if network.links_change else MOST_SEGMENTS


def fitting_segments(egress: Egress) -> int:
    """How many full packets the egress's bucket lets through at once."""
    return int(0.99 * egress.burst_bytes) // FRAME_BYTES  # the kernel rounds the burst


def bunch_segments(network: Network, node: NetworkNode, rates: NodeRates, caps: PairCaps) -> int:
    """The most packets that a node's TCP may hand to its uplink as one bunch, which its uplink and its site's let through whole."""
    if network.links_change or any(link.src == node.name for link in network.links):
        return FEW_SEGMENTS
    ways: list[NetworkNode | Site] = [node, *(site for site in network.sites if site.name == node.site)]
    return min(MOST_SEGMENTS, *(fitting_segments(uplink(network, way, rates, caps)) for way in ways))


def segments_at_once(network: Network) -> list[list[int]]:
    """The most packets of node i that reach node j at once, as [i][j] in the file's order. TCP acknowledges them by one packet.

    This is a whole bunch of the source, or what the bucket of the target or of its site lets through at once, if that is less and
    takes the bunch apart. Rates are those of 0 s. Where rates change, bunches have one size at all rates.
    """
    rates, caps = access_rates_at(network, 0.0), pair_caps_at(network, 0.0)
    bunches = [bunch_segments(network, node, rates, caps) for node in network.nodes]
    fitting = [fitting_segments(downlink(node, rates)) for node in network.nodes]
    into = {site.name: fitting_segments(downlink(site, rates)) for site in network.sites}

    def at_once(source: int, target: int) -> int:
        one, other = network.nodes[source].site, network.nodes[target].site
        passing = min(bunches[source], fitting[target])
        return passing if other is None or one == other else min(passing, into[other])

    return [[at_once(source, target) for target in range(len(fitting))] for source in range(len(bunches))]


def needed_qdiscs(network: Network) -> tuple[str, ...]:
    """The kernel's qdiscs that this network's rates need."""
    return ("tbf", "htb", "bfifo") if network.links else ("tbf",)


def is_impaired(network: Network, access: NetworkNode | Site) -> bool:
    """Whether the link of a node or site delays or loses anything."""
    parts: list[Access | Link] = [access, *(link for link in network.links if link.src == access.name)]
    has_delays = any(trace.steps[0].delay_ms is not None for trace in access.traces if trace is not None)
    return has_delays or any(part.delay_ms or part.loss_percent for part in parts)
