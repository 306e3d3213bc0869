"""A job's keys, in one file for each node; a process needs its node's file only.

    nalb keys 1
    node NAME PUBLIC SECRET      the node's own CURVE pair (Curve25519), in hexadecimal
    peer NAME ADDRESS PUBLIC     each node of the job, also this one: its key is let in, and expected at its address

NALB_KEYS names the file. The file must have mode 0600 in a directory of mode 0700, and is refused otherwise.
kvstore_patch/shim/curve.h reads the same file for ps-lite's sockets; nalb/transport/curvezmq.py encrypts the control plane's.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from nalb.errors import InputError, MachineError, is_full
from nalb.process.private_file import open_private
from nalb.settings import Settings

TITLE = "nalb keys 1"
VARIABLE = "NALB_KEYS"
MAX_NODES = 2048  # the same as NODES in curve.h
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")  # the same names as in hosts files
_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Peer:
    """A node's name, address and public key, as all nodes know them."""

    name: str  # the node's NALB_NODE
    address: str  # the node's DMLC_NODE_HOST, without a port
    public: bytes  # 32 bytes


@dataclass(frozen=True)
class NodeKeys:
    """The keys that one node holds: its own pair, and the public keys of all nodes."""

    node: str
    public: bytes
    secret: bytes = field(repr=False)
    peers: tuple[Peer, ...]

    def text(self) -> str:
        """The key file's content."""
        lines = [TITLE, f"node {self.node} {self.public.hex()} {self.secret.hex()}"]
        lines += [f"peer {peer.name} {peer.address} {peer.public.hex()}" for peer in self.peers]
        return "\n".join(lines) + "\n"

    def addresses(self) -> dict[str, str]:
        """The addresses of the job's nodes, by name."""
        return {peer.name: peer.address for peer in self.peers}


def make_keys(addresses: Mapping[str, str]) -> dict[str, NodeKeys]:
    """Make new keys for a job; `addresses` has each node's address by its name. Returns the keys by node name.

    Raises InputError for a name or address that a key file cannot hold, and for two nodes at the same address: peers find a
    server's key by its address, so each node needs an address of its own.
    """
    if not 1 <= len(addresses) <= MAX_NODES:
        raise InputError(f"keys for {len(addresses)} nodes: give 1 to {MAX_NODES}")
    for what, word in [("node name", name) for name in addresses] + [("address", one) for one in addresses.values()]:
        if not _NAME.fullmatch(word):
            raise InputError(f"{what} {word!r}: use at most 63 letters, digits, dots, hyphens and underscores")
    first_at: dict[str, str] = {}
    for name, address in addresses.items():
        if first_at.setdefault(address, name) != name:
            raise InputError(f"nodes {first_at[address]} and {name} are both at {address}: give each its own address")
    pairs = {name: [z85.decode(key) for key in zmq.curve_keypair()] for name in addresses}
    peers = tuple(Peer(name, address, pairs[name][0]) for name, address in addresses.items())
    return {name: NodeKeys(name, public, secret, peers) for name, (public, secret) in pairs.items()}


def key_path(folder: str | os.PathLike[str], node: str) -> Path:
    """The path of a node's key file in a directory of keys."""
    return Path(folder) / f"{node}.keys"


def write_keys(folder: Path, keys: Mapping[str, NodeKeys], force: bool = False) -> None:
    """Write a file of mode 0600 for each node into a directory of mode 0700, which is made if it does not exist.

    Raises InputError where a file exists, unless `force` is set, and where the files cannot be written; MachineError where the disk
    is full. Then the keys of before are as they were, and no file of the new ones is left.
    """
    parts: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_modes(folder, folder.stat(), "700")
        existing = [path for path in (key_path(folder, node) for node in keys) if path.exists()]
        if existing and not force:
            raise InputError(f"{existing[0]} exists: choose another directory, or --force to replace its keys")
        for node, one in keys.items():  # all are written before the first one is replaced
            parts.append(folder / f".{node}.keys.{os.getpid()}")  # no node's name begins with a dot
            with open(parts[-1], "w", opener=open_private, encoding="ascii") as file:
                file.write(one.text())
        for node, part in zip(keys, parts, strict=True):
            part.replace(key_path(folder, node))
    except OSError as error:
        if is_full(error):
            raise MachineError(f"{folder}: {error.strerror}: make room there, or choose another directory") from None
        raise InputError(f"{folder}: keys cannot be written there ({error.strerror}): choose another") from None
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def load_keys(path: str | os.PathLike[str], node: str | None = None) -> NodeKeys:
    """Read and check a key file, which must be that of `node` where this is given. Raises InputError; no message shows a key."""
    try:
        with open(path, encoding="ascii") as file:
            _check_modes(Path(path), os.fstat(file.fileno()), "600")
            _check_modes(Path(path).parent, os.stat(Path(path).parent), "700")
            keys = _parse(str(path), file.read())
    except OSError as error:
        raise InputError(f"key file {path}: cannot be read ({error.strerror}): make keys by `nalb keys`") from None
    except UnicodeDecodeError:
        raise InputError(f"key file {path}: is not text: make keys anew by `nalb keys`") from None
    if node is not None and node != keys.node:
        raise InputError(f"key file {path}: holds the keys of node {keys.node}, this is {node}: name its own file")
    return keys


def own_keys(settings: Settings) -> NodeKeys | None:
    """The keys of this process's node; None in a job without encryption. Raises InputError, as load_keys does."""
    return None if settings.keys_path is None else load_keys(settings.keys_path, settings.node)


def _check_modes(path: Path, status: os.stat_result, mode: str) -> None:
    if status.st_uid != os.geteuid():
        raise InputError(f"{path} belongs to another user (id {status.st_uid}): keys must be your own; chown it")
    if status.st_mode & 0o077:
        raise InputError(f"{path} has mode {stat.S_IMODE(status.st_mode):o}, open to others: chmod {mode} {path}")


def _parse(path: str, text: str) -> NodeKeys:
    lines = text.splitlines()
    if not lines or lines[0] != TITLE:
        raise InputError(f"key file {path}: does not begin with {TITLE!r}: make keys by this version's `nalb keys`")
    own: tuple[str, bytes, bytes] | None = None
    peers: list[Peer] = []
    for number, line in enumerate(lines[1:], 2):
        match line.split(" "):
            case ["node", name, public, secret] if own is None and _are_keys(public, secret):
                own = name, bytes.fromhex(public), bytes.fromhex(secret)
            case ["peer", name, address, public] if _NAME.fullmatch(address) and _are_keys(public):
                peers.append(Peer(name, address, bytes.fromhex(public)))
            case _:
                raise InputError(f"key file {path}: line {number} is damaged: make keys anew by `nalb keys`")
    if len(peers) > MAX_NODES:
        raise InputError(f"key file {path}: lists {len(peers)} nodes: make keys for at most {MAX_NODES}")
    if own is None or not any(peer.name == own[0] and peer.public == own[1] for peer in peers):
        raise InputError(f"key file {path}: lacks the node's own lines: make keys anew by `nalb keys`")
    if zmq.curve_public(z85.encode(own[2])) != z85.encode(own[1]):
        raise InputError(
            f"key file {path}: public and secret key do not belong together: make keys anew by `nalb keys`"
        )
    return NodeKeys(*own, tuple(peers))


def _are_keys(*words: str) -> bool:
    return all(_KEY.fullmatch(word) for word in words)
