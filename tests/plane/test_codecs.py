"""Codecs against slow references: every value arrives as the nearest one that its codec can say, whatever its neighbours are."""

import math
import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nalb.errors import PeerError
from nalb.plane.codecs import CODECS, COUNT_BYTES, LOW_SCALE, NUMBERS, Half, codec_of
from nalb.planning.slices import HALVES, ITEM_BYTES, PRECISIONS, wire_dtype
from tests.plane.halves import rounded_to

NAMES = list(CODECS)
KINDS = pytest.mark.parametrize("kind", NUMBERS.values(), ids=lambda kind: kind.name)
LONGEST = max(kind.block for kind in NUMBERS.values())
FEW = settings(max_examples=60)
BELOW = float(np.nextafter(np.float32(2.0**126), np.float32(0)))  # the largest value that has a frame
RARE = [0.0, -0.0, BELOW, -BELOW, 1e-45, -1e-40]
FLOATS = st.floats(-BELOW, BELOW, width=32) | st.sampled_from([float(np.float32(one)) for one in RARE])
# One block, more, less, and their borders; values of one size, as gradients are, and of all sizes.
VALUES = st.integers(0, 3 * LONGEST).flatmap(
    lambda n: arrays.arrays(np.float32, n, elements=FLOATS, fill=st.floats(-1, 1, width=32))
) | st.tuples(st.integers(1, 3 * LONGEST), st.integers(0, 99), st.integers(-40, 36)).map(
    lambda one: (np.random.default_rng(one[1]).standard_normal(one[0]) * 10.0 ** one[2]).astype(np.float32)
)
SPECIAL = [
    math.inf,
    -math.inf,
    math.nan,
    -math.nan,
    2.0**126,
    -(2.0**126),
    1e38,
    -3.4e38,
]  # whole slices travel as they are


def halfs_nearest(x, scale):
    """The nearest value of IEEE half precision times scale / 2^14."""
    y = abs(x) / scale * 2.0**14
    step = 2.0 ** max(math.frexp(y)[1] - 11, -24)
    return math.copysign(round(y / step) * step / 2.0**14 * scale, x)


def reference(name, block):
    """What each value of a block decodes to, to the nearest; where two are as near, either."""
    top = float(np.abs(block).max())
    for x in map(float, block):
        if name == "bfloat16":
            step = 2.0 ** max(math.frexp(x)[1] - 8, -133)
            yield round(x / step) * step
        elif name == "float16":
            yield halfs_nearest(x, 2.0 ** min(max(math.frexp(top)[1] - 1, -126), 126))
        else:
            most = {"int8": 127, "int4": 7}[name]
            scale = max(upper_half(np.float32(top) * np.float32(1 / most)), LOW_SCALE)
            yield max(min(round(x / scale), most), -most) * scale


