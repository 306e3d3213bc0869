import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError
from nalb.planning.slices import (
    ITEM_BYTES,
    LOW_SLICE_BYTES,
    MAX_SLICE_ELEMENTS,
    NUM_PROBE,
    PROBE_PART,
    RAMP_SLICES,
    SIZE_PROBE,
    Tensor,
    build_layout,
    slice_bytes,
)

from .strategies import laws, simple_layout, tensor_lists

alphas = st.floats(1.0, 1e6)
server_counts = st.integers(1, 12)


def layout_of(tensors, servers=4, alpha_bytes=4000.0, **options):
    return build_layout(tensors, num_nodes=servers, num_servers=servers, alpha_bytes=alpha_bytes, **options)


@laws
@given(tensor_lists(), server_counts, alphas)
def test_every_element_lies_in_exactly_one_slice(tensors, servers, alpha_bytes):
    layout = layout_of(tensors, servers, alpha_bytes)
    seen = [np.zeros(tensor.elements, dtype=int) for tensor in tensors]
    for index, piece in enumerate(layout.slices):
        assert piece.index == index
        inside = np.zeros(piece.elements, dtype=int)
        for fragment in piece.fragments:
            assert fragment.length > 0
            assert tensors[fragment.tensor].dtype == piece.dtype
            seen[fragment.tensor][fragment.tensor_offset : fragment.tensor_offset + fragment.length] += 1
            inside[fragment.slice_offset : fragment.slice_offset + fragment.length] += 1
        assert (inside == 1).all()
    assert all((counts == 1).all() for counts in seen)
    assert layout.model_bytes == sum(piece.size_bytes for piece in layout.slices) == layout.sizes_bytes.sum()


@laws
@given(tensor_lists(), server_counts, alphas)
def test_slices_leave_in_the_order_of_backpropagation_and_never_mix_groups(tensors, servers, alpha_bytes):
    layout = layout_of(tensors, servers, alpha_bytes)
    places = []
    for piece in layout.slices:
        assert len({tensors[fragment.tensor].group for fragment in piece.fragments}) == 1
        numbers = [fragment.tensor for fragment in piece.fragments]
        assert numbers == sorted(set(numbers), reverse=True)
        first = piece.fragments[0]
        places.append((tensors[first.tensor].group, not piece.is_probe, -first.tensor, first.tensor_offset))
    assert places == sorted(places)


@laws
@given(tensor_lists(), server_counts, alphas)
def test_slot_sizes_are_few_and_slices_within_their_bounds(tensors, servers, alpha_bytes):
    layout = layout_of(tensors, servers, alpha_bytes)
    goal_bytes = slice_bytes(layout.model_bytes, servers, alpha_bytes)
    assert len(set(layout.slot_classes)) == len(layout.slot_classes)
    assert [layout.slot_classes[k] for k in layout.class_of_slice] == [(s.dtype, s.elements) for s in layout.slices]
    for dtype in {tensor.dtype for tensor in tensors}:
        rest = [s for s in layout.slices if s.dtype == dtype and not s.is_probe]
        groups = {tensors[s.fragments[0].tensor].group for s in rest}
        common = max((s.elements for s in rest), default=1)
        assert common <= max(min(goal_bytes / ITEM_BYTES[dtype], MAX_SLICE_ELEMENTS), 1)
        for group in groups:  # all of the common size but one, between ramps of small ones
            mine = [s for s in layout.slices if s.dtype == dtype and tensors[s.fragments[0].tensor].group == group]
            probes = sum(s.is_probe for s in mine)
            sizes = [s.elements for s in mine if not s.is_probe]
            end = RAMP_SLICES * servers
            front = max(end - probes, 0)
            if len(sizes) > front + end and sizes[0] < common:
                assert len(set(sizes[:front] + sizes[-end:])) == 1
                sizes = sizes[front:-end]
            assert all(size == common for size in sorted(sizes)[1:])


@laws
@given(st.integers(1, 3_000_000), server_counts, alphas)
def test_one_row_has_few_sizes_beside_its_probes(elements, servers, alpha_bytes):
    """A common one, one remainder, and small ones at both ends of a long row: in front fewer by the probes before them."""
    layout = simple_layout(elements, servers, alpha_bytes)
    row = [s.elements for s in layout.slices if not s.is_probe]
    end = RAMP_SLICES * servers if row[0] < max(row) else 0
    front = max(end - (len(layout.slices) - len(row)), 0)
    assert row[:front] == [row[0]] * front
    assert row[len(row) - end :] == [row[-1]] * end
    assert not end or row[0] == row[-1]
    middle = row[front : len(row) - end]
    assert len(set(middle[:-1])) <= 1
    assert middle[-1] <= middle[0]


@laws
@given(tensor_lists(), server_counts)
def test_probes_take_at_most_a_third_and_are_alike(tensors, servers):
    layout = layout_of(tensors, servers)
    probes = [s for s in layout.slices if s.is_probe]
    assert PROBE_PART * sum(s.size_bytes for s in probes) <= layout.model_bytes
    assert len({s.elements for s in probes}) <= 1
    assert len(probes) <= NUM_PROBE * servers
    assert list(layout.is_probe) == [s.is_probe for s in layout.slices]


