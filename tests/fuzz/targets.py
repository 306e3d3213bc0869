"""What reads input that others made, each as a function of one input. Whatever it raises that is not its own error is a defect."""

import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from nalb.checkpoints import folder as checkpoints
from nalb.checkpoints.file import DIGEST_BYTES, LENGTH_BYTES, MAGIC, Header, encode
from nalb.errors import CheckpointError, InputError, PeerError
from nalb.launch.hosts import load_hosts
from nalb.plane.codecs import NUMBERS, codec_by
from nalb.protocol import wire
from nalb.reporting.record import read_record
from nalb.services import composition
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part
from nalb.transport.keys import load_keys, make_keys
from nalb.transport.pieces import (
    Assembly,
    Mark,
    Occasion,
    Portion,
    Sender,
    StatePiece,
    SumPhase,
    SumPiece,
    TokenPiece,
    Word,
    pack,
    pack_header,
    portions,
    unpack,
)
from netem.network_file import carried_networks, parse_network
from tests.checkpoints.examples import example
from tests.fuzz.conversations import EXAMPLES, KINDS, CoordinatorUnderAttack, converse, honest_conversation
from tests.fuzz.mutation import mutate_bytes, mutate_value
from tests.reporting.runs import write_fake_run

Target = Callable[[bytes], None]
PIECES = (
    TokenPiece(TokenId(3, 1, 2), Part.GRADIENT, TokenId(3, 2, 1)),
    SumPiece(3, 1, SumPhase.SCATTER, "float32"),
    StatePiece(3, 1, Occasion.JOINS, 2),
)


def decode_control(data: bytes) -> None:
    """A frame at either end; what is accepted can be sent again."""
    for decode in (lambda frame: composition.decode_at_coordinator(frame, "n9"), composition.decode_at_client):
        with suppress(PeerError):
            wire.encode(decode(data))


def unpack_piece(data: bytes) -> None:
    """Between workers: the header's length in a byte, the header, the elements of a portion."""
    end = 1 + (data[0] if data else 0)
    with suppress(PeerError):
        frames = [memoryview(data[1:end]), memoryview(data[end:])]
        header, elements = unpack(frames if data[end:] else frames[:1])
        if isinstance(header, Portion) and (array := Assembly().add(header, elements)) is not None:
            assert array.nbytes == len(elements) == header.total_bytes
            hash(header.piece)


def decode_slice(data: bytes) -> None:
    """Between agents: the codec's number in a byte, and a slice's frame. What is accepted decodes alike again."""
    if not data or data[0] not in NUMBERS:
        return
    codec = codec_by(data[0])
    with suppress(PeerError):
        values = codec.decode(data[1:])
        assert len(data) - 1 == codec.frame_bytes(values.size)
        room = np.empty_like(values)
        codec.decode_into(data[1:], room)
        assert room.tobytes() == values.tobytes()


def parse_network_text(data: bytes) -> None:
    """A network file; what is accepted has rates at any time."""
    with suppress(InputError, UnicodeDecodeError):
        parse_network(data.decode("utf-8"), "network.toml")


