"""Cuts tensors into slices, the same way on every worker and in the coordinator.

Tensors of one group (one pushpull call) and one dtype form a row: they are laid end to end, the last one first, since
backpropagation completes their gradients in that order. The row is cut into probes, then slices of a common size per dtype, with
small slices at either end and one remainder. A server keeps a slot for each slice that it holds, and a slot's size never changes.
So there are few sizes: per dtype those of probes, of common and of small slices, and one remainder per group. Slices are numbered
in the order in which they leave: by group, probes first, then by place in the row.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nalb.errors import InputError

Ints = npt.NDArray[np.int64]

# Values with one scale, of two bytes, where gradients travel in fewer bytes (nalb/plane/codecs.py). With 256 per scale int4 costs a
# transformer under Adam 1.8 points of accuracy, with 32 it costs 0.5, with 16 it costs 0.3 (docs/precision.md).
BLOCK = {"float16": 256, "int8": 256, "int4": 16}
ITEM_BYTES: dict[str, float] = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
ROUNDED_BYTES = {
    "bfloat16": 2,
    "float16": 2 + 2 / BLOCK["float16"],
    "int8": 1 + 2 / BLOCK["int8"],
    "int4": 0.5 + 2 / BLOCK["int4"],
}  # by precision
PRECISIONS = ("float32", *ROUNDED_BYTES)  # of gradients on their way
HALVES = ("float16", "bfloat16")
ROUNDED = "_as_"  # float32_as_int8: values of float32 that travel as int8
# No dtype travels in a precision of as many bytes as its own.
ITEM_BYTES |= {
    f"{dtype}{ROUNDED}{precision}": item_bytes
    for dtype in ("float32", *HALVES)
    for precision, item_bytes in ROUNDED_BYTES.items()
    if item_bytes < ITEM_BYTES[dtype]
}
NUM_PROBE = 2  # probe slices per server: Cai et al., section 5.2
SIZE_PROBE = 10_000  # elements of a probe slice: Cai et al., section 5.2
# Probes take at most this fraction (1/150) of the model: a slow node with share 0 still carries (N - 2) * NUM_PROBE of them, and
# such a node often sets the pace. With the paper's 10,000 elements MobileNet's bound on wan6-static rises by 2.5 %.
PROBE_PART = 150
# The first answer comes when each server has a slice, all sent side by side, and the last answer travels alone. Meanwhile a link is
# idle in one direction. So the first and last slices of a long row are smaller (ours; measured on wan6-static).
RAMP_PART = 4  # a small slice is this fraction (1/4) of a common one
RAMP_SLICES = 4  # small slices per server at either end; in front the probes, about as small, are counted in
RAMP_LIMIT = 4  # a row has small slices where both ends together take at most this fraction (1/4) of it
LEAST_SLICE_BYTES = 256  # that may be asked for: smaller slices of a model would need more keys than MXNet has
LOW_SLICE_BYTES = 4096  # in smaller slices a message would be mostly headers
MAX_SLICE_ELEMENTS = (
    999_999  # stock ps-lite routes arrays below MXNET_KVSTORE_BIGARRAY_BOUND (default 10^6) by their key
)


def wire_dtype(dtype: str, precision: str) -> str:
    """As what values of this dtype travel, a key of ITEM_BYTES, where gradients travel in this precision."""
    rounded = f"{dtype}{ROUNDED}{precision}"
    return rounded if rounded in ITEM_BYTES else dtype


def value_dtype(dtype: str) -> str:
    """The dtype of the values that travel so."""
    return dtype.partition(ROUNDED)[0]


def sum_dtype(dtype: str) -> str:
    """The dtype in which agents hold and add up values of this dtype."""
    return "float32" if dtype in HALVES else dtype


def size_bytes(elements: int, dtype: str) -> int:
    """The bytes of so many elements."""
    return math.ceil(elements * ITEM_BYTES[dtype])


@dataclass(frozen=True)
class Tensor:
    """A tensor of the exchange."""

    name: str
    elements: int
    dtype: str  # a key of ITEM_BYTES
    group: int = 0  # tensors of different groups never share a slice; groups do not fall along the list

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise InputError(f"tensor {self.name!r} has dtype {self.dtype!r}: use one of {', '.join(ITEM_BYTES)}")
        if self.elements < 0:
            raise InputError(f"tensor {self.name!r} has {self.elements} elements: give 0 or more")

    @property
    def size_bytes(self) -> int:
        """The tensor's size in bytes."""
        return size_bytes(self.elements, self.dtype)


