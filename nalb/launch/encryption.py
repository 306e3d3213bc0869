"""Whether a job is encrypted, and with which keys: the job's own, made now and removed afterwards, or prepared ones."""

import argparse
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from nalb.errors import InputError
from nalb.launch.roles import Place
from nalb.transport.keys import NodeKeys, key_path, load_keys, make_keys, write_keys


def add_encryption_flags(parser: argparse.ArgumentParser) -> None:
    """How a user chooses."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--encrypt", action="store_true", help="with keys made for this job (default with --hosts)")
    choice.add_argument("--keys", metavar="DIR", help="encrypt with the keys that `nalb keys` made there")
    choice.add_argument("--plain", action="store_true", help="neither encrypt nor authenticate (default otherwise)")


def is_encrypted(args: argparse.Namespace) -> bool:
    """What the flags say; commands without them do not encrypt."""
    if getattr(args, "keys", None) is not None or getattr(args, "encrypt", False):
        return True
    return getattr(args, "hosts", None) is not None and not getattr(args, "plain", False)


def job_keys(args: argparse.Namespace, places: Sequence[Place]) -> dict[str, NodeKeys]:
    """Each node's keys. InputError where prepared ones are missing or of other nodes or addresses."""
    addresses = {place.name: place.address for place in places}
    if args.keys is None:
        return make_keys(addresses)
    keys = {name: load_keys(key_path(args.keys, name), name) for name in addresses}
    for name, one in keys.items():
        if one.addresses() != addresses:
            wanted = ",".join(f"{node}={address}" for node, address in addresses.items())
            raise InputError(f"{key_path(args.keys, name)} is for other nodes: `nalb keys --nodes {wanted}` makes them")
    return keys


def keys_here(args: argparse.Namespace, places: Sequence[Place], run_dir: Path, stack: ExitStack) -> str | None:
    """A directory with the keys of nodes on this machine, while the stack lasts; None without encryption."""
    if not is_encrypted(args):
        return None
    keys = job_keys(args, places)
    if args.keys is not None:
        return str(Path(args.keys).absolute())
    folder = run_dir / "keys"
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise InputError(
            f"{folder}: no place for the job's own keys ({error.strerror}): choose another --out"
        ) from None
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    write_keys(folder, keys)
    return str(folder)
