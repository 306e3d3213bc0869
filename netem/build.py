"""Makes a network's namespaces, links and shaping, and takes them down again.

An island: the hub namespace holds a bridge and the hub's end of every link; each node has its own namespace, whose
eth0 is the other end. Both ends are born in their namespaces, so nothing of ours is ever in the root namespace, any
number of networks can use the same addresses at once, and removing the namespaces removes everything.
"""

import hashlib
import os
import socket
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from pyroute2 import IPRoute

from nalb.errors import InputError, MachineError
from netem import cgroups, namespaces, qdiscs, shaping
from netem.network_file import Network
from netem.schedule import pair_caps_at, rates_at

SUBNET_PREFIX = "10.77.0."
SUBNET_BITS = 24
HUB_ADDRESS = SUBNET_PREFIX + "254"
BRIDGE = "br0"
NODE_INTERFACE = "eth0"
# In this order. BBR, the default of some machines, overdrives a bare token bucket: 17 % of its packets were dropped.
CONGESTION_CONTROLS = ("cubic", "reno")
CONNECT_DEADLINE_S = 10.0
NO_PREFIX_ROUTE = 0x200  # IFA_F_NOPREFIXROUTE: we add the route ourselves, with a congestion control on it


def node_address(network: Network, node_name: str) -> str:
    """A node's address: 10.77.0.1 for the first of the file."""
    return SUBNET_PREFIX + str(network.node_names().index(node_name) + 1)


def port_name(network: Network, node_name: str) -> str:
    """The hub's end of a node's link."""
    return f"port{network.node_names().index(node_name)}"


def fingerprint(network: Network) -> str:
    """Tells one network file's content from another's; stands on the bridge of a network that is up."""
    return "nalb " + hashlib.sha256(repr(network).encode()).hexdigest()[:32]


class Claim(Protocol):
    """Who is told that a network becomes this run's, so as to remove it should the run end early."""

    def making_hub(self) -> AbstractContextManager[None]:
        """Around the making of the hub's namespace; at a FileExistsError it is someone else's, and not to be removed."""

    def hub_is_made(self) -> None:
        """The hub's namespace exists: from now on the network is this run's."""


def build(network: Network, claim: Claim) -> None:
    """Build a network that is not up, shape it, and read the shaping back.

    Raises InputError where a network of that name is
    up, MachineError where this machine cannot do it. What was built before an error stays: see `take_down`.
    """
    qdiscs.require(shaping.needed_qdiscs(network))
    congestion_control = _choose_congestion_control()
    hub = namespaces.hub_namespace(network.name)
    already_up = InputError(f"network {network.name} is already up: run `nalb net down` on its file first")
    if namespaces.standing(network.name):
        raise already_up
    try:
        namespaces.create(hub, claim.making_hub())
    except FileExistsError:
        raise already_up from None
    claim.hub_is_made()
    namespaces.inside(hub, disable_ipv6)
    namespaces.inside(hub, disable_bridge_filter)
    namespaces.with_netlink(hub, lambda netlink: _add_bridge(netlink, network, congestion_control))
    for node in network.nodes:
        namespace = namespaces.node_namespace(network.name, node.name)
        namespaces.create(namespace)
        namespaces.inside(namespace, disable_ipv6)
    namespaces.with_netlink(hub, lambda netlink: _add_links(netlink, network))
    for node in network.nodes:
        _set_up_node(network, node.name, congestion_control)
    _check_congestion_control(network, congestion_control)


def take_down(network_name: str) -> list[str]:
    """Kill what runs in a network and remove it; returns the namespaces removed, [] where it was not up.

    The hub's namespace goes last: while it stands, a take-down that was cut short is known to be unfinished, and CPU groups
    are known to be this network's.
    """
    names = namespaces.standing(network_name)
    namespaces.kill_inside(names)
    hub = namespaces.identity(namespaces.hub_namespace(network_name))
    if hub is not None:
        cgroups.remove(cgroups.standing(network_name, hub[1]))
    namespaces.remove(names)
    return names


def interface_index(netlink: IPRoute, name: str) -> int:
    """The index of an interface of ours."""
    found = netlink.link_lookup(ifname=name)
    if not found:
        raise MachineError(f"interface {name} is gone: run `nalb net down` and start again")
    return int(found[0])


def read_fingerprint(network: Network) -> str:
    """The fingerprint on the bridge of the network that is up."""

    def read(netlink: IPRoute) -> str:
        index = interface_index(netlink, BRIDGE)
        return str(netlink.get_links(index)[0].get_attr("IFLA_IFALIAS"))

    return namespaces.with_netlink(namespaces.hub_namespace(network.name), read)


def disable_bridge_filter() -> None:
    """Where the machine has br_netfilter, every bridged packet would also pass through iptables. Raises MachineError."""
    for path in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):
        _set_sysctl(path, "0")


def disable_ipv6() -> None:
    """Address detection and router solicitation would use the shaped links. Raises MachineError."""
    directory = Path("/proc/sys/net/ipv6/conf")
    if directory.is_dir():
        for name in ("all", "default"):
            _set_sysctl(directory / name / "disable_ipv6", "1")