def test_a_large_model_has_all_its_probes_in_front():
    layout = simple_layout(20_000_000, 6)
    assert [s.is_probe for s in layout.slices[:12]] == [True] * 12
    assert {s.elements for s in layout.slices[:12]} == {SIZE_PROBE}
    assert not any(s.is_probe for s in layout.slices[12:])


def test_a_small_model_has_smaller_then_fewer_probes():
    assert {s.elements for s in simple_layout(120_000, 6).slices if s.is_probe} == {120_000 // PROBE_PART // 12}
    assert [s.elements for s in simple_layout(6 * PROBE_PART, 6).slices if s.is_probe] == [1] * 6
    assert not any(s.is_probe for s in simple_layout(2, 6).slices)


def test_many_small_groups_still_have_probes():
    layout = layout_of([Tensor(f"t{i}", 500, "float32", i) for i in range(100)], servers=4)
    assert sum(s.is_probe for s in layout.slices) == NUM_PROBE * 4


def test_empty_tensors_hold_no_fragment():
    layout = layout_of([Tensor("a", 0, "float32"), Tensor("b", 5, "float32"), Tensor("c", 0, "float16")])
    assert {fragment.tensor for s in layout.slices for fragment in s.fragments} == {1}


def test_the_papers_alpha_gives_the_papers_granularity():
    elements = slice_bytes(93e6, 12, 1.2e5) / ITEM_BYTES["float32"]
    assert math.log10(elements) == pytest.approx(5.38, abs=0.005)


def test_slice_size_is_kept_within_its_bounds():
    assert slice_bytes(1e6, 4, 1e-6) == LOW_SLICE_BYTES
    assert slice_bytes(1000, 4, 1.0) == 1000
    assert slice_bytes(1e6, 4, 1e12) == 1e6


def test_no_slice_reaches_the_big_array_bound():
    layout = layout_of([Tensor("a", 30_000_000, "float32")], alpha_bytes=1e12)
    assert max(s.elements for s in layout.slices) <= MAX_SLICE_ELEMENTS


def test_fixed_slice_size_replaces_alpha():
    layout = layout_of([Tensor("a", 1_080_000, "float32")], fixed_slice_bytes=400_000)
    sizes = {s.elements for s in layout.slices if not s.is_probe}
    assert max(sizes) <= 100_000 < 1.1 * max(sizes)


@laws
@given(tensor_lists(), server_counts, alphas)
def test_digest_is_the_same_for_the_same_cut(tensors, servers, alpha_bytes):
    assert layout_of(tensors, servers, alpha_bytes).digest() == layout_of(list(tensors), servers, alpha_bytes).digest()


def test_digest_tells_layouts_apart():
    base = [Tensor("a", 50_000, "float32"), Tensor("b", 70_000, "float32")]
    digests = {
        layout_of(tensors, servers, alpha_bytes).digest()
        for tensors, servers, alpha_bytes in (
            (base, 4, 4000.0),
            (base, 5, 4000.0),
            (base, 4, 8000.0),
            (base[::-1], 4, 4000.0),
            ([base[0], Tensor("c", 70_000, "float32")], 4, 4000.0),
            ([base[0], Tensor("b", 70_000, "float64")], 4, 4000.0),
            ([base[0], Tensor("b", 70_000, "float32", 1)], 4, 4000.0),
        )
    }
    assert len(digests) == 7
    assert all(len(digest) == 64 for digest in digests)


def test_digest_is_written_down():
    """Workers on different machines and releases must agree: a change here is a change of the protocol."""
    layout = layout_of([Tensor("w", 30_000, "float32"), Tensor("b", 10, "float16")])
    assert layout.digest() == "4bb0591cedda667cce1fb51b5df2bb006ca484ff4507210fca4b0e5571347f36"


def test_bad_tensors_are_refused():
    with pytest.raises(InputError, match="float8"):
        Tensor("a", 1, "float8")
    with pytest.raises(InputError, match="-1 elements"):
        Tensor("a", -1, "float32")
    with pytest.raises(InputError, match="nothing to distribute"):
        layout_of([Tensor("a", 0, "float32")])
    with pytest.raises(InputError, match="nothing to distribute"):
        layout_of([])
    with pytest.raises(InputError, match="sort by group"):
        layout_of([Tensor("a", 1, "float32", 1), Tensor("b", 1, "float32", 0)])


@pytest.mark.parametrize(
    "options",
    [{"servers": 0}, {"alpha_bytes": 0.0}, {"alpha_bytes": math.nan}, {"num_probe": -1}, {"size_probe": 0},
     {"max_slice_elements": 0}, {"fixed_slice_bytes": 0.0}, {"fixed_slice_bytes": math.nan}],
)  # fmt: skip
def test_bad_numbers_are_refused(options):
    with pytest.raises(InputError, match="positive"):
        layout_of([Tensor("a", 100_000, "float32")], **options)


def test_without_probes_all_bytes_lie_in_other_slices():
    tensor = Tensor("a", 500_000, "float32")
    with_probes, without = (layout_of([tensor], num_probe=count) for count in (2, 0))
    assert any(piece.is_probe for piece in with_probes.slices)
    assert not any(piece.is_probe for piece in without.slices)
    assert sum(piece.elements for piece in without.slices) == tensor.elements
