"""At which address a job's other nodes reach this one, and its name. Only IPv4: no socket of nalb's is made for IPv6."""

import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress

import psutil

from nalb.errors import InputError

LOOPBACK = ("localhost", "127.")  # beginnings of hosts that are any machine itself
BOOT = "/proc/sys/kernel/random/boot_id"  # drawn anew by each start of a kernel


def own_name(environ: Mapping[str, str]) -> str:
    """NALB_NODE, or the host's name."""
    return environ.get("NALB_NODE") or socket.gethostname()


def own_machine(environ: Mapping[str, str]) -> str:
    """What all processes of this machine have in common, and those of no other one: hosts that were copied have one name."""
    try:
        with open(BOOT, encoding="ascii") as file:
            return f"{own_name(environ)} {file.read().strip()}"
    except OSError:  # a container may have no /proc/sys
        return own_name(environ)


def own_address(environ: Mapping[str, str], master: str | None = None, given_by: str = "MASTER_ADDR=") -> str:
    """NALB_ADDRESS, or the address of the interface that GLOO_SOCKET_IFNAME names, or that of the route to the master.

    master: where the ranks meet; default: MASTER_ADDR. given_by: what gave it, for messages. Raises InputError where there is no
    such address, or where it is a loopback address though ranks run on several machines.
    """
    if told := environ.get("NALB_ADDRESS"):
        return _checked(told)
    if name := environ.get("GLOO_SOCKET_IFNAME"):
        return _of_interface(name.split(",")[0])
    master = master or environ.get("MASTER_ADDR")
    if not master:
        raise InputError(
            "environment variable MASTER_ADDR is not set, and init_method names no host: set NALB_ADDRESS to this machine's IPv4 "
            "address, or to 127.0.0.1 where all ranks run on it"
        )
    try:
        found = towards(master)
    except OSError as error:
        why = (
            "that is an IPv6 address: name an IPv4 one" if ":" in master else f"no route leads there ({error.strerror})"
        )
        raise InputError(f"{given_by}{master}: {why}") from None
    is_alone = environ.get("LOCAL_WORLD_SIZE", "0") == environ.get("WORLD_SIZE")
    if ipaddress.ip_address(found).is_loopback and not master.startswith(LOOPBACK) and not is_alone:
        raise InputError(
            f"{given_by}{master} leads to {found} on this machine, which others do not reach: set NALB_ADDRESS to its IP address"
        )
    return found


def address_of(host: str) -> str:
    """The IPv4 address of a host. Raises OSError where its name is not known, and ValueError where it is no name.

    The C library takes numbers for addresses too, such as 4 for 0.0.0.4. Nobody means these.
    """
    with suppress(OSError):  # it is no address
        socket.inet_aton(host)
        return str(ipaddress.IPv4Address(host))
    return socket.gethostbyname(host)


def _checked(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise InputError(f"environment variable NALB_ADDRESS={text!r} is no IPv4 address") from None


def _of_interface(name: str) -> str:
    found = sorted(_addresses().get(name, []))
    if not found:
        raise InputError(
            f"environment variable GLOO_SOCKET_IFNAME: this machine has no interface {name} with an IPv4 address"
        )
    return found[0]


def interface_of(address: str) -> str | None:
    """The interface that has this IPv4 address and no other one; None where there is none."""
    return next((name for name, addresses in _addresses().items() if addresses == [address]), None)


def _addresses() -> dict[str, list[str]]:
    """The IPv4 addresses of each interface of this machine."""
    every = psutil.net_if_addrs()
    return {name: [one.address for one in found if one.family == socket.AF_INET] for name, found in every.items()}


def towards(host: str) -> str:
    """The local IPv4 address of the route to `host`; nothing is sent. Raises OSError."""
    *_, target = socket.getaddrinfo(host, 9, socket.AF_INET, socket.SOCK_DGRAM)[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(target)
        return str(one.getsockname()[0])