def _set_sysctl(path: Path, value: str) -> None:
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        remedy = "mount /proc/sys writable, in a container by --privileged"
        raise MachineError(f"{path} cannot be written ({error.strerror}): {remedy}") from error


def _choose_congestion_control() -> str:
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    for name in CONGESTION_CONTROLS:
        if name in available:
            return name
    raise MachineError(
        f"this kernel offers {', '.join(available)} as TCP congestion control: load tcp_cubic, since the others"
        " overdrive a shaped link"
    )


def _add_bridge(netlink: IPRoute, network: Network, congestion_control: str) -> None:
    with qdiscs.explained("the hub cannot be built"):
        netlink.link("set", index=interface_index(netlink, "lo"), state="up")
        netlink.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_forward_delay=0, br_mcast_snooping=0)
        index = interface_index(netlink, BRIDGE)
        netlink.link("set", index=index, ifalias=fingerprint(network), state="up")
        _add_address(netlink, index, HUB_ADDRESS, congestion_control)


def _add_links(netlink: IPRoute, network: Network) -> None:
    """Every veth pair, and the downlink shaping on the hub's ends."""
    rates = rates_at(network, 0.0)
    bridge = interface_index(netlink, BRIDGE)
    for node in network.nodes:
        port = port_name(network, node.name)
        descriptor = os.open(
            namespaces.path_of(namespaces.node_namespace(network.name, node.name)), os.O_RDONLY | os.O_CLOEXEC
        )
        try:
            with qdiscs.explained(f"the link of node {node.name} cannot be made"):
                peer = {"ifname": NODE_INTERFACE, "net_ns_fd": descriptor}
                netlink.link("add", ifname=port, kind="veth", peer=peer)
                index = interface_index(netlink, port)
                segments = shaping.passing_segments(network)  # its tbf splits what is too large
                netlink.link("set", index=index, master=bridge, gso_max_segs=segments)
                netlink.link("set", index=index, state="up")
        finally:
            os.close(descriptor)
        egress = shaping.downlink(node, rates)
        qdiscs.install(netlink, index, egress, lambda name: node_address(network, name))
        qdiscs.check(netlink, index, egress, f"{node.name} down")


def _set_up_node(network: Network, node_name: str, congestion_control: str) -> None:
    """The inside of a node: addresses, route, uplink shaping."""
    node = network.nodes[network.node_names().index(node_name)]
    address = node_address(network, node_name)
    egress = shaping.uplink(network, node, rates_at(network, 0.0), pair_caps_at(network, 0.0))

    def set_up(netlink: IPRoute) -> None:
        with qdiscs.explained(f"node {node_name} cannot be set up"):
            index = interface_index(netlink, NODE_INTERFACE)
            netlink.link("set", index=interface_index(netlink, "lo"), state="up")
            netlink.link("set", index=index, gso_max_segs=shaping.bunch_segments(network, egress))
            netlink.link("set", index=index, state="up")
            _add_address(netlink, index, address, congestion_control)
        qdiscs.install(netlink, index, egress, lambda name: node_address(network, name))
        qdiscs.check(netlink, index, egress, f"{node_name} up")

    namespaces.with_netlink(namespaces.node_namespace(network.name, node_name), set_up)


def _add_address(netlink: IPRoute, index: int, address: str, congestion_control: str) -> None:
    """An address, and the route to all others with the congestion control on it (a sysctl would not do: namespaces
    may only choose what the machine's tcp_allowed_congestion_control names)."""
    netlink.addr("add", index=index, address=address, prefixlen=SUBNET_BITS, flags=NO_PREFIX_ROUTE)
    metrics = {"cc_algo": congestion_control}
    network = f"{SUBNET_PREFIX}0/{SUBNET_BITS}"
    netlink.route("add", dst=network, oif=index, scope="link", prefsrc=address, metrics=metrics)


def _check_congestion_control(network: Network, wanted: str) -> None:
    """Connect from every node to the hub, and ask the socket: also shows that every link passes packets."""
    hub = namespaces.hub_namespace(network.name)
    with namespaces.inside(hub, lambda: socket.create_server((HUB_ADDRESS, 0))) as server:
        server.settimeout(CONNECT_DEADLINE_S)
        port = server.getsockname()[1]
        for name in network.node_names():
            namespace = namespaces.node_namespace(network.name, name)
            try:
                with namespaces.inside(
                    namespace, lambda: socket.create_connection((HUB_ADDRESS, port), CONNECT_DEADLINE_S)
                ) as connection:
                    server.accept()[0].close()
                    used = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            except OSError as error:
                raise MachineError(f"node {name} cannot reach the hub ({error}): see `nalb doctor`") from error
            if used.rstrip(b"\0").decode() != wanted:
                raise MachineError(
                    f"node {name}: TCP uses {used!r} where {wanted} was set on its route: this kernel ignores congctl"
                )
