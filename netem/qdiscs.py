"""Puts an `Egress` on an interface over netlink, changes it while packets flow, and reads it back.

A change keeps the qdiscs and classes, and so the packets that wait in them. Handles: `1:` is the root (tbf or htb), `1:1` the htb
class that holds the node's rate, `1:10` onward its leaves, `10:` onward the queues of the leaves. Queues count bytes. The
kernel's netem qdisc is not used for delay and loss, since its queue counts packets of any size, also those that are only delayed.
"""

import ipaddress
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl.tcmsg import plugins

from nalb.errors import MachineError
from nalb.units import mbps_to_bytes_per_s
from netem.namespaces import inside_scratch
from netem.shaping import FRAME_BYTES, Egress

ROOT = 0x10000
ROOT_CLASS = 0x10001
FIRST_LEAF = 0x10
TC_H_ROOT = 0xFFFFFFFF
ETH_P_IP = 0x0800
IP_DESTINATION_OFFSET = 16  # of the destination address within the IPv4 header
TOLERANCE = 1e-3  # relative, between a rate asked for and the kernel's, which is whole bytes per second

# pyroute2 encodes pfifo and not bfifo; both take one number, packets for the one and bytes for the other.
plugins.setdefault("bfifo", plugins["pfifo"])


def install(netlink: IPRoute, index: int, egress: Egress, address_of: Callable[[str], str]) -> None:
    """Shape a bare interface; `address_of` gives a node's IPv4 address. Raises MachineError."""
    with explained("qdiscs cannot be set"):
        if not egress.leaves:
            _set_bucket(netlink, index, egress, "add")
            return
        last = FIRST_LEAF + len(egress.leaves) - 1
        netlink.tc("add", "htb", index=index, parent=TC_H_ROOT, handle=ROOT, default=last)
        _set_classes(netlink, index, egress, "add")
        for number, leaf in enumerate(egress.leaves):
            if leaf.destination is None:
                continue
            address = int(ipaddress.IPv4Address(address_of(leaf.destination)))
            key = f"{address:#010x}/0xffffffff+{IP_DESTINATION_OFFSET}"
            target = ROOT | (FIRST_LEAF + number)
            netlink.tc(
                "add-filter", "u32", index=index, parent=ROOT, prio=1, protocol=ETH_P_IP, target=target, keys=[key]
            )


def change(netlink: IPRoute, index: int, egress: Egress) -> None:
    """Give a shaped interface new numbers; waiting packets stay. Raises MachineError."""
    with explained("rates cannot be changed"):
        if egress.leaves:
            _set_classes(netlink, index, egress, "change")
            return
        _set_bucket(netlink, index, egress, "change")


def check(netlink: IPRoute, index: int, egress: Egress, place: str) -> None:
    """Read the shaping back. Raises MachineError where the kernel holds something else."""
    with explained("qdiscs cannot be read"):
        found = _read(netlink, index)
    for part, wanted in _expected(egress).items():
        got = found.get(part)
        if got is None or abs(got - wanted) > max(1.0, TOLERANCE * wanted):
            raise MachineError(
                f"{place}: {part} is {got} where {wanted:.0f} was set: the kernel's tc does not hold what was asked;"
                " run `nalb net down` and see docs/network-files.md"
            )


def require(kinds: tuple[str, ...]) -> None:
    """Try each qdisc in a scratch namespace. Raises MachineError, which names the qdiscs that the kernel lacks."""
    options = {
        "tbf": {"rate": 1_000_000, "burst": 10_000, "limit": 10_000},
        "htb": {"default": 1},
        "bfifo": {"limit": 10_000},
    }

    def lacking() -> list[str]:
        missing = []
        with IPRoute() as netlink:
            for kind in kinds:
                try:
                    netlink.tc("add", kind, index=1, parent=TC_H_ROOT, handle=ROOT, **options[kind])
                    netlink.tc("del", index=1, parent=TC_H_ROOT, handle=ROOT)
                except NetlinkError:
                    missing.append(kind)
        return missing

    missing = inside_scratch(lacking)
    if missing:
        raise MachineError(f"this kernel lacks the qdisc {', '.join(missing)}: load sch_{missing[0]}")


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn Netlink's errors inside this context into MachineErrors; `what` says what failed."""
    try:
        yield
    except NetlinkError as error:
        raise MachineError(f"{what} ({error}): run as root, and see `nalb doctor`") from error


