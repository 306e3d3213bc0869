"""Checks the host: its ports, the address that it announces, memory, open files, threads."""

import errno
import ipaddress
import os
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from nalb.doctor.finding import Finding

PORTS = (9091, 9092)  # ps-lite's customary root port, and the coordinator's next to it
PROCESS_BYTES = 150e6  # a process with mxnet imported and a small model
SMALLEST_JOB = 7  # scheduler, three servers, three workers: the least that has something to balance
FILES = 1024  # a ps-lite process opens a few sockets per peer, and more than this in jobs of about 100 processes
EVERY_ADDRESS = "0.0.0.0"  # at which PyTorch's store listens
ROUTES = Path("/proc/net/route")
ROUTE_UP = 0x1
ANNOUNCED = "announced address"
GLOO = "GLOO_SOCKET_IFNAME"
# the variables that give an address, and an interface: those of PyTorch's jobs, and then of MXNet's
CHOICES = (("NALB_ADDRESS", GLOO), ("DMLC_NODE_HOST", "DMLC_INTERFACE"))

Addresses = Mapping[str, list[str]]  # interface -> IPv4 addresses


def check_ports(host: str = "127.0.0.1", ports: Sequence[int] = PORTS, needed: bool = False) -> list[Finding]:
    """Check the ports that --hosts jobs use by custom; local and emulated jobs find free ones themselves.

    needed: whether a --hosts job is to use these.
    """
    busy = []
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                busy.append(f"{port} ({'in use' if error.errno == errno.EADDRINUSE else error.strerror})")
    if busy:
        advice = "end what uses them, or give the hosts file another root_port; --local and --network are not affected"
        return [Finding("ports", "FAIL" if needed else "warn", f"not free on {host}: {', '.join(busy)}", advice)]
    return [Finding("ports", "ok", f"free on {host}: {', '.join(map(str, ports))}")]


def local_addresses() -> dict[str, list[str]]:
    """This machine's IPv4 addresses, by interface."""
    found = psutil.net_if_addrs().items()
    return {name: [a.address for a in addresses if a.family == socket.AF_INET] for name, addresses in found}