@dataclass(frozen=True, slots=True)
class Fragment:
    """The elements that a tensor and a slice have in common."""

    tensor: int  # index of the tensor
    tensor_offset: int  # first element within the tensor
    slice_offset: int  # first element within the slice
    length: int  # elements


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements that travel as one message and are summed by one server."""

    index: int  # 0 leaves first
    dtype: str
    elements: int
    is_probe: bool
    fragments: tuple[Fragment, ...]  # by place in the slice; at least one

    @property
    def size_bytes(self) -> int:
        """The slice's size in bytes."""
        return size_bytes(self.elements, self.dtype)


@dataclass(frozen=True)
class Layout:
    """All slices of a model; every element of every tensor lies in exactly one slice."""

    tensors: tuple[Tensor, ...]  # in the order of the exchange
    slices: tuple[Slice, ...]  # by index

    @cached_property
    def model_bytes(self) -> int:
        """M, the bytes of all tensors."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @cached_property
    def wire_part(self) -> float:
        """The bytes on the wire per byte of the tensors' values."""
        return self.model_bytes / sum(size_bytes(one.elements, value_dtype(one.dtype)) for one in self.tensors)

    @cached_property
    def whole_part(self) -> float:
        """The most bytes of a value that travels as it is, per byte of it as planned."""
        dtypes = {one.dtype for one in self.tensors}
        return max((ITEM_BYTES[sum_dtype(value_dtype(one))] / ITEM_BYTES[one] for one in dtypes), default=1.0)

    @cached_property
    def slot_classes(self) -> tuple[tuple[str, int], ...]:
        """The distinct (dtype, elements) of the slices, in order of first use: a slot holds slices of one class."""
        return tuple(dict.fromkeys((s.dtype, s.elements) for s in self.slices))

    @cached_property
    def class_of_slice(self) -> Ints:
        """The index of each slice's slot class, shape (n,)."""
        number = {slot_class: k for k, slot_class in enumerate(self.slot_classes)}
        return _fixed(np.array([number[s.dtype, s.elements] for s in self.slices], dtype=np.int64))

    @cached_property
    def sizes_bytes(self) -> Ints:
        """Each slice's size in bytes, shape (n,)."""
        return _fixed(np.array([s.size_bytes for s in self.slices], dtype=np.int64))

    @cached_property
    def common_bytes(self) -> int:
        """The size of slices of common size in bytes; 0 where tensors are not cut."""
        return int(self.sizes_bytes.max(initial=0))

    @cached_property
    def is_probe(self) -> npt.NDArray[np.bool_]:
        """Whether each slice is a probe, shape (n,)."""
        return _fixed(np.array([s.is_probe for s in self.slices], dtype=np.bool_))

    def digest(self) -> str:
        """A SHA-256 of 64 hex digits, which is equal for layouts with equal tensors and slices only."""
        state = hashlib.sha256()
        for tensor in self.tensors:
            state.update(repr((tensor.name, tensor.elements, tensor.dtype, tensor.group)).encode())
        for s in self.slices:
            parts = [(f.tensor, f.tensor_offset, f.slice_offset, f.length) for f in s.fragments]
            state.update(repr((s.index, s.dtype, s.elements, s.is_probe, parts)).encode())
        return state.hexdigest()


