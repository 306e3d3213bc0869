"""The format: what is written is read, and no damage passes."""

import hashlib
import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.checkpoints.file import (
    DIGEST_BYTES,
    LENGTH_BYTES,
    MAGIC,
    VERSION,
    Checkpoint,
    OptimizerState,
    Progress,
    decode,
    encode,
)
from nalb.errors import CheckpointError
from tests.checkpoints.examples import example

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool")
counts = st.integers(0, 2**62)
numbers = st.floats(allow_nan=False)


@st.composite
def array(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Of any dtype and shape, zeros of dimensions included, and of any bits."""
    dtype, shape = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.lists(st.integers(0, 4), max_size=3))
    size_bytes = math.prod(shape) * dtype.itemsize
    bits = draw(st.binary(min_size=size_bytes, max_size=size_bytes))
    values = np.frombuffer(bits, np.uint8)
    return (values % 2 if dtype.kind == "b" else values).view(dtype).reshape(shape)


checkpoints = st.builds(
    Checkpoint,
    st.builds(Progress, counts, counts, counts, st.dictionaries(st.text(), numbers, max_size=3)),
    st.dictionaries(
        st.text(),
        st.one_of(st.none(), st.booleans(), st.integers(-(2**62), 2**62), numbers, st.text()),
        max_size=3,
    ),
    st.builds(
        OptimizerState,
        st.text(),
        counts,
        st.dictionaries(st.text(), counts, max_size=3),
        st.dictionaries(st.text(), st.one_of(st.none(), numbers), max_size=3),
    ),
    st.dictionaries(st.text(), array(), max_size=4),
)


def file_of(checkpoint: Checkpoint) -> bytes:
    return b"".join(encode(checkpoint))


@pytest.mark.jobs
@given(checkpoints)
def test_what_is_written_is_read(checkpoint: Checkpoint) -> None:
    read = decode(file_of(checkpoint))
    assert (read.progress, read.settings, read.optimizer) == (
        checkpoint.progress,
        checkpoint.settings,
        checkpoint.optimizer,
    )
    assert list(read.arrays) == list(checkpoint.arrays)
    for name, values in checkpoint.arrays.items():
        assert (read.arrays[name].dtype, read.arrays[name].shape) == (values.dtype, values.shape)
        assert read.arrays[name].tobytes() == values.tobytes()


@given(checkpoints, st.data())
def test_no_damage_passes(checkpoint: Checkpoint, data: st.DataObject) -> None:
    whole = file_of(checkpoint)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), whole[:place], whole + data.draw(st.binary(min_size=1, max_size=40))):
        with pytest.raises(CheckpointError):
            decode(damaged)


def test_a_nan_is_kept() -> None:
    progress = decode(file_of(Checkpoint(Progress(notes={"loss": math.nan}), {}, OptimizerState("SGD"), {}))).progress
    assert math.isnan(progress.notes["loss"])


def test_arrays_that_are_not_contiguous() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T
    read = decode(file_of(Checkpoint(Progress(), {}, OptimizerState("SGD"), {"a": values})))
    np.testing.assert_array_equal(read.arrays["a"], values)


def test_a_dtype_without_a_place() -> None:
    with pytest.raises(CheckpointError, match="array a holds object"):
        file_of(Checkpoint(Progress(), {}, OptimizerState("SGD"), {"a": np.array([None])}))


@pytest.mark.parametrize(("setting", "says"), [([1], "settings 'a'"), (2**70, "this"), (math, "settings 'a' .*module")])
def test_a_setting_that_could_not_be_read_back(setting: Any, says: str) -> None:
    with pytest.raises(CheckpointError, match=f"cannot hold {says}"):
        file_of(Checkpoint(Progress(), {"a": setting}, OptimizerState("SGD"), {}))


def test_a_note_that_is_no_number_is_named() -> None:
    with pytest.raises(CheckpointError, match="cannot hold notes 'loss'"):
        file_of(Checkpoint(Progress(notes={"total": 1.0, "loss": np.zeros(1)}), {}, OptimizerState("SGD"), {}))  # type: ignore[dict-item]


def test_numbers_of_numpy_are_read_as_pythons_own() -> None:
    """A script's loss is np.float32, and a learning rate that it computes np.float64."""
    progress = Progress(np.int64(3), notes={"loss": np.float32(0.5)})  # type: ignore[arg-type, dict-item]
    optimizer = OptimizerState("SGD", numbers={"lr": np.float64(0.1), "last_lr": None})
    settings = {"nesterov": np.bool_(True), "model": np.str_("cnn")}
    read = decode(file_of(Checkpoint(progress, settings, optimizer, {})))  # type: ignore[arg-type]
    assert (read.progress, read.settings) == (Progress(3, notes={"loss": 0.5}), {"nesterov": True, "model": "cnn"})
    assert read.optimizer.numbers == {"lr": 0.1, "last_lr": None}
    assert type(read.optimizer.numbers["lr"]) is float


def signed(header: object, arrays: bytes = b"") -> bytes:
    """A file with a right digest around any header."""
    return signed_bytes(msgspec.msgpack.encode(header), arrays)


def signed_bytes(packed: bytes, arrays: bytes = b"") -> bytes:
    """The same, around what need not be msgpack."""
    content = MAGIC + len(packed).to_bytes(LENGTH_BYTES, "little") + packed + arrays
    return content + hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def header(**changes: object) -> dict[str, object]:
    optimizer = {"kind": "SGD"}
    return {"version": VERSION, "progress": {}, "settings": {}, "optimizer": optimizer, "arrays": []} | changes


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\0" * 100, "torn, or no checkpoint"),
        (signed(header(version=VERSION + 1)), f"format {VERSION + 1}, this nalb reads {VERSION}"),
        (signed(header(version=2, optimizer={"kind": "SGD", "index_updates": {0: 1}})), "format 2, this nalb reads"),
        (signed(header(more=1)), "header cannot be read"),
        (signed([]), "header cannot be read"),
        (signed(header(), b"x"), "arrays are not those of its header"),
        (signed(header(arrays=[{"name": "a", "dtype": "object", "shape": [1]}]), b"x" * 8), "header cannot be read"),
        (signed(header(arrays=[{"name": "a", "dtype": "uint8", "shape": [-1]}])), "header cannot be read"),
        (
            signed(header(arrays=[{"name": "a", "dtype": "uint8", "shape": [2**62, 2**62]}]), b"x"),
            "longer than the file",
        ),
        (signed(header(arrays=[{"name": "a", "dtype": "uint8", "shape": []}] * 2), b"xy"), "not those of its header"),
        (signed(header(arrays=[{"name": "a", "dtype": "uint8", "shape": [0, 2**63]}])), "shape that cannot be"),
        (signed(header(arrays=[{"name": "a", "dtype": "uint8", "shape": [1] * 40}]), b"x"), "shape that cannot be"),
        (signed_bytes(msgspec.msgpack.encode(header()).replace(b"SGD", b"S\xffD")), "header cannot be read"),
    ],
)
def test_what_no_writer_of_ours_wrote(data: bytes, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        decode(data)


def test_the_example_is_whole() -> None:
    assert decode(file_of(example())).progress == example().progress
