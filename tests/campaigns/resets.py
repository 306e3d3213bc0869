"""The TCP connections of a job's processes, by what they carry, and how one is reset: by `ss -K`, as a firewall or a NAT would."""

import socket
import subprocess
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from nalb.errors import MachineError

Namespace = str | None  # None: the one that this process is in


class Connection(NamedTuple):
    """One end of an established TCP connection."""

    namespace: Namespace
    own: str  # address:port
    peer: str  # address:port
    pid: int  # of the process that has this end
    queued_bytes: int = 0  # that came and are not read, or were not sent or not acknowledged


def inside(namespace: Namespace, argv: Sequence[str]) -> list[str]:
    """An argv that runs argv in a network namespace."""
    return [*(["ip", "netns", "exec", namespace] if namespace else []), *argv]


def port_of(address: str) -> int:
    """The port of address:port."""
    return int(address.rpartition(":")[2])


def established(namespaces: Collection[Namespace]) -> list[Connection]:
    """All ends of established connections in these namespaces whose process is known."""
    found = []
    for namespace in namespaces:
        argv = inside(namespace, ["ss", "-tnpH", "state", "established"])
        for line in subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines():
            received, sent, own, peer, *owner = line.split()
            if owner:
                pid = int(owner[0].partition("pid=")[2].partition(",")[0])
                found.append(Connection(namespace, own, peer, pid, int(received) + int(sent)))
    return found


def listening(namespace: Namespace, pid: int) -> int:
    """The port at which a process listens. ProcessLookupError where it does at none."""
    for line in subprocess.run(
        inside(namespace, ["ss", "-tlnpH"]), check=True, capture_output=True, text=True
    ).stdout.splitlines():
        if f"pid={pid}," in line:
            return port_of(line.split()[3])
    raise ProcessLookupError(f"{pid} listens nowhere")


def of_kind(
    kind: str, all_ends: list[Connection], pid: int, roles: dict[int, str], control_port: int
) -> list[Connection]:
    """The process's ends of connections of this kind.

    kind: control (to or from the coordinator), courier (between two workers of MXNet), gloo (between two of PyTorch), ssh (an ssh
    client's) or data (the rest between processes of the job: ps-lite's, or the agents'). roles: of the job's processes, by pid.
    """
    pid_of = {(one.own, one.peer): one.pid for one in all_ends}
    found = []
    for one in all_ends:
        other = pid_of.get((one.peer, one.own), 0)
        if control_port in (port_of(one.own), port_of(one.peer)):
            of = "control"
        elif other != one.pid and roles.get(one.pid) == roles.get(other) == "worker":
            of = "courier"
        else:
            of = "data" if other in roles else "ssh"
        if one.pid == pid and of == ("courier" if kind == "gloo" else kind):
            found.append(one)
    return found


def reset(connection: Connection) -> bool:
    """Reset it; whether it was still there."""
    argv = ["ss", "-tnHK", "src", connection.own, "dst", connection.peer]
    return bool(subprocess.run(inside(connection.namespace, argv), check=True, capture_output=True, text=True).stdout)


def reset_all_to(port: int, namespace: Namespace, for_s: float) -> None:
    """Reset whatever connects to this port, again and again."""
    end_s = time.monotonic() + for_s
    argv = inside(namespace, ["ss", "-tnHK", "dport", "=", f":{port}"])
    while time.monotonic() < end_s:
        subprocess.run(argv, check=True, capture_output=True)


def require_resets() -> None:
    """MachineError where this kernel resets no connections."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        host, port = client.getsockname()
        peer_host, peer_port = client.getpeername()
        if not reset(Connection(None, f"{host}:{port}", f"{peer_host}:{peer_port}", 0)):
            raise MachineError("ss -K resets no connection here: it needs root and a kernel with INET_DIAG_DESTROY")
