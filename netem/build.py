"""Makes a network's namespaces, links and shaping, and takes them down again.

The hub's namespace holds a bridge and the hub's end of every link. Each node has its own namespace, whose eth0 is the other end.
A site is a namespace with a bridge of its own: the links of its nodes end there, and one link leads from it to the hub's bridge.
A process in the hub's namespace carries the links that delay or lose packets (delay_line.py).

Both ends of a link are made inside their namespaces, so the root namespace never holds anything of a network. So any number of
networks can use the same addresses at once, and removing the namespaces removes everything.
"""

import hashlib
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from pyroute2 import IPRoute

from nalb.errors import InputError, MachineError
from nalb.process.daemon import Daemon
from netem import cgroups, delay_line, namespaces, qdiscs, shaping
from netem.network import MAX_NODES, Network
from netem.network_tables import Site
from netem.schedule import Numbers
from netem.wires import Shaped, Wire, wires

SUBNET_PREFIX = "10.77.0."
SUBNET_BITS = 24
HUB_ADDRESS = SUBNET_PREFIX + "254"
FIRST_SITE = MAX_NODES + 1  # the last byte of the first site's address
BRIDGE = "br0"
# The first of these that the kernel has is used where the file names none. BBR, the default of some machines, overdrives a token
# bucket without delay: 17 % of its packets were dropped.
CONGESTION_CONTROLS = ("cubic", "reno")
CONNECT_DEADLINE_S = 30.0  # ARP and TCP get through within it where 30 % is lost each way
NO_PREFIX_ROUTE = 0x200  # IFA_F_NOPREFIXROUTE: we add the route ourselves, with a congestion control on it
NUD_PERMANENT = 0x80  # linux/neighbour.h
# The default of net.ipv4.neigh.default.gc_thresh2: with more, the kernel evicts neighbours that are in use.
NEIGHBOURS_MOST = 512
LEFT_UP = ", left up"  # ends the alias of the hub's bridge where the network outlives its builder
NEVER = 2**31 - 1  # hundredths of a second until a bridge forgets a silent node's port and floods: eight months


def node_address(network: Network, node_name: str) -> str:
    """A node's address: 10.77.0.1 for the first of the file."""
    return SUBNET_PREFIX + str(network.node_names().index(node_name) + 1)


def site_address(network: Network, site_name: str) -> str:
    """The address of a site's bridge: 10.77.0.201 for the first of the file."""
    return SUBNET_PREFIX + str(FIRST_SITE + network.site_names().index(site_name))


def addresses(network: Network) -> list[str]:
    """The addresses of all nodes and bridges."""
    nodes = [node_address(network, name) for name in network.node_names()]
    return [*nodes, *(site_address(network, name) for name in network.site_names()), HUB_ADDRESS]


def hardware_address(address: str) -> str:
    """The Ethernet address of the interface with this IPv4 address: its bytes after 02:00, which marks addresses of one's own."""
    return ":".join(f"{byte:02x}" for byte in (2, 0, *map(int, address.split("."))))


def rules_of(network: Network, wire: Wire, now: Numbers) -> list[delay_line.Rule]:
    """The delay line's rules for a link; [] if the line does not carry it."""
    return wire.rules(network, now, lambda name: node_address(network, name))


def fingerprint(network: Network) -> str:
    """A text that tells one network file's content from another's. The bridges of a network that is up have it as their alias."""
    return "nalb " + hashlib.sha256(repr(network).encode()).hexdigest()[:32]


class Claim(Protocol):
    """A party that is told when a network becomes this run's, so that it can remove the network if the run ends early."""

    def making_hub(self) -> AbstractContextManager[None]:
        """A context for making the hub's namespace. After a FileExistsError in it, the namespace is someone else's and stays."""

    def hub_is_made(self) -> None:
        """Note that the hub's namespace exists: from now on the network is this run's."""


