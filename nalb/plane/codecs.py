"""Slices in fewer bytes than float32, in which they are added up.

In a precision, what rounding takes from a value is kept, and added to the next one (error feedback). Tensors of two bytes per value
travel in these, unless the precision has fewer: what they hold arrives exactly, sums are rounded once, and nothing is kept.

    frame       elements (uint32), one scale per block of values, one code per value
    scale       the upper half of a positive float32
    bfloat16    the upper half of each float32, ties to even; no scales
    half        IEEE half precision, ties to even, for tensors of float16; no scales
    float16     IEEE half precision of value / scale * 2^14; the scale is the power of two in the block's largest value
    int8, int4  value / scale as an integer of -127 to 127, of -7 to 7; of int4 two are in a byte, the first one in its lower half

A slice with an infinity, NaN or a value from the codec's limit on has no frame: all of it travels as it is. The limit is 65,520 in
half, where rounding makes infinities, and 2^126 in the others. Rounding is to nearest. An integer scale is at least LOW_SCALE:
smaller values wait until what is kept of them adds up.

Decoding is a few exact or once-rounded operations, alike everywhere: the same frame gives the same bits on every machine.
Loops are numpy's, on bits: its own conversions to and from float16 take longer than all of this together.
Sources: 1-bit SGD (Seide et al., 2014) for error feedback; block-wise scales as in Dettmers et al., 8-bit optimizers, 2022.
"""

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nalb.errors import PeerError
from nalb.planning.slices import BLOCK, MAX_SLICE_ELEMENTS, wire_dtype

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint32]
Scales = npt.NDArray[np.uint16]
Codes = npt.NDArray[np.uint8]

COUNT_BYTES = 4
MAGNITUDE = 0x7FFFFFFF  # of a float32's bits, all but the sign
INFINITE = 0x7F800000  # bits of infinity
LOW_SCALE = 2.0**-120
LOW_SCALE_BITS = 7 << 7  # as its upper half