def _set_bucket(netlink: IPRoute, index: int, egress: Egress, verb: str) -> None:
    """Add or change (`verb`) a token bucket. It is empty while packets wait, so the last one waits for its queue over the rate."""
    options = {
        "rate": mbps_to_bytes_per_s(egress.rate_mbps),
        "burst": egress.burst_bytes,
        "limit": egress.queue_bytes,
    }
    netlink.tc(verb, "tbf", index=index, parent=TC_H_ROOT, handle=ROOT, **_whole(options))


def _set_classes(netlink: IPRoute, index: int, egress: Egress, verb: str) -> None:
    """Add or change (`verb`) all classes and queues of an htb tree."""
    rate = mbps_to_bytes_per_s(egress.rate_mbps)
    own = {"rate": rate, "ceil": rate, "burst": egress.burst_bytes, "cburst": egress.burst_bytes}
    netlink.tc(f"{verb}-class", "htb", index=index, handle=ROOT_CLASS, parent=ROOT, quantum=FRAME_BYTES, **_whole(own))
    for number, leaf in enumerate(egress.leaves):
        minor = FIRST_LEAF + number
        options = {
            "rate": mbps_to_bytes_per_s(leaf.guaranteed_mbps),
            "ceil": mbps_to_bytes_per_s(leaf.ceiling_mbps),
            "burst": leaf.burst_bytes,
            "cburst": leaf.burst_bytes,
            "quantum": leaf.quantum_bytes,
        }
        netlink.tc(f"{verb}-class", "htb", index=index, handle=ROOT | minor, parent=ROOT_CLASS, **_whole(options))
        netlink.tc(verb, "bfifo", index=index, parent=ROOT | minor, handle=minor << 16, limit=leaf.queue_bytes)


def _whole(options: dict[str, float]) -> dict[str, int]:
    return {name: int(value) for name, value in options.items()}


def _expected(egress: Egress) -> dict[str, float]:
    """The numbers that `_read` must find, by name: bytes or bytes per second."""
    rate = mbps_to_bytes_per_s(egress.rate_mbps)
    if not egress.leaves:
        return {"tbf rate": rate, "tbf limit": egress.queue_bytes}
    expected = {f"class {ROOT_CLASS:#x} rate": rate, f"class {ROOT_CLASS:#x} ceil": rate}
    for number, leaf in enumerate(egress.leaves):
        handle = ROOT | (FIRST_LEAF + number)
        expected[f"class {handle:#x} rate"] = mbps_to_bytes_per_s(leaf.guaranteed_mbps)
        expected[f"class {handle:#x} ceil"] = mbps_to_bytes_per_s(leaf.ceiling_mbps)
        expected[f"queue {handle:#x} limit"] = leaf.queue_bytes
    return expected


def _read(netlink: IPRoute, index: int) -> dict[str, float]:
    """The numbers that the kernel holds for an interface, by the names of `_expected`."""
    found: dict[str, float] = {}
    for qdisc in netlink.get_qdiscs(index=index):
        kind, options = qdisc.get_attr("TCA_KIND"), qdisc.get_attr("TCA_OPTIONS")
        if kind == "tbf":
            parameters = options.get_attr("TCA_TBF_PARMS")
            found["tbf rate"], found["tbf limit"] = parameters["rate"], parameters["limit"]
        elif kind == "bfifo":
            found[f"queue {qdisc['parent']:#x} limit"] = options["limit"]
    for shaping_class in netlink.get_classes(index=index):
        if shaping_class.get_attr("TCA_KIND") == "htb":
            parameters = shaping_class.get_attr("TCA_OPTIONS").get_attr("TCA_HTB_PARMS")
            found[f"class {shaping_class['handle']:#x} rate"] = parameters["rate"]
            found[f"class {shaping_class['handle']:#x} ceil"] = parameters["ceil"]
    return found