class InFolder:
    """Files that are read by name: written where the next one overwrites them."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.chmod(0o700)  # key files are refused elsewhere
        self.older = checkpoints.write(folder / "checkpoints", example(20), "n0")

    def hosts(self, data: bytes) -> None:
        """A hosts file; no name is looked up."""
        path = self.folder / "hosts.toml"
        path.write_bytes(data)
        with suppress(InputError):
            load_hosts(path)

    def run(self, data: bytes) -> None:
        """run.json and samples.jsonl in one, at the first zero byte."""
        run, _, samples = data.partition(b"\0")
        (self.folder / "run.json").write_bytes(run)
        (self.folder / "samples.jsonl").write_bytes(samples)
        with suppress(InputError):
            read_record(self.folder)

    def checkpoint(self, data: bytes) -> None:
        """A newer checkpoint beside a whole one: as it is, and with a digest as if a writer had meant it so."""
        path = self.older.with_name(checkpoints.file_name(40))
        for content in (data, data + digest(data)):
            path.write_bytes(content)
            try:
                found, skipped = checkpoints.newest(path.parent)
            except CheckpointError:  # as whole as another version's
                assert content[-DIGEST_BYTES:] == digest(content[:-DIGEST_BYTES]), "a damaged one is not passed over"
                continue
            assert found is not None, "the older one is there"
            assert len(skipped) == (found.path == self.older)
            if found.path == path:
                assert content[-DIGEST_BYTES:] == digest(content[:-DIGEST_BYTES]), "a wrong one is taken"
                assert found.checkpoint.progress.iteration == 40
                assert sum(array.nbytes for array in found.checkpoint.arrays.values()) < len(content)

    def keys(self, data: bytes) -> None:
        """A key file."""
        path = self.folder / "n0.keys"
        path.write_bytes(data)
        path.chmod(0o600)
        with suppress(InputError):
            load_keys(path)


def digest(data: bytes) -> bytes:
    """A checkpoint's."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def corpus(target: str) -> list[bytes]:
    """A few good inputs."""
    if target == "control":
        return [wire.encode(message) for message in EXAMPLES]
    if target == "pieces":
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        messages: list[Sequence[bytes | memoryview]] = [
            pack(Sender(1, "job"), 3, 0, next(portions(piece, array))) for piece in PIECES
        ]
        messages += [
            pack_header(one) for one in (Mark(Sender(1, "job"), 7, 0), Word(Sender(1, "job"), 6, 1 << 26, -1, 2, True))
        ]
        return [bytes([len(frames[0])]) + b"".join(frames) for frames in messages]
    if target == "codecs":
        values = np.random.default_rng(0).standard_normal(300).astype(np.float32)
        frames = [(number, codec_by(number).encode(part)) for number in NUMBERS for part in (values, values[200:])]
        return [bytes([number, *(frame or b"")]) for number, frame in frames]
    if target == "conversation":
        return [honest_conversation(5), *(honest_conversation(2, kind) for kind in range(len(KINDS)))]
    if target == "checkpoint":
        whole = b"".join(encode(example(40)))
        return [whole, whole[:-DIGEST_BYTES]]
    if target == "network":
        return [path.read_bytes() for path in carried_networks().values()]
    if target == "keys":
        return [make_keys({"n0": "127.0.0.1", "n1": "127.0.0.2"})["n0"].text().encode()]
    if target == "hosts":
        host = '[[hosts]]\nname = "n{0}"\naddress = "192.0.2.{0}"\nworker = true\nserver = {1}\nport = 22\nuser = "u"\n'
        defaults = (
            '[defaults]\nroot_port = 9091\npython = "python3"\nssh_options = ["A=b"]\n[defaults.environment]\nA = "b"\n'
        )
        return [(defaults + host.format(1, "true") + host.format(2, "false")).encode(), host.format(1, "true").encode()]
    with tempfile.TemporaryDirectory() as folder:
        write_fake_run(Path(folder), nodes=2, iterations=1, schemes=("stock", "aware"), changes=True, tokens=True)
        return [b"\0".join((Path(folder) / name).read_bytes() for name in ("run.json", "samples.jsonl"))]


def byte_targets(folder: Path) -> dict[str, Target]:
    """By name, those that take bytes."""
    files = InFolder(folder)
    return {
        "control": decode_control,
        "pieces": unpack_piece,
        "codecs": decode_slice,
        "conversation": converse,
        "network": parse_network_text,
        "hosts": files.hosts,
        "run": files.run,
        "keys": files.keys,
        "checkpoint": files.checkpoint,
    }


def is_offline(data: bytes) -> bool:
    """Whether a hosts file names addresses only: a mutated name would be looked up."""
    words = [
        line.split(b"=", 1)[1] for line in data.splitlines() if line.lstrip().startswith(b"address") and b"=" in line
    ]
    return all(not word.strip(b" \"'\r").strip(b"0123456789.") for word in words)


def mutate_header(rng: random.Random) -> bytes:
    """A checkpoint without its digest, whose header has other values, in the right form."""
    whole = corpus("checkpoint")[1]
    start = len(MAGIC) + LENGTH_BYTES
    end = start + int.from_bytes(whole[len(MAGIC) : start], "little")
    value = mutate_value(rng, msgspec.to_builtins(msgspec.msgpack.decode(whole[start:end], type=Header)))
    try:
        header = msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        header = b""
    return MAGIC + len(header).to_bytes(LENGTH_BYTES, "little") + header + whole[end:]


def inputs(target: str, seed: int) -> Iterator[bytes]:
    """Without end."""
    rng, seeds = random.Random(seed), corpus(target)
    while True:
        data = mutate_header(rng) if target == "checkpoint" and rng.random() < 0.3 else mutate_bytes(rng, seeds)
        if target != "hosts" or is_offline(data):
            yield data


def steps(target: str, seed: int, folder: Path) -> Callable[[], Any]:
    """One more input of the target with each call; files are written into the folder."""
    if target == "coordinator":
        return CoordinatorUnderAttack(seed).step
    run, source = byte_targets(folder)[target], inputs(target, seed)

    def step() -> None:
        data = next(source)
        try:
            run(data)
        except Exception as error:
            error.add_note(f"input: {data!r}")
            raise

    return step


TARGETS = (
    "control",
    "pieces",
    "codecs",
    "coordinator",
    "conversation",
    "network",
    "hosts",
    "run",
    "keys",
    "checkpoint",
)
