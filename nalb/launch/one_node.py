"""One node of a job whose other nodes another launcher starts by the same command line: Slurm, Kubernetes, MPI, or people.

Such a node knows where node 0 is, how many nodes there are, and which one it is. It does not know the others' addresses: they come
with the job's own messages. The coordinator runs on node 0.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nalb.errors import InputError
from nalb.launch.encryption import Encryption
from nalb.launch.hosts import DEFAULT_ROOT_PORT
from nalb.launch.roles import Place, ProcessSpec, Program
from nalb.options import JobOptions, options_in
from nalb.process.address import address_of, own_address, own_name
from nalb.settings import STARTUP_S, check_node
from nalb.transport.keys import key_path, load_keys

NODES_MOST = 2048
LOOK_S = 1.0  # between two look-ups of a name that is not known yet
NOT_KNOWN = "0.0.0.0"  # stands for the other nodes' addresses, which no process of this node is told


@dataclass(frozen=True)
class OneNode:
    """This machine's part in the job."""

    place: Place
    rank: int  # from 0
    nodes: int
    root: str  # node 0's IP address
    port: int  # node 0's scheduler or store listens here, and the coordinator on the next one

    @classmethod
    def found(
        cls, root: str, nodes: int, rank: int, environ: Mapping[str, str], say: Callable[[str], None]
    ) -> "OneNode":
        """Find this machine's name and address. root: HOST or HOST:PORT of node 0; say: tells of a wait. Raises InputError."""
        if not 1 <= nodes <= NODES_MOST:
            raise InputError(f"--nodes {nodes}: choose 1 to {NODES_MOST}")
        if not 0 <= rank < nodes:
            raise InputError(f"--rank {rank}: {nodes} nodes have ranks 0 to {nodes - 1}")
        host, _, word = root.partition(":")
        if not host or (word and not (word.isdecimal() and 1 <= int(word) <= 65534)):
            raise InputError(f"--root {root}: give HOST or HOST:PORT, with a port from 1 to 65534")
        told = {name: environ[name] for name in ("NALB_ADDRESS", "GLOO_SOCKET_IFNAME") if name in environ}
        root_address = _resolved(host, options_in(environ).get("startup_s", STARTUP_S), say)
        own = own_address(told, host, "--root ")
        check_node(name := own_name(environ))
        place = Place(name, own, is_machine=True)
        return cls(place, rank, nodes, own if rank == 0 else root_address, int(word or DEFAULT_ROOT_PORT))

    def check_keys(self, encryption: Encryption) -> None:
        """Raise InputError unless this node has its prepared key, at its address; all of a job's nodes must have keys alike."""
        if not encryption.is_on:
            return
        if encryption.keys is None:
            raise InputError(
                "--root needs keys that last: `nalb keys --out DIR`, then --keys DIR, with its own file on each node; or --plain"
            )
        path, place = key_path(encryption.keys, self.place.name), self.place
        if (address := load_keys(path, place.name).addresses()[place.name]) != place.address:
            raise InputError(
                f"{path} is for {address}, and this node is at {place.address}: set NALB_ADDRESS={address}"
            )

    def specs(
        self, program: Program, options: JobOptions, inherited: Mapping[str, str], keys_dir: str | None
    ) -> list[ProcessSpec]:
        """The processes of this node."""
        places = [Place(f"other {index}", NOT_KNOWN) for index in range(self.nodes)]
        places[0] = Place("other 0", self.root)
        places[self.rank] = self.place
        unknown = {"NALB_ADDRESSES": ""}
        specs = program.specs(places, replace(options, root_port=self.port), inherited, keys_dir, unknown)
        return [spec for spec in specs if spec.node == self.place.name]


def _resolved(host: str, for_s: float, say: Callable[[str], None]) -> str:
    """The address of a host, whose name may come to be known only once it has started. Raises InputError."""
    end_s, is_told = time.monotonic() + for_s, False
    while True:
        try:
            return address_of(host)
        except (OSError, ValueError) as error:
            if time.monotonic() > end_s or isinstance(error, ValueError):
                raise InputError(f"--root {host}: is not known ({error}): give node 0's name or IPv4 address") from None
        if not is_told:
            say(f"nalb launch: {host} is not known yet: asking for up to {for_s:g} s")
        is_told = True
        time.sleep(LOOK_S)


def number_of(flag: str, word: str) -> int:
    """A number, or that in the environment variable of this name. Raises InputError."""
    text = os.environ.get(word, word)
    if not text.isdecimal():
        why = f"{word} is {text!r}" if word in os.environ else "it is neither a number nor a variable that is set"
        raise InputError(f"{flag} {word}: {why}: give a number, or the environment variable that has it")
    return int(text)
