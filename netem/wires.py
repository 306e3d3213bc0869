"""The links of a network: which interfaces they have, where these are, and what stands on them. Names and numbers alone;
build.py makes them."""

from dataclasses import dataclass

from netem import namespaces, shaping
from netem.network_file import Network, NetworkNode, Site
from netem.schedule import NodeRates, PairCaps

NODE_INTERFACE = "eth0"
SITE_INTERFACE = "uplink"


def port_name(network: Network, node_name: str) -> str:
    """The bridge's end of a node's link."""
    return f"port{network.node_names().index(node_name)}"


@dataclass(frozen=True)
class Wire:
    """The link of a node or of a site: its own end, and a port of the bridge above."""

    access: NetworkNode | Site
    namespace: str  # of the node or site
    interface: str  # its own end, in there
    bridge_namespace: str  # of the node's site, or the hub
    port: str  # the bridge's end, in there

    def uplink(self, network: Network, rates: NodeRates, caps: PairCaps) -> "Shaped":
        """What stands on its own end."""
        egress = shaping.uplink(network, self.access, rates, caps)
        return Shaped(f"{self.access.name} up", self.namespace, self.interface, egress)

    def downlink(self, rates: NodeRates) -> "Shaped":
        """What stands on the bridge's end."""
        egress = shaping.downlink(self.access, rates)
        return Shaped(f"{self.access.name} down", self.bridge_namespace, self.port, egress)


@dataclass(frozen=True)
class Shaped:
    """A shaped interface."""

    label: str  # `n0 up`, for messages
    namespace: str
    interface: str
    egress: shaping.Egress


def wires(network: Network) -> dict[str, Wire]:
    """The link of each node and site, by its name."""
    hub = namespaces.hub_namespace(network.name)
    found: dict[str, Wire] = {}
    for index, site in enumerate(network.sites):
        own = namespaces.node_namespace(network.name, site.name)
        found[site.name] = Wire(site, own, SITE_INTERFACE, hub, f"site{index}")
    for node in network.nodes:
        own = namespaces.node_namespace(network.name, node.name)
        above = namespaces.node_namespace(network.name, node.site) if node.site else hub
        found[node.name] = Wire(node, own, NODE_INTERFACE, above, port_name(network, node.name))
    return found