class Codec:
    """One form of a slice's values. Not for two threads at a time."""

    name: str  # the precision, if it is one
    number: int  # in headers; 0 there is a slice that travels as it is
    has_scales = True
    block = 256  # values that have a scale in common
    bits = 16  # of a code
    LIMIT = 0x7E800000  # bits of 2^126: nothing that is made of smaller values overflows

    def __init__(self) -> None:
        self._frame = np.empty(0, np.uint8)
        self._exact, self._decoded, self._work = (np.empty(0, np.float32) for _ in range(3))

    def frame_bytes(self, elements: int) -> int:
        """The length of a slice's frame."""
        return COUNT_BYTES + 2 * self._blocks(elements) * self.has_scales + self._code_bytes(elements)

    def encode(self, values: Floats, residual: Floats | None = None) -> memoryview | None:
        """The frame of values, which holds until the next one; None: they travel as they are, and the residual is not touched.

        residual: where to write what rounding takes from each value; None: nowhere.
        """
        elements, size = values.size, self._blocks(values.size) * self.block
        if size > self._exact.size:
            self._exact, self._decoded, self._work = (np.empty(size, np.float32) for _ in range(3))
        exact, decoded = self._exact[:size], self._decoded[:size]
        exact[:elements], exact[elements:] = values, 0
        bits = self._work.view(np.uint32)[:size]
        np.bitwise_and(exact.view(np.uint32), MAGNITUDE, out=bits)
        top = self._largest(bits)
        if top.max(initial=0) >= self.LIMIT:
            return None
        frame, scales, codes = self._split_own(elements)
        self._round(exact, top, scales, codes, decoded)
        if residual is not None:
            np.subtract(values, decoded[:elements], out=residual)
        return frame

    def decode(self, frame: Any) -> Floats:
        """The values of a frame. Raises PeerError where it is no frame of this codec."""
        elements, scales, codes = self._split(frame)
        values = np.empty(self._blocks(elements) * self.block, np.float32)
        with np.errstate(all="ignore"):
            self._expand(scales, codes, values)
        return values[:elements]

    def decode_into(self, frame: Any, values: Floats) -> None:
        """Write a frame's values. Raises PeerError where it is no frame of this codec, or of another number of values."""
        decoded = self.decode(frame)
        if decoded.size != values.size:
            raise PeerError(f"sent {decoded.size} values in {self.name} for {values.size}")
        values[:] = decoded

    # ---- frames

    def _blocks(self, elements: int) -> int:
        return -(-elements // self.block)

    def _split_own(self, elements: int) -> tuple[memoryview, Scales, Codes]:
        """The frame to write, its scales, and its codes with room for whole blocks."""
        size_bytes, blocks = self.frame_bytes(elements), self._blocks(elements)
        whole_bytes = self.frame_bytes(blocks * self.block)
        if whole_bytes > self._frame.size:
            self._frame = np.empty(whole_bytes, np.uint8)
        start = COUNT_BYTES + 2 * blocks * self.has_scales
        self._frame[:COUNT_BYTES].view("<u4")[0] = elements
        return (
            self._frame[:size_bytes].data,
            self._frame[COUNT_BYTES:start].view("<u2"),
            self._frame[start:whole_bytes],
        )

    def _split(self, frame: Any) -> tuple[int, Scales, Codes]:
        """Elements, scales, and codes for whole blocks."""
        octets = np.frombuffer(frame, np.uint8)
        elements = int.from_bytes(octets[:COUNT_BYTES].tobytes(), "little") if octets.size >= COUNT_BYTES else -1
        if not 0 <= elements <= MAX_SLICE_ELEMENTS or octets.size != self.frame_bytes(elements):
            raise PeerError(f"sent {octets.size} bytes, which are no frame of {self.name}")
        blocks = self._blocks(elements)
        start = COUNT_BYTES + 2 * blocks * self.has_scales
        scales, codes = octets[COUNT_BYTES:start].view("<u2"), octets[start:]
        if blocks and self.has_scales and not self._are_scales(scales):
            raise PeerError(f"sent a frame of {self.name} with a scale that is none")
        whole_bytes = self._code_bytes(blocks * self.block)
        if codes.size < whole_bytes:
            codes = np.concatenate([codes, np.zeros(whole_bytes - codes.size, np.uint8)])
        return elements, scales, codes

    def _largest(self, magnitudes: Bits) -> Bits:
        """The largest of each block."""
        signed = magnitudes.view(np.int32)  # these are compared faster
        top: Bits = signed.reshape(-1, self.block).max(axis=1).view(np.uint32)
        return top

    # ---- what a codec is

    def _code_bytes(self, elements: int) -> int:
        return -(-elements * self.bits // 8)

    def _are_scales(self, scales: Scales) -> bool:
        """Whether all are scales."""
        raise NotImplementedError

    def _round(self, exact: Floats, top: Bits, scales: Scales, codes: Codes, decoded: Floats) -> None:
        """Write the scales and codes of values below the limit, and what these decode to.

        top: bits of each block's largest magnitude.
        """
        raise NotImplementedError

    def _expand(self, scales: Scales, codes: Codes, values: Floats) -> None:
        """Write what scales and codes decode to."""
        raise NotImplementedError


class BFloat16(Codec):
    """The upper half of each float32: 8 bits of precision, all of its range."""

    name, number, has_scales = "bfloat16", 1, False

    def _round(self, exact: Floats, top: Bits, scales: Scales, codes: Codes, decoded: Floats) -> None:
        del top
        bits = decoded.view(np.uint32)
        np.right_shift(exact.view(np.uint32), np.uint32(16), out=bits)
        np.bitwise_and(bits, np.uint32(1), out=bits)
        np.add(bits, np.uint32(0x7FFF), out=bits)
        np.add(bits, exact.view(np.uint32), out=bits)
        np.right_shift(bits, np.uint32(16), out=bits)
        np.copyto(codes.view("<u2"), bits, casting="unsafe")
        np.left_shift(bits, np.uint32(16), out=bits)
        del scales

    def _expand(self, scales: Scales, codes: Codes, values: Floats) -> None:
        del scales
        bits = values.view(np.uint32)
        np.copyto(bits, codes.view("<u2"))
        np.left_shift(bits, np.uint32(16), out=bits)


def _floats(scales: Scales) -> Floats:
    """Scales as float32, one row each."""
    return (scales.astype(np.uint32) << np.uint32(16)).view(np.float32)[:, np.newaxis]


def _widen(halfs: npt.NDArray[np.uint16], values: Floats) -> None:
    """Write each half times 2^-112, whose bits are the half's, shifted to a float32's place; exponent 31 is as the others."""
    bits = values.view(np.int32)
    np.copyto(bits, halfs.view("<i2"))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(-0x70000001), out=bits)  # all but three copies of the sign


class Half(Codec):
    """Half precision as it is: 11 bits up to 65,504, fewer below 2^-14."""

    name, number, has_scales = "half", 5, False
    LIMIT = 0x477FF000  # bits of 65,520
    # Rounding by one addition: a value of 2^e is added to 2^(e + 15) times 1.0, whose last bit is a half's (XNNPACK, fp16.h).
    UP, BACK = np.float32(2.0**112), np.float32(2.0**-110)

    def _round(self, exact: Floats, top: Bits, scales: Scales, codes: Codes, decoded: Floats) -> None:
        del top, scales
        own, bits, work = exact.view(np.uint32), decoded.view(np.uint32), self._work.view(np.uint32)[: exact.size]
        np.bitwise_and(own, np.uint32(INFINITE), out=work)
        np.maximum(work, np.uint32(0x38800000), out=work)  # of 2^-14
        np.add(work, np.uint32(0x07800000), out=work)
        np.abs(exact, out=decoded)
        np.multiply(decoded, self.UP, out=decoded)
        np.multiply(decoded, self.BACK, out=decoded)
        np.add(decoded, work.view(np.float32), out=decoded)
        np.right_shift(bits, np.uint32(13), out=work)
        np.bitwise_and(work, np.uint32(0x7C00), out=work)
        np.bitwise_and(bits, np.uint32(0x0FFF), out=bits)
        np.add(bits, work, out=bits)
        np.right_shift(own, np.uint32(16), out=work)
        np.bitwise_and(work, np.uint32(0x8000), out=work)
        np.bitwise_or(bits, work, out=bits)
        np.copyto(codes.view("<u2"), bits, casting="unsafe")

    def _expand(self, scales: Scales, codes: Codes, values: Floats) -> None:
        del scales
        _widen(codes.view("<u2"), values)
        np.multiply(values, self.UP, out=values)


class ScaledFloat16(Codec):
    """Half precision, 11 bits, below a power of two per block: small values do not vanish, and large ones do not overflow."""

    name, number, block = "float16", 2, BLOCK["float16"]
    # Bits of a half, shifted to a float32's place, are the half times 2^-112. So exponents 0 to 30 of float32 are those of halfs.
    DOWN, UP = np.float32(2.0**-98), np.float32(2.0**98)

    def _are_scales(self, scales: Scales) -> bool:
        return not (scales & 0x7F).any() and bool(scales.min() > 0 and scales.max() < INFINITE >> 16)

    def _round(self, exact: Floats, top: Bits, scales: Scales, codes: Codes, decoded: Floats) -> None:
        exponent = np.maximum(top >> np.uint32(23), np.uint32(1))
        np.copyto(scales, exponent << np.uint32(7), casting="unsafe")
        inverse = ((np.uint32(254) - exponent) << np.uint32(23)).view(np.float32)[:, np.newaxis]
        rows, bits = decoded.reshape(-1, self.block), decoded.view(np.uint32)
        np.multiply(exact.reshape(-1, self.block), inverse, out=rows)
        np.multiply(decoded, self.DOWN, out=decoded)
        np.add(bits, np.uint32(0x1000), out=bits)
        np.right_shift(bits, np.uint32(13), out=bits)  # the sign is at 2^18, where a half's is at 2^15
        halfs = self._work.view(np.uint32)[: bits.size]
        np.right_shift(bits, np.uint32(3), out=halfs)
        np.bitwise_and(halfs, np.uint32(0x8000), out=halfs)
        np.bitwise_or(halfs, bits, out=halfs)
        np.copyto(codes.view("<u2"), halfs, casting="unsafe")
        np.left_shift(bits, np.uint32(13), out=bits)
        self._scale(rows, scales)

    def _expand(self, scales: Scales, codes: Codes, values: Floats) -> None:
        _widen(codes.view("<u2"), values)
        self._scale(values.reshape(-1, self.block), scales)

    def _scale(self, rows: Floats, scales: Scales) -> None:
        np.multiply(rows, self.UP, out=rows)
        np.multiply(rows, _floats(scales), out=rows)


class ScaledInt8(Codec):
    """An integer of 8 bits per value, and a scale per block."""

    name, number, block = "int8", 3, BLOCK["int8"]
    bits = 8
    MOST = 127  # a code's magnitude

    def _are_scales(self, scales: Scales) -> bool:
        return bool(scales.min() >= LOW_SCALE_BITS and scales.max() < INFINITE >> 16)

    def _pack(self, whole: npt.NDArray[np.int8], codes: Codes) -> None:
        codes[:] = whole.view(np.uint8)

    def _unpack(self, codes: Codes) -> npt.NDArray[np.int8]:
        return codes.view(np.int8)

    def _round(self, exact: Floats, top: Bits, scales: Scales, codes: Codes, decoded: Floats) -> None:
        steps = top.view(np.float32) * np.float32(1 / self.MOST)
        np.copyto(scales, (steps.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16), casting="unsafe")
        np.maximum(scales, LOW_SCALE_BITS, out=scales)
        rows = decoded.reshape(-1, self.block)
        np.multiply(exact.reshape(-1, self.block), 1 / _floats(scales), out=rows)
        np.rint(decoded, out=decoded)
        self._pack(decoded.astype(np.int8), codes)
        np.multiply(rows, _floats(scales), out=rows)

    def _expand(self, scales: Scales, codes: Codes, values: Floats) -> None:
        whole = self._unpack(codes).reshape(-1, self.block)
        np.multiply(whole, _floats(scales), out=values.reshape(-1, self.block))


class ScaledInt4(ScaledInt8):
    """An integer of 4 bits per value, and a scale per block."""

    name, number, block = "int4", 4, BLOCK["int4"]
    bits = 4
    MOST = 7

    def _largest(self, magnitudes: Bits) -> Bits:
        some = magnitudes.view(np.int32)
        for _ in range(self.block.bit_length() - 1):  # several times faster than a reduction of rows as short as these
            some = np.maximum(some[::2], some[1::2])
        return some.view(np.uint32)

    def _pack(self, whole: npt.NDArray[np.int8], codes: Codes) -> None:
        pairs = whole.view("<u2")
        np.copyto(codes, (pairs & np.uint16(0x000F)) | ((pairs >> np.uint16(4)) & np.uint16(0x00F0)), casting="unsafe")

    def _unpack(self, codes: Codes) -> npt.NDArray[np.int8]:
        pairs = codes.astype("<u2")
        # Each code comes into the upper half of its byte.
        np.bitwise_or(pairs << np.uint16(4), pairs << np.uint16(8), out=pairs)
        whole = (pairs & np.uint16(0xF0F0)).view(np.int8)
        return np.right_shift(whole, 4, out=whole)


CODECS: dict[str, type[Codec]] = {one.name: one for one in (BFloat16, ScaledFloat16, ScaledInt8, ScaledInt4)}
OF_HALVES: dict[str, type[Codec]] = {"bfloat16": BFloat16, "float16": Half}  # by dtype
NUMBERS = {one.number: one for codecs in (CODECS, OF_HALVES) for one in codecs.values()}


@cache
def codec_by(number: int) -> Codec:
    """The process's codec of this number."""
    return NUMBERS[number]()


def codec_of(precision: str, dtype: str = "float32") -> Codec | None:
    """The process's codec in which values of a dtype travel in a precision; None: they travel as they are."""
    kind = OF_HALVES.get(dtype) if wire_dtype(dtype, precision) == dtype else CODECS[precision]
    return None if kind is None else codec_by(kind.number)