def build(network: Network, claim: Claim) -> list[Daemon]:
    """Build a network that is not up, shape it, and read the shaping back. Returns the processes that it needs.

    Raises InputError where a network of that name is up, MachineError where this machine cannot do it. After an error, what was
    built stays: see `take_down`.
    """
    namespaces.require_tool()
    qdiscs.require(shaping.needed_qdiscs(network))
    links = wires(network)
    joints = [wire.joint for wire in links.values() if wire.joint is not None]
    if joints:
        namespaces.inside_scratch(delay_line.require)
    congestion_control = _choose_congestion_control(network.congestion_control)
    hub = namespaces.hub_namespace(network.name)
    already_up = InputError(
        f"network {network.name} is already up, and a job may run in it: end that job, rename this network, or run"
        " `nalb net down` where the network is a leftover"
    )
    if namespaces.standing(network.name):
        raise already_up
    try:
        namespaces.create(hub, claim.making_hub())
    except FileExistsError:
        raise already_up from None
    claim.hub_is_made()
    _add_bridge(network, hub, HUB_ADDRESS, congestion_control)
    for wire in links.values():
        namespaces.create(wire.namespace)
        if isinstance(wire.access, Site):
            _add_bridge(network, wire.namespace, site_address(network, wire.access.name), congestion_control)
        else:
            namespaces.inside(wire.namespace, disable_ipv6)
            if not network.slow_start_after_idle:
                namespaces.inside(wire.namespace, disable_slow_start_after_idle)
    for wire in links.values():
        _add_link(network, wire)
    needed = list[Daemon]()
    if joints:
        start = Numbers.at(network, 0.0)
        rules = [rule for wire in links.values() for rule in rules_of(network, wire, start)]
        needed.append(delay_line.start(hub, joints, rules))
    for wire in links.values():
        _set_up_end(network, wire, congestion_control)
    _check_congestion_control(network, congestion_control)
    return needed


def take_down(network_name: str) -> list[str]:
    """Kill all processes in a network and remove it. Returns the removed namespaces, [] where it was not up.

    The hub's namespace is removed last. While it exists, an interrupted take-down is known to be unfinished, and CPU groups are
    known to be this network's.
    """
    names = namespaces.standing(network_name)
    namespaces.kill_inside(names)
    hub = namespaces.identity(namespaces.hub_namespace(network_name))
    if hub is not None:
        cgroups.remove(cgroups.standing(network_name, hub[1]))
    namespaces.remove(names)
    return names


def interface_index(netlink: IPRoute, name: str) -> int:
    """The index of one of the network's interfaces. Raises MachineError if it is gone."""
    found = netlink.link_lookup(ifname=name)
    if not found:
        raise MachineError(f"interface {name} is gone: run `nalb net down` and start again")
    return int(found[0])


def read_alias(network: Network) -> str:
    """Read the alias of the hub's bridge of the network that is up: a fingerprint, and LEFT_UP or nothing."""

    def read(netlink: IPRoute) -> str:
        index = interface_index(netlink, BRIDGE)
        return str(netlink.get_links(index)[0].get_attr("IFLA_IFALIAS"))

    return namespaces.with_netlink(namespaces.hub_namespace(network.name), read)


def mark_left_up(network: Network) -> None:
    """Note on the hub's bridge that no command owns the network, so that `nalb net verify` may use it."""

    def mark(netlink: IPRoute) -> None:
        with qdiscs.explained("the network cannot be marked"):
            netlink.link("set", index=interface_index(netlink, BRIDGE), ifalias=fingerprint(network) + LEFT_UP)

    namespaces.with_netlink(namespaces.hub_namespace(network.name), mark)


def shape(network: Network, shaped: Shaped) -> None:
    """Put qdiscs on a bare interface, and read them back. Raises MachineError."""

    def install(netlink: IPRoute, index: int) -> None:
        qdiscs.install(netlink, index, shaped.egress, lambda name: node_address(network, name))

    _shape(shaped, install)


def reshape(shaped: Shaped) -> None:
    """Change the qdiscs of a shaped interface while packets flow, and read them back. Raises MachineError."""
    _shape(shaped, lambda netlink, index: qdiscs.change(netlink, index, shaped.egress))