def default_interface(routes: Path = ROUTES) -> str | None:
    """The interface of the default route with the lowest metric; None without one."""
    try:
        rows = [line.split() for line in routes.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return None
    candidates = [
        (int(row[6]), row[0])
        for row in rows
        if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000" and int(row[3], 16) & ROUTE_UP
    ]
    return min(candidates)[1] if candidates else None


def check_address(
    environ: Mapping[str, str] = os.environ,
    addresses: Callable[[], Addresses] = local_addresses,
    interface_of_route: Callable[[], str | None] = default_interface,
) -> list[Finding]:
    """Check the address at which the other nodes would reach this one."""
    here = addresses()
    for of_address, of_interface in CHOICES:
        if wanted := environ.get(of_address):
            return [_of_address(of_address, wanted, here)]
        if chosen := environ.get(of_interface):
            return [_of_interface(of_interface, chosen, here)]
    interface = interface_of_route()
    own = here.get(interface, []) if interface else []
    if own and not ipaddress.ip_address(own[0]).is_loopback:
        return [Finding(ANNOUNCED, "ok", f"{own[0]} on {interface}, by the default route")]
    advice = (
        "fine for --local and --network; for other jobs bring an interface up, or set DMLC_NODE_HOST to its address"
    )
    return [Finding(ANNOUNCED, "warn", "no default route with an IPv4 address: only this machine can reach it", advice)]


def _of_address(variable: str, wanted: str, here: Addresses) -> Finding:
    holders = [interface for interface, own in here.items() if wanted in own]
    if holders:
        return Finding(ANNOUNCED, "ok", f"{wanted} on {holders[0]}, from {variable}")
    advice = f"unset it, or set it to one of this machine's addresses: {_listed(here)}"
    return Finding(ANNOUNCED, "FAIL", f"{variable}={wanted!r} is no address of this machine", advice)


def _of_interface(variable: str, chosen: str, here: Addresses) -> Finding:
    interface = chosen.split(",")[0] if variable == GLOO else chosen  # gloo takes a list
    own = here.get(interface, [])
    own = sorted(own) if variable == GLOO else own  # as nalb.process.address
    if not own:
        advice = f"set it to one of: {', '.join(sorted(i for i, a in here.items() if a)) or 'none has an address'}"
        return Finding(ANNOUNCED, "FAIL", f"{variable}={chosen!r} has no IPv4 address", advice)
    if ipaddress.ip_address(own[0]).is_loopback:
        advice = "fine for --local and --network; for other jobs name another interface"
        return Finding(
            ANNOUNCED, "warn", f"{own[0]} on {interface}, by {variable}: only this machine can reach it", advice
        )
    return Finding(ANNOUNCED, "ok", f"{own[0]} on {interface}, by {variable}")


def check_told_address(told: str, addresses: Callable[[], Addresses] = local_addresses) -> list[Finding]:
    """Check the IPv4 address at which the other nodes reach this one by their hosts file."""
    here = addresses()
    if ipaddress.ip_address(told).is_loopback or any(told in own for own in here.values()):
        return [Finding(ANNOUNCED, "ok", f"{told}, from the hosts file")]
    advice = f"give the hosts file one of this machine's addresses: {_listed(here)}"
    return [Finding(ANNOUNCED, "FAIL", f"{told} in the hosts file is no address of this machine", advice)]


def _listed(addresses: Addresses) -> str:
    return ", ".join(sorted(address for own in addresses.values() for address in own)) or "none"


def check_memory(available_bytes: Callable[[], float] = lambda: psutil.virtual_memory().available) -> list[Finding]:
    """Check how many processes the free memory has room for."""
    free = available_bytes()
    processes = int(free // PROCESS_BYTES)
    detail = f"{free / 1e9:.1f} GB free: about {processes} processes of {PROCESS_BYTES / 1e6:.0f} MB and the model"
    if processes < SMALLEST_JOB:
        return [Finding("memory", "FAIL", detail, f"a job of three nodes needs {SMALLEST_JOB} processes: free memory")]
    if processes < 2 * SMALLEST_JOB:
        return [Finding("memory", "warn", detail, "keep to few nodes on this machine: each is a server and a worker")]
    return [Finding("memory", "ok", detail)]


def check_open_files(limit: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]) -> list[Finding]:
    """Check the limit of open files, since ps-lite opens sockets to every peer."""
    soft = limit()
    if soft == resource.RLIM_INFINITY or soft >= FILES:
        shown = "no limit" if soft == resource.RLIM_INFINITY else str(soft)
        return [Finding("open files", "ok", f"ulimit -n: {shown}")]
    detail = f"ulimit -n is {soft}: ps-lite opens sockets to every peer and stops where none is left"
    return [Finding("open files", "warn", detail, f"ulimit -n {FILES}, or more for large jobs")]


def check_threads(environ: Mapping[str, str] = os.environ, cpus: int | None = os.cpu_count()) -> list[Finding]:
    """Check OMP_NUM_THREADS, which says how many OpenMP threads each process of a job starts."""
    chosen = environ.get("OMP_NUM_THREADS")
    if chosen is None:
        detail = f"OMP_NUM_THREADS is not set: a worker of --hosts or --root has all {cpus} CPUs, each process of other jobs one"
        return [Finding("threads", "ok", detail)]
    if not chosen.isdecimal() or int(chosen) < 1:
        return [Finding("threads", "warn", f"OMP_NUM_THREADS={chosen!r} is not a number above 0", "unset it or set 1")]
    if cpus is not None and int(chosen) > cpus:
        return [Finding("threads", "warn", f"OMP_NUM_THREADS={chosen} on {cpus} CPUs", f"set at most {cpus}")]
    return [Finding("threads", "ok", f"OMP_NUM_THREADS={chosen}, {cpus} CPUs")]
