"""A checkpoint as bytes: all that training needs to go on, and a digest that shows any damage. Pure.

    8 bytes   MAGIC
    8 bytes   length of the header, little-endian
    header    msgpack of Header: progress, settings, optimizer counters, and name, dtype and shape of each array
    arrays    their bytes, little-endian, in the header's order, without gaps
    32 bytes  BLAKE2b over all bytes before

Only msgspec and numpy's frombuffer read a file, and only after its digest was checked: nothing in a file is ever executed.
Choice not taken: mx.nd.save and npz. Neither has a checksum over the whole, and Trainer.save_states writes pickles.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct

from nalb.errors import CheckpointError

MAGIC = b"NALBCKP1"
VERSION = 3
LENGTH_BYTES = 8
HEADER_START = len(MAGIC) + LENGTH_BYTES
DIGEST_BYTES = 32
DIMENSIONS_MOST = 32  # of an array: MXNet's, and numpy's before its version 2

Count = Annotated[int, Meta(ge=0)]
Setting = bool | int | float | str | None
SCALARS = (bool, int, float, str, type(None), np.generic)
DType = Literal["float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool"]


class DamagedError(CheckpointError):
    """The file is not as it was written. A file that another version of nalb wrote is not damaged."""


class Progress(Struct, frozen=True, forbid_unknown_fields=True):
    """Where training goes on: the next iteration, epoch and batch, not the last ones."""

    iteration: Count = 0  # steps taken
    epoch: Count = 0  # counted from 0
    batch: Count = 0  # batches of the epoch already taken
    notes: dict[str, float] = {}  # the script's own figures, such as a running sum of losses


class ArraySpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The name, dtype and shape of one array of the file."""

    name: str
    dtype: DType
    shape: list[Count]


class OptimizerState(Struct, frozen=True, forbid_unknown_fields=True):
    """An optimizer's counters and numbers. Its arrays are among the file's arrays."""

    kind: str  # the class's name
    num_update: Count = 0
    updates: dict[str, Count] = {}  # parameter's name -> updates so far
    numbers: dict[str, float | None] = {}  # learning rate and other numbers that change while training


class Format(Struct, frozen=True):
    """The part of the header that every version has."""

    version: int


class Header(Struct, frozen=True, forbid_unknown_fields=True):
    """The file's header: all but the arrays' bytes."""

    version: int
    progress: Progress
    settings: dict[str, Setting]  # what must be the same when training goes on
    optimizer: OptimizerState
    arrays: list[ArraySpec]


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint file."""

    progress: Progress
    settings: dict[str, Setting]
    optimizer: OptimizerState
    arrays: dict[str, npt.NDArray[Any]]


def encode(checkpoint: Checkpoint) -> Iterator[bytes | memoryview]:
    """Yield the file's bytes piece by piece, without a second copy of the model.

    Raises CheckpointError for values that could not be read back.
    """
    specs: list[ArraySpec] = []
    pieces: list[memoryview] = []
    for name, array in checkpoint.arrays.items():
        if array.dtype.name not in DType.__args__:  # type: ignore[attr-defined]
            raise CheckpointError(f"array {name} holds {array.dtype.name}, which a checkpoint cannot: cast it")
        specs.append(ArraySpec(name, array.dtype.name, list(array.shape)))  # type: ignore[arg-type]
        flat = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1)
        pieces.append(flat.view(np.uint8).data)
    try:
        header = msgspec.msgpack.encode(
            Header(VERSION, checkpoint.progress, checkpoint.settings, checkpoint.optimizer, specs), enc_hook=_python_own
        )
        msgspec.msgpack.decode(header, type=Header)
    except (msgspec.MsgspecError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"a checkpoint cannot hold {_odd_one(checkpoint)} ({error}): give numbers and texts"
        ) from None
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    everything: tuple[bytes | memoryview, ...] = (MAGIC, len(header).to_bytes(LENGTH_BYTES, "little"), header, *pieces)
    for piece in everything:
        digest.update(piece)
        yield piece
    yield digest.digest()


def _python_own(value: object) -> Setting:
    """A number or text of NumPy as Python's own: a loss may be np.float32, and a learning rate np.float64."""
    for numpy_own, own in ((np.bool_, bool), (np.integer, int), (np.floating, float), (np.str_, str)):
        if isinstance(value, numpy_own):
            return own(value)
    raise TypeError(f"its type is {type(value).__name__}")