def _fixed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, which nobody may change: users' schemes see it too."""
    values.setflags(write=False)
    return values


def slice_bytes(model_bytes: float, num_nodes: int, alpha_bytes: float) -> float:
    """The slice size x = sqrt(M alpha / N), bytes, at least LOW_SLICE_BYTES, but never above M.

    It minimises T(x) = (N x + alpha)(M / x + 1) / W: large slices delay the first answer, and each slice takes as long as alpha
    further bytes. The paper's alpha, 1.2e5 bytes, with 93 MB and N = 12 gives its 10^5.38 float32 parameters. Raises InputError.
    Source: Cai et al., Eqs. 1 to 4.
    """
    if model_bytes <= 0 or num_nodes < 1 or not alpha_bytes > 0 or not math.isfinite(alpha_bytes):
        raise InputError(
            f"slice size of {model_bytes:g} bytes, {num_nodes} nodes, alpha {alpha_bytes:g} bytes: all must be positive"
        )
    return min(max(math.sqrt(model_bytes * alpha_bytes / num_nodes), LOW_SLICE_BYTES), model_bytes)


@dataclass
class _Row:
    """The non-empty tensors of one group and dtype, end to end, the last one first."""

    group: int
    dtype: str
    tensors: list[int]
    elements: int = 0
    probes: int = 0  # how many probes are cut from it

    def rest(self, probe_elements: int) -> int:
        """The row's elements that are in no probe."""
        return self.elements - self.probes * probe_elements