def upper_half(x):
    """The next float32 from x on whose lower 16 bits are zero."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    return struct.unpack("<f", struct.pack("<I", (bits + 0xFFFF) >> 16 << 16))[0]


def sent(codec, values, residual=None):
    """What arrives, and what is kept. residual: what was kept before, which is sent too."""
    residual = np.zeros(values.size, np.float32) if residual is None else residual
    return codec.decode(bytes(codec.encode(values + residual, residual))), residual


@pytest.mark.parametrize("name", NAMES)
@given(values=VALUES)
@FEW
def test_the_nearest_value_arrives(name, values):
    codec = codec_of(name)
    frame = bytes(codec.encode(values, residual := np.full(values.size, 7, np.float32)))
    arrived = codec.decode(frame)
    assert len(frame) == codec.frame_bytes(values.size)
    room = np.full(values.size, 7, np.float32)
    codec.decode_into(frame, room)
    assert room.tobytes() == arrived.tobytes()
    for start in range(0, values.size, codec.block):
        block = values[start : start + codec.block]
        for place, expected in enumerate(reference(name, block), start):
            x, got = float(values[place]), float(arrived[place])
            assert abs(got - x) <= abs(expected - x) * (1 + 1e-5) + 2.0**-149, (x, got, expected)
            assert residual[place] == np.float32(x) - np.float32(got)


@pytest.mark.parametrize("name", NAMES)
def test_the_largest_values_do_not_change_those_of_other_blocks(name):
    codec = codec_of(name)
    beside = slice(codec.block, codec.block + 2)
    values = np.zeros(2 * codec.block + 3, np.float32)
    values[:3] = BELOW, -BELOW, -0.0
    values[beside] = 1.0, -0.25
    arrived, residual = sent(codec, values)
    assert np.abs(arrived[:2] / [BELOW, -BELOW] - 1).max() < 0.01
    assert np.abs(arrived[beside] - [1.0, -0.25]).max() <= {"int4": 0.11, "int8": 0.004}.get(name, 0)
    assert not arrived[2 : codec.block].any()
    assert np.isfinite(residual).all()


@KINDS
@given(VALUES.filter(len), st.sampled_from(SPECIAL), st.integers(0, 3 * LONGEST))
@settings(max_examples=20)
def test_a_slice_with_a_value_that_no_frame_tells_has_none(kind, values, special, place):
    values[place % values.size] = special
    residual = np.full(values.size, 7, np.float32)
    assert kind().encode(values, residual) is None
    assert (residual == 7).all()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_makes_up_for_what_is_lost(name):
    """Over 100 rounds what arrived is what was sent, but for the last rounding: nothing drifts."""
    rng, codec = np.random.default_rng(5), codec_of(name)
    size = 3 * codec.block + 5
    mean = rng.standard_normal(size) * 1e-2  # less than a step of int4: without what is kept it would never arrive
    residual = np.zeros(size, np.float32)
    given_in_all, arrived_in_all, steps, plain = (np.zeros(size) for _ in range(4))
    for _ in range(100):
        values = (mean + rng.standard_normal(size) * 1e-3).astype(np.float32)
        values[:: codec.block] = 1
        given_in_all += values
        arrived, residual = sent(codec, values, residual)
        arrived_in_all += arrived
        steps = np.maximum(steps, np.abs(residual))
        plain += sent(codec, values)[0]
    error = np.abs(given_in_all - arrived_in_all)
    assert (error <= steps + 1e-5).all()
    assert error.sum() < np.abs(given_in_all - plain).sum() / 3


def halfway(one):
    """Bits of a float32 between two values of 16 or 19 bits, or next to that."""
    number, dropped, beside = one
    return ((number << dropped) + (1 << (dropped - 1)) + beside) % (1 << 32)


TIES = st.lists(
    st.tuples(st.integers(0, (1 << 19) - 1), st.sampled_from([13, 16]), st.integers(-1, 1)).map(halfway), min_size=1
).map(lambda bits: np.array(bits, np.uint32).view(np.float32))


def arrives(codec, values):
    """What arrives of a slice, by the codec or as it is."""
    frame = codec.encode(values)
    assert frame is None or len(frame) == codec.frame_bytes(values.size)
    return values if frame is None else codec.decode(bytes(frame))


def test_every_value_of_two_bytes_arrives_as_it_is():
    whole = np.arange(1 << 16, dtype=np.uint16)
    for dtype, all_values in (
        ("bfloat16", (whole.astype(np.uint32) << 16).view(np.float32)),
        ("float16", whole.view(np.float16).astype(np.float32)),
    ):
        codec, values = codec_of("float32", dtype), all_values[np.abs(all_values) < 2.0**126]
        assert codec.decode(bytes(codec.encode(values))).tobytes() == values.tobytes()


@given(VALUES | arrays.arrays(np.uint32, st.integers(1, 600)).map(lambda bits: bits.view(np.float32)) | TIES)
@FEW
def test_sums_of_values_of_two_bytes_are_rounded_once(values):
    """By the codec, or by who converts them where they travel as they are."""
    for dtype in HALVES:
        codec, is_nan = codec_of("float16", dtype), np.isnan(values)
        for some in (values, np.where(np.abs(values) < 65520, values, np.float32(0))):
            arrived = arrives(codec, some)
            if some is not values:
                assert arrived.tobytes() == rounded_to(dtype, some).tobytes()
            arrived, expected = rounded_to(dtype, arrived), rounded_to(dtype, some)
            assert arrived[~is_nan].tobytes() == expected[~is_nan].tobytes()


@KINDS
@given(values=VALUES)
@settings(max_examples=20)
def test_frames_do_not_depend_on_frames_before(kind, values):
    codec = kind()
    if kind is Half:
        values = np.clip(values, -65504, 65504)
    sent(codec, np.full(5 * LONGEST, 7, np.float32))
    assert codec.encode(np.full(5 * LONGEST, np.nan, np.float32)) is None
    fresh, _ = sent(kind(), values)
    again, _ = sent(codec, values)
    assert again.tobytes() == fresh.tobytes()


def test_frames_are_as_long_as_plans_suppose():
    for name in NAMES:
        for elements in (0, 1, 15, 16, 17, 255, 256, 257, 9_999, 131_072):
            planned_bytes = elements * ITEM_BYTES[wire_dtype("float32", name)]
            assert planned_bytes <= codec_of(name).frame_bytes(elements) <= planned_bytes + COUNT_BYTES + 3


def test_precisions_are_the_codecs():
    assert ("float32", *NAMES) == PRECISIONS
    assert codec_of("float32") is None
    assert sorted(NUMBERS) == [1, 2, 3, 4, 5]
    assert wire_dtype("float64", "int8") == "float64"


def test_values_of_two_bytes_are_rounded_only_where_that_saves_bytes():
    for dtype in HALVES:
        own = type(codec_of("float32", dtype))
        assert [type(codec_of(one, dtype)) for one in PRECISIONS] == [own, own, own, CODECS["int8"], CODECS["int4"]]
        for one in PRECISIONS:
            planned_bytes = 9_999 * ITEM_BYTES[wire_dtype(dtype, one)]
            assert planned_bytes <= codec_of(one, dtype).frame_bytes(9_999) <= planned_bytes + COUNT_BYTES + 3


@KINDS
def test_frames_that_are_none(kind):
    codec, name = kind(), kind.name
    good = bytes(codec.encode(np.ones(300, np.float32), np.zeros(300, np.float32)))
    for frame in (b"", good[:3], good[:-1], good + b"\0", b"\xff" * 4 + good[4:], struct.pack("<I", 283) + good[4:]):
        with pytest.raises(PeerError, match=f"no frame of {name}"):
            codec.decode(frame)
    with pytest.raises(PeerError, match=f"sent 300 values in {name} for 299"):
        codec.decode_into(good, np.zeros(299, np.float32))
    if codec.has_scales:
        for scale in (0x7F80, 0xFFC0, 0x0000, 0xBF80):  # infinite, not a number, zero, negative
            with pytest.raises(PeerError, match="a scale that is none"):
                codec.decode(good[:4] + struct.pack("<H", scale) + good[6:])
    if name == "float16":
        with pytest.raises(PeerError, match="a scale that is none"):
            codec.decode(good[:4] + struct.pack("<H", 0x3F81) + good[6:])  # no power of two


@KINDS
def test_any_frame_decodes_or_is_refused(kind):
    """A little of what tests/campaigns/fuzz.py does."""
    rng, codec = random.Random(3), kind()
    good = bytes(codec.encode(np.arange(300, dtype=np.float32), np.zeros(300, np.float32)))
    decoded = 0
    for _ in range(500):
        frame = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        try:
            assert codec.decode(frame).size == 300
            decoded += 1
        except PeerError:
            continue
    assert decoded > 100
