"""`nalb keys --out DIR (--nodes NAME=ADDRESS,... | --hosts FILE) [--force]`: makes a job's keys, one file for each node."""

import argparse
from pathlib import Path

from nalb.errors import InputError, as_text
from nalb.launch.hosts import load_hosts, look_up
from nalb.process.address import LOOPBACK
from nalb.transport.keys import key_path, make_keys, write_keys


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument(
        "--nodes", metavar="N,N,...", help="NAME=ADDRESS of each node, or a host's name alone, which is looked up"
    )
    who.add_argument("--hosts", metavar="FILE", help="the nodes of a hosts file, see docs/hosts.md")
    parser.add_argument("--out", required=True, metavar="DIR", help="directory for the key files")
    parser.add_argument("--force", action="store_true", help="replace the keys that are there")


def main(args: argparse.Namespace) -> int:
    """Make the keys, write the files and print their paths. Raises InputError, MachineError where the disk is full."""
    if args.hosts is not None:
        addresses = {place.name: place.address for place in load_hosts(args.hosts).places()}
    else:
        addresses = parse_nodes(args.nodes)
    folder = Path(args.out)
    write_keys(folder, make_keys(addresses), args.force)
    for name, address in addresses.items():
        print(as_text(f"{key_path(folder, name)}  for {name} at {address}"))
    print("give each node its own file, mode 0600 in a directory of 0700; docs/security.md says what they protect")
    return 0


def parse_nodes(text: str) -> dict[str, str]:
    """The addresses in --nodes, by node name; a node without an address is looked up by its name. Raises InputError."""
    addresses: dict[str, str] = {}
    looked_up: list[str] = []
    for word in text.split(","):
        name, _, address = word.strip().partition("=")
        if not name or name in addresses:
            raise InputError(f"--nodes: {name!r} is empty or repeated: name each node once")
        addresses[name] = look_up(address or name, "--nodes: host", f"{name}=ADDRESS, an IPv4 address")
        looked_up += [] if address else [name]
    if not all(address.startswith(LOOPBACK) for address in addresses.values()):
        for name in looked_up:
            if addresses[name].startswith(LOOPBACK):  # as Debian's /etc/hosts has it for the machine's own name
                raise InputError(
                    f"--nodes: {name!r} leads to {addresses[name]} here, which no other node reaches: give {name}=ADDRESS"
                )
    return addresses