def build_layout(
    tensors: Sequence[Tensor],
    *,
    num_nodes: int,
    num_servers: int,
    alpha_bytes: float,
    num_probe: int = NUM_PROBE,
    size_probe: int = SIZE_PROBE,
    max_slice_elements: int = MAX_SLICE_ELEMENTS,
    fixed_slice_bytes: float | None = None,
) -> Layout:
    """Cut the tensors: num_servers * num_probe probes in front, then slices of about slice_bytes, every element once.

    A row of E elements beside its probes is cut into ceil(E / x) slices, x being slice_bytes. They are equal for the largest row of
    a dtype; other rows have slices of that common size and a remainder. The probes of a small model are smaller, and then fewer, so
    that they never take more than 1/150 of its bytes. fixed_slice_bytes: replaces x (scheme `elastic`). Empty tensors have no
    fragments.

    Deterministic. Cost: O(tensors + slices). Raises InputError for a model without bytes, groups that fall along the list, and
    numbers that are not positive. Source: Cai et al., sections 3.1 and 3.2. Its Eq. 5 draws probes at random, as many as make it
    likely that each server gets enough; here each server gets the same number.
    """
    if min(num_servers, size_probe, max_slice_elements) < 1 or num_probe < 0:
        raise InputError(
            f"layout for {num_servers} servers, {num_probe} probes of {size_probe} elements, slices up to "
            f"{max_slice_elements} elements: all must be positive, the probes may be 0"
        )
    model_bytes = sum(tensor.size_bytes for tensor in tensors)
    if model_bytes == 0:
        raise InputError(f"{len(tensors)} tensors without any element: there is nothing to distribute")
    goal_bytes = slice_bytes(model_bytes, num_nodes, alpha_bytes) if fixed_slice_bytes is None else fixed_slice_bytes
    if not (math.isfinite(goal_bytes) and goal_bytes > 0):
        raise InputError(f"a fixed slice size of {goal_bytes:g} bytes: it must be positive")
    rows = _rows(tensors)
    widest_bytes = max(ITEM_BYTES[row.dtype] for row in rows)
    probe_elements = _place_probes(
        rows,
        num_servers * num_probe,
        min(size_probe, max_slice_elements),
        int(model_bytes // (PROBE_PART * widest_bytes)),
    )
    common, small = {}, {}
    for dtype in dict.fromkeys(row.dtype for row in rows):
        longest = max((row for row in rows if row.dtype == dtype), key=lambda row: row.rest(probe_elements))
        goal = min(max(int(goal_bytes / ITEM_BYTES[dtype]), 1), max_slice_elements)
        small[dtype] = max(goal // RAMP_PART, 1)
        rest = longest.rest(probe_elements)
        common[dtype] = _common_size(rest - sum(_ramps(longest, rest, small[dtype], num_servers)) * small[dtype], goal)
    cuts: list[tuple[int, bool, str, int, tuple[Fragment, ...]]] = []
    for row in rows:
        sizes = _sizes(row, probe_elements, common[row.dtype], small[row.dtype], num_servers)
        for number, fragments in enumerate(_cut(row, tensors, sizes)):
            cuts.append((row.group, number < row.probes, row.dtype, sizes[number], fragments))
    cuts.sort(key=lambda cut: (cut[0], not cut[1], -cut[4][0].tensor, cut[4][0].tensor_offset))
    slices = (
        Slice(index, dtype, elements, is_probe, fragments)
        for index, (_, is_probe, dtype, elements, fragments) in enumerate(cuts)
    )
    return Layout(tuple(tensors), tuple(slices))


def _rows(tensors: Sequence[Tensor]) -> list[_Row]:
    rows: dict[tuple[int, str], _Row] = {}
    last_group = tensors[0].group
    for index, tensor in enumerate(tensors):
        if tensor.group < last_group:
            raise InputError(
                f"tensor {tensor.name!r} of group {tensor.group} follows group {last_group}: sort by group"
            )
        last_group = tensor.group
        if tensor.elements:
            row = rows.setdefault((tensor.group, tensor.dtype), _Row(tensor.group, tensor.dtype, []))
            row.tensors.insert(0, index)
            row.elements += tensor.elements
    return list(rows.values())


def _place_probes(rows: list[_Row], count: int, size: int, budget: int) -> int:
    """Set each row's number of probes, from the first row on, and return the elements of a probe.

    These are the most up to `size` for which `count` probes fit. budget: elements that all probes together may take.
    """

    def fits(elements: int) -> bool:
        return elements * count <= budget and sum(row.elements // elements for row in rows) >= count

    low, high = 1, size
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    left = min(count, budget // low)
    for row in rows:
        row.probes = min(left, row.elements // low)
        left -= row.probes
    return low


def _common_size(elements: int, goal: int) -> int:
    return max(-(-elements // -(-elements // goal)), 1) if elements else 1


def _ramps(row: _Row, rest: int, small: int, num_servers: int) -> tuple[int, int]:
    """The numbers of small slices in front and at the end of a row that has `rest` elements beside its probes."""
    count = RAMP_SLICES * num_servers
    return (max(count - row.probes, 0), count) if 2 * count * small * RAMP_LIMIT <= rest else (0, 0)


def _sizes(row: _Row, probe_elements: int, common: int, small: int, num_servers: int) -> list[int]:
    rest = row.rest(probe_elements)
    front, end = _ramps(row, rest, small, num_servers)
    whole, remainder = divmod(rest - (front + end) * small, common)
    return (
        [probe_elements] * row.probes
        + [small] * front
        + [common] * whole
        + [remainder] * (remainder > 0)
        + [small] * end
    )


def _cut(row: _Row, tensors: Sequence[Tensor], sizes: list[int]) -> Iterator[tuple[Fragment, ...]]:
    """The fragments of each slice of a row. sizes: the slices' elements, which add up to the row's."""
    waiting = iter(row.tensors)
    tensor, offset, left = -1, 0, 0
    for size in sizes:
        fragments, filled = [], 0
        while filled < size:
            if left == 0:
                tensor, offset = next(waiting), 0
                left = tensors[tensor].elements
            length = min(left, size - filled)
            fragments.append(Fragment(tensor, offset, filled, length))
            filled, offset, left = filled + length, offset + length, left - length
        yield tuple(fragments)
