"""The links of a network: their interfaces, the namespaces of these, and the shaping on them. This module has names and numbers
alone; build.py makes the links.

A link is a veth pair. A link that the delay line carries is two pairs, with both inner ends in the hub's namespace.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from msgspec.structs import replace as replace_fields

from netem import namespaces, shaping
from netem.delay_line import Joint, Rule
from netem.network import Network
from netem.network_tables import NetworkNode, Site
from netem.schedule import Numbers

NODE_INTERFACE = "eth0"
SITE_INTERFACE = "uplink"
UNIMPAIRED = shaping.Impairment(0, 0, 0)


def port_name(network: Network, node_name: str) -> str:
    """The name of the bridge's end of a node's link."""
    return f"port{network.node_names().index(node_name)}"


@dataclass(frozen=True)
class Wire:
    """The link of a node or of a site: its own end, and a port of the bridge above."""

    access: NetworkNode | Site
    namespace: str  # of the node or site
    interface: str  # its own end, in there
    bridge_namespace: str  # of the node's site, or the hub
    port: str  # the bridge's end, in there
    joint: Joint | None = None  # if the delay line carries the link, its inner ends; `first` is paired with its own end

    def egresses(self, network: Network, now: Numbers) -> tuple[shaping.Egress, shaping.Egress]:
        """The shaping of the way up and of the way down, with impairments."""
        up_ms, down_ms = now.delays.get(self.access.name, (self.access.delay_ms, self.access.delay_ms))
        up, down = replace_fields(self.access, delay_ms=up_ms), replace_fields(self.access, delay_ms=down_ms)
        return shaping.uplink(network, up, now.rates, now.caps), shaping.downlink(down, now.rates)

    def uplink(self, network: Network, now: Numbers) -> "Shaped":
        """The own end with its shaping."""
        egress, _ = self.egresses(network, now)
        return Shaped(f"{self.access.name} up", self.namespace, self.interface, egress.unimpaired)

    def downlink(self, network: Network, now: Numbers) -> "Shaped":
        """The bridge's end with its shaping."""
        _, egress = self.egresses(network, now)
        return Shaped(f"{self.access.name} down", self.bridge_namespace, self.port, egress.unimpaired)

    def rules(self, network: Network, now: Numbers, address_of: Callable[[str], str]) -> list[Rule]:
        """The delay line's rules for this link; [] if the line does not carry it."""
        if self.joint is None:
            return []
        return [
            Rule(self.joint.number, way, None if name is None else address_of(name), **vars(impairment or UNIMPAIRED))
            for way, egress in enumerate(self.egresses(network, now))
            for name, impairment in egress.impairments.items()
        ]


@dataclass(frozen=True)
class Shaped:
    """An interface and its shaping."""

    label: str  # `n0 up`, for messages
    namespace: str
    interface: str
    egress: shaping.Egress


def wires(network: Network) -> dict[str, Wire]:
    """The link of each node and site, by name."""
    hub = namespaces.hub_namespace(network.name)
    found: dict[str, Wire] = {}
    for index, site in enumerate(network.sites):
        own = namespaces.node_namespace(network.name, site.name)
        found[site.name] = Wire(site, own, SITE_INTERFACE, hub, f"site{index}")
    for node in network.nodes:
        own = namespaces.node_namespace(network.name, node.name)
        above = namespaces.node_namespace(network.name, node.site) if node.site else hub
        found[node.name] = Wire(node, own, NODE_INTERFACE, above, port_name(network, node.name))
    impaired = [name for name, wire in found.items() if shaping.is_impaired(network, wire.access)]
    for number, name in enumerate(impaired):
        found[name] = replace(found[name], joint=_joint(network, number, name))
    return found


def _joint(network: Network, number: int, name: str) -> Joint:
    """The joint of a link. Its seeds depend on the file's seed, the link's name and the direction alone."""
    seeds = [hashlib.sha256(f"{network.seed}/{name}/{way}".encode()).digest() for way in ("up", "down")]
    up, down = (int.from_bytes(seed[:8], "big") for seed in seeds)
    return Joint(number, f"own{number}", f"line{number}", (up, down))