def _shape(shaped: Shaped, apply: Callable[[IPRoute, int], None]) -> None:
    def act(netlink: IPRoute) -> None:
        index = interface_index(netlink, shaped.interface)
        apply(netlink, index)
        qdiscs.check(netlink, index, shaped.egress, shaped.label)

    namespaces.with_netlink(shaped.namespace, act)


def disable_bridge_filter() -> None:
    """Keep bridged packets out of iptables, where br_netfilter would pass them through it. Raises MachineError."""
    for path in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):
        _set_sysctl(path, "0")


def disable_ipv6() -> None:
    """Disable IPv6, whose address detection and router solicitation would use the shaped links. Raises MachineError."""
    directory = Path("/proc/sys/net/ipv6/conf")
    if directory.is_dir():
        for name in ("all", "default"):
            _set_sysctl(directory / name / "disable_ipv6", "1")


def disable_slow_start_after_idle() -> None:
    """Let TCP keep its congestion window over pauses. Raises MachineError."""
    _set_sysctl(Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle"), "0")


def _set_sysctl(path: Path, value: str) -> None:
    try:
        path.write_text(value, encoding="ascii")
    except OSError as error:
        remedy = "mount /proc/sys writable, in a container by --privileged"
        raise MachineError(f"{path} cannot be written ({error.strerror}): {remedy}") from error


def _choose_congestion_control(wanted: str | None) -> str:
    """Choose `wanted`, or else the first of CONGESTION_CONTROLS that the kernel has. Raises MachineError where it has none."""
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    for name in CONGESTION_CONTROLS if wanted is None else (wanted,):
        if name in available:
            return name
    needed = wanted or CONGESTION_CONTROLS[0]
    raise MachineError(
        f"this kernel offers {', '.join(available)} as TCP congestion control, not {needed}: run `modprobe tcp_{needed}`"
    )


def _add_bridge(network: Network, namespace: str, address: str, congestion_control: str) -> None:
    """Add the bridge of the hub or of a site, with an address to which the links that end there are measured."""

    def add(netlink: IPRoute) -> None:
        with qdiscs.explained("a bridge cannot be built"):
            netlink.link("set", index=interface_index(netlink, "lo"), state="up")
            options = {"br_stp_state": 0, "br_forward_delay": 0, "br_mcast_snooping": 0, "br_ageing_time": NEVER}
            netlink.link("add", ifname=BRIDGE, kind="bridge", **options)
            index = interface_index(netlink, BRIDGE)
            netlink.link(
                "set", index=index, ifalias=fingerprint(network), address=hardware_address(address), state="up"
            )
            _add_address(network, netlink, index, address, congestion_control)

    namespaces.inside(namespace, disable_ipv6)
    namespaces.inside(namespace, disable_bridge_filter)
    namespaces.with_netlink(namespace, add)


def _add_link(network: Network, wire: Wire) -> None:
    """Add a link, as a veth pair or as two that the delay line joins, and shape the downlink on the bridge's end."""
    with qdiscs.explained(f"the link of {wire.access.name} cannot be made"):
        if wire.joint is None:
            _add_pair(wire.bridge_namespace, wire.port, wire.namespace, wire.interface)
        else:
            hub = namespaces.hub_namespace(network.name)
            _add_pair(hub, wire.joint.first, wire.namespace, wire.interface)
            _add_pair(hub, wire.joint.second, wire.bridge_namespace, wire.port)
            namespaces.with_netlink(hub, lambda netlink: _open_inner_ends(netlink, wire))

        def add(netlink: IPRoute) -> None:
            index, bridge = interface_index(netlink, wire.port), interface_index(netlink, BRIDGE)
            segments = shaping.passing_segments(network)  # the port's tbf splits bunches that are too large
            netlink.link("set", index=index, master=bridge, gso_max_segs=segments)
            netlink.link("set", index=index, state="up")

        namespaces.with_netlink(wire.bridge_namespace, add)
    shape(network, wire.downlink(network, Numbers.at(network, 0.0)))


def _add_pair(namespace: str, interface: str, peer_namespace: str, peer_interface: str) -> None:
    """Add a veth pair between two namespaces, which may be the same."""
    descriptor = os.open(namespaces.path_of(peer_namespace), os.O_RDONLY | os.O_CLOEXEC)
    try:
        peer = {"ifname": peer_interface, "net_ns_fd": descriptor}
        namespaces.with_netlink(
            namespace, lambda netlink: netlink.link("add", ifname=interface, kind="veth", peer=peer)
        )
    finally:
        os.close(descriptor)


def _open_inner_ends(netlink: IPRoute, wire: Wire) -> None:
    """Bring up the inner ends of a link without ARP: only the delay line uses them, and the hub must not answer there."""
    assert wire.joint is not None
    for name in (wire.joint.first, wire.joint.second):
        netlink.link("set", index=interface_index(netlink, name), arp=False, state="up")


def _set_up_end(network: Network, wire: Wire, congestion_control: str) -> None:
    """Set up the own end of a node or site and shape the uplink on it; give a node its address and route."""
    now = Numbers.at(network, 0.0)

    def set_up(netlink: IPRoute) -> None:
        with qdiscs.explained(f"{wire.access.name} cannot be set up"):
            index = interface_index(netlink, wire.interface)
            if isinstance(wire.access, Site):
                segments, bridge = shaping.passing_segments(network), interface_index(netlink, BRIDGE)
                netlink.link("set", index=index, master=bridge, gso_max_segs=segments, state="up")
                return
            netlink.link("set", index=interface_index(netlink, "lo"), state="up")
            address, segments = (
                node_address(network, wire.access.name),
                shaping.bunch_segments(network, wire.access, now.rates, now.caps),
            )
            netlink.link("set", index=index, gso_max_segs=segments, address=hardware_address(address))
            netlink.link("set", index=index, state="up")
            _add_address(network, netlink, index, address, congestion_control)

    namespaces.with_netlink(wire.namespace, set_up)
    shape(network, wire.uplink(network, now))


def _add_address(network: Network, netlink: IPRoute, index: int, address: str, congestion_control: str) -> None:
    """Add an address, and the route to all others with the congestion control on it.

    A sysctl would not do: namespaces may only choose what the machine's tcp_allowed_congestion_control names.
    """
    netlink.addr("add", index=index, address=address, prefixlen=SUBNET_BITS, flags=NO_PREFIX_ROUTE)
    metrics = {"cc_algo": congestion_control}
    subnet = f"{SUBNET_PREFIX}0/{SUBNET_BITS}"
    netlink.route("add", dst=subnet, oif=index, scope="link", prefsrc=address, metrics=metrics)
    others = [one for one in addresses(network) if one != address]
    # Those that ARP finds fill the machine's one table. But where few are there, ARP is as on any LAN: once a link is back, it lets
    # go at once what TCP would send again seconds later.
    if len(others) * (len(others) + 1) > NEIGHBOURS_MOST:
        for other in others:
            netlink.neigh("add", ifindex=index, dst=other, lladdr=hardware_address(other), state=NUD_PERMANENT)


def _check_congestion_control(network: Network, wanted: str) -> None:
    """Connect from every node to the hub, and check the sockets' congestion control. This shows too that all links pass packets."""
    hub = namespaces.hub_namespace(network.name)
    with namespaces.inside(hub, lambda: socket.create_server((HUB_ADDRESS, 0), backlog=MAX_NODES)) as server:
        for name in network.node_names():
            namespace = namespaces.node_namespace(network.name, name)
            try:
                with namespaces.connect(namespace, server.getsockname(), CONNECT_DEADLINE_S) as connection:
                    used = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            except OSError as error:
                raise MachineError(f"node {name} cannot reach the hub ({error}): see `nalb doctor`") from error
            if used.rstrip(b"\0").decode() != wanted:
                raise MachineError(
                    f"node {name}: TCP uses {used!r} where {wanted} was set on its route: this kernel ignores congctl"
                )