def _odd_one(checkpoint: Checkpoint) -> str:
    """Name the first value that is neither number nor text, for people."""
    groups: dict[str, Mapping[str, object]] = {
        "notes": checkpoint.progress.notes,
        "settings": checkpoint.settings,
        "the optimizer's": checkpoint.optimizer.numbers,
    }
    values = ((f"{group} {name!r}", value) for group, named in groups.items() for name, value in named.items())
    return next((name for name, value in values if not isinstance(value, SCALARS)), "this")


def progress_in(beginning: bytes, size_bytes: int) -> Progress | None:
    """The progress by the beginning of a file of `size_bytes`; None without a whole header that fits the size: then only `decode`
    says what is wrong. The digest is not checked, so damage within the arrays does not show.
    """
    header_end = _header_end(beginning)
    if not beginning.startswith(MAGIC) or header_end > len(beginning):
        return None
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        header = msgspec.msgpack.decode(beginning[HEADER_START:header_end], type=Header)
        if header.version == VERSION and header_end + sum(map(_bytes_of, header.arrays)) + DIGEST_BYTES == size_bytes:
            return header.progress
    return None


def decode(data: bytes) -> Checkpoint:
    """Check a file's bytes and read them; the arrays are read-only views of `data`.

    Raises CheckpointError, which says what is wrong; DamagedError where these are not the bytes that were written.
    """
    if not data:
        raise DamagedError("it is empty")
    if len(data) < HEADER_START + DIGEST_BYTES or not data.startswith(MAGIC):
        raise DamagedError("it is torn, or no checkpoint")
    view = memoryview(data)
    content_end = len(data) - DIGEST_BYTES
    if hashlib.blake2b(view[:content_end], digest_size=DIGEST_BYTES).digest() != view[content_end:]:
        raise DamagedError("its content does not match its digest: it is torn or damaged")
    header_end = _header_end(view)
    try:
        version = msgspec.msgpack.decode(view[HEADER_START:header_end], type=Format).version
        if version != VERSION:
            raise CheckpointError(f"it has format {version}, this nalb reads {VERSION}: use the one that wrote it")
        header = msgspec.msgpack.decode(view[HEADER_START:header_end], type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"its header cannot be read ({error}): another version of nalb wrote it") from None
    arrays, place = {}, header_end
    for spec in header.arrays:
        dtype = np.dtype(spec.dtype).newbyteorder("<")
        end = place + _bytes_of(spec)
        if end > content_end:
            raise CheckpointError("its arrays are longer than the file")
        try:
            if len(spec.shape) > DIMENSIONS_MOST:
                raise ValueError(f"{len(spec.shape)} dimensions")
            arrays[spec.name] = np.frombuffer(view[place:end], dtype=dtype).reshape(spec.shape)
        except ValueError as error:  # of numpy: a dimension too large beside a zero
            raise CheckpointError(f"array {spec.name} has a shape that cannot be ({error})") from None
        place = end
    if place != content_end or len(arrays) != len(header.arrays):
        raise CheckpointError("its arrays are not those of its header")
    return Checkpoint(header.progress, header.settings, header.optimizer, arrays)


def _header_end(data: bytes | memoryview) -> int:
    return HEADER_START + int.from_bytes(data[len(MAGIC) : HEADER_START], "little")


def _bytes_of(spec: ArraySpec) -> int:
    return int(np.prod(spec.shape, dtype=object)) * np.dtype(spec.dtype).itemsize
