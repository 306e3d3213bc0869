"""A job's encryption: off, with keys that are made for this job alone and removed afterwards, or with prepared keys."""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from nalb.errors import InputError
from nalb.launch.roles import Place
from nalb.transport.keys import NodeKeys, key_path, load_keys, make_keys, write_keys


@dataclass(frozen=True)
class Encryption:
    """The encryption that the user asked for."""

    is_on: bool = False
    keys: str | None = None  # directory of prepared keys; None: keys are made for this job

    @property
    def keys_dir(self) -> str | None:
        """The absolute path of the prepared keys' directory; None where keys are made for the job."""
        return None if self.keys is None else str(Path(self.keys).absolute())


def job_keys(encryption: Encryption, places: Sequence[Place]) -> dict[str, NodeKeys]:
    """Each node's keys, made or prepared. Raises InputError where prepared keys are missing or for other nodes or addresses."""
    addresses = {place.name: place.address for place in places}
    if encryption.keys is None:
        return make_keys(addresses)
    keys = {name: load_keys(key_path(encryption.keys, name), name) for name in addresses}
    for name, one in keys.items():
        if one.addresses() != addresses:
            wanted = ",".join(f"{node}={address}" for node, address in addresses.items())
            make = f"nalb keys --nodes {wanted} --out {shlex.quote(encryption.keys)} --force"
            whose = _unlike(one.addresses(), addresses)
            raise InputError(f"{key_path(encryption.keys, name)} is for {whose}: `{make}` makes new ones for all nodes")
    return keys


def _unlike(told: Mapping[str, str], addresses: Mapping[str, str]) -> str:
    """How the nodes and addresses that a key file tells of differ from the job's."""
    if told.keys() != addresses.keys():
        return "other nodes"
    node = next(node for node, address in addresses.items() if told[node] != address)
    return f"another address of {node}, {told[node]} instead of {addresses[node]}"


def own_keys_dir(encryption: Encryption, run_dir: Path) -> Path | None:
    """Where keys that are made for this job lie; None where none are made."""
    return run_dir / "keys" if encryption.is_on and encryption.keys is None else None


def keys_here(encryption: Encryption, places: Sequence[Place], run_dir: Path, stack: ExitStack) -> str | None:
    """A directory with the keys of all nodes on this machine; None without encryption.

    Keys that are made for this job are removed when the stack closes. Raises InputError.
    """
    if not encryption.is_on:
        return None
    keys = job_keys(encryption, places)
    folder = own_keys_dir(encryption, run_dir)
    if folder is None:
        return encryption.keys_dir
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise InputError(
            f"{folder}: no place for the job's own keys ({error.strerror}): choose another --out"
        ) from None
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    write_keys(folder, keys)
    return str(folder)
