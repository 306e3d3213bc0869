"""Reads hosts files: a TOML file becomes a checked `HostsFile`. docs/hosts.md is the manual.

Every mistake is an InputError of one line that names the file and the field. Unknown fields are errors.
"""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from nalb import toml_file
from nalb.errors import InputError
from nalb.launch.roles import Place
from nalb.process.address import address_of

DEFAULT_ROOT_PORT = 9091  # ps-lite's customary root port; the coordinator takes the next port
DEFAULT_PYTHON = "python3"

# The patterns end with \Z, since $ also matches before a last newline.
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z",
        description="1 to 63 letters, digits, '_', '.' and '-', first a letter or digit",
    ),
]
Address = Annotated[  # the pattern admits nothing that ssh would take for an option
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z", description="an IPv4 address or a host's name")
]
User = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*\Z", description="a user's name")]
Port = Annotated[int, Meta(ge=1, le=65535, description="a port, from 1 to 65535")]
Text = Annotated[
    str,
    Meta(min_length=1, max_length=4096, pattern=r"^[^\x00\n]*\Z", description="one line of at most 4096 characters"),
]
Flag = Annotated[bool, Meta(description="true or false")]
Variable = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", description="a variable's name: letters, digits and '_', first no digit"
    ),
]
Value = Annotated[str, Meta(pattern=r"^[^\x00]*\Z", description="a text, in quotes")]


class _Access(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields that say how ssh enters a host; they may stand in [defaults] and in each of [[hosts]]."""

    user: User | None = None
    port: Port | None = None  # sshd's port
    python: Text | None = None
    directory: Text | None = None
    identity_file: Text | None = None
    known_hosts: Text | None = None
    ssh_options: Annotated[list[Text], Meta(description="a list of texts")] | None = None


class _HostTable(_Access, frozen=True, kw_only=True):
    name: Name
    address: Address
    worker: Flag = True
    server: Flag = True
    site: Name | None = None


class _Defaults(_Access, frozen=True, kw_only=True):
    root_port: Annotated[int, Meta(ge=1, le=65533, description="a port, from 1 to 65533")] = DEFAULT_ROOT_PORT
    environment: Annotated[dict[Variable, Value], Meta(description="variables' names and texts")] = {}


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    hosts: Annotated[list[_HostTable], Meta(description="each as [[hosts]]")]
    defaults: _Defaults = _Defaults()


@dataclass(frozen=True)
class Host:
    """One machine of the job and how to enter it."""

    name: str  # NALB_NODE, and in messages and log names
    address: str  # the address in the file, which ssh is given
    ip: str  # the address as the launcher's machine resolves it; the other hosts reach the host there
    is_worker: bool
    is_server: bool
    site: str | None  # the machines of a site share an uplink; None: this host shares no uplink
    user: str | None  # None: ssh decides
    port: int | None  # sshd's port; None: ssh decides
    python: str  # the interpreter with nalb and mxnet
    directory: str | None  # the command starts in this directory; None: in the login directory
    identity_file: str | None
    known_hosts: str | None  # a known_hosts file for this job, to which unknown hosts are added; None: ssh's own rules
    ssh_options: tuple[str, ...]  # each as it follows ssh's -o


@dataclass(frozen=True)
class HostsFile:
    """The content of a checked hosts file."""

    hosts: tuple[Host, ...]  # the first host also runs the scheduler with the coordinator
    root_port: int
    environment: tuple[tuple[str, str], ...]  # variables that every process gets

    def places(self) -> list[Place]:
        """The hosts as the job's places, in the file's order."""
        return [
            Place(h.name, h.ip, h.is_worker, h.is_server, h.python, is_machine=True, site=h.site) for h in self.hosts
        ]

    def host(self, name: str) -> Host:
        """The host with this name; the name must be in the file."""
        return next(host for host in self.hosts if host.name == name)


def load_hosts(path: str | Path) -> HostsFile:
    """Read and check a hosts file, and resolve its addresses. Raises InputError."""
    document = toml_file.parse(toml_file.read_text(path, "hosts file"), str(path))
    table = toml_file.convert(document, _File, str(path))
    hosts = tuple(_host(str(path), index, one, table.defaults) for index, one in enumerate(table.hosts))
    _check(str(path), hosts)
    return HostsFile(hosts, table.defaults.root_port, tuple(table.defaults.environment.items()))


def look_up(host: str, where: str, remedy: str) -> str:
    """The IPv4 address of a host. Raises InputError, which begins with `where` and says to give `remedy`."""
    try:
        return address_of(host)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is neither a name nor an address"
        raise InputError(f"{where} {host!r} is not known ({why}): give {remedy}") from None


def _host(path: str, index: int, table: _HostTable, defaults: _Defaults) -> Host:
    ip = look_up(table.address, f"{path}: hosts[{index}].address:", "an IPv4 address")
    options = [*(table.ssh_options or []), *(defaults.ssh_options or [])]  # ssh takes the first value it meets
    return Host(
        name=table.name,
        address=table.address,
        ip=ip,
        is_worker=table.worker,
        is_server=table.server,
        site=table.site,
        user=table.user or defaults.user,
        port=table.port or defaults.port,
        python=table.python or defaults.python or DEFAULT_PYTHON,
        directory=table.directory or defaults.directory,
        identity_file=table.identity_file or defaults.identity_file,
        known_hosts=table.known_hosts or defaults.known_hosts,
        ssh_options=tuple(options),
    )


def _check(path: str, hosts: tuple[Host, ...]) -> None:
    for index, host in enumerate(hosts):
        for field, key in (("name", "name"), ("address", "ip")):
            if getattr(host, key) in [getattr(other, key) for other in hosts[:index]]:
                raise InputError(
                    f"{path}: hosts[{index}].{field}: {getattr(host, field)!r} repeats an earlier host's: "
                    "list each host once"
                )
        if not host.is_worker and not host.is_server and index:
            raise InputError(
                f"{path}: hosts[{index}].worker: {host.name} is neither worker nor server: remove the host"
            )
        if len(hosts) > 1 and ipaddress.ip_address(host.ip).is_loopback:
            means = " is this machine's loopback" if host.address == host.ip else f" means {host.ip}"
            raise InputError(
                f"{path}: hosts[{index}].address: {host.address}{means}, which no other host reaches: "
                "give its address in the network"
            )
    for role in ("worker", "server"):
        if not any(getattr(host, f"is_{role}") for host in hosts):
            raise InputError(f"{path}: hosts: none has {role} = true: a job needs at least one {role}")
