"""Which slices leave, and what the training process is told: laws over random tensors and orders of answers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nalb.plane.pushing import Cut, SliceProgress
from nalb.planning.slices import Tensor, build_layout


def cut_of(sizes, dtype="float32", servers=3):
    tensors = [Tensor(str(index), elements, dtype, index) for index, elements in enumerate(sizes)]
    return Cut(build_layout(tensors, num_nodes=servers, num_servers=servers, alpha_bytes=2000.0))


@settings(max_examples=40)
@given(st.lists(st.integers(0, 200_000), min_size=1, max_size=6).filter(any), st.sampled_from(["float32", "float64"]))
def test_a_cut_has_every_element_once_and_tensors_in_order(sizes, dtype):
    cut = cut_of(sizes, dtype)
    for tensor, elements in enumerate(sizes):
        slices = range(cut.first[tensor], cut.first[tensor + 1])
        bounds = [(cut.start[index], cut.stop[index]) for index in slices]
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds)][: len(bounds)]
        assert (bounds[-1][1] if bounds else 0) == elements
        assert all(cut.tensor[index] == tensor for index in slices)
    assert sum(cut.size_bytes) == sum(sizes) * (4 if dtype == "float32" else 8)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 700_000), min_size=1, max_size=4),
    window_bytes=st.sampled_from([0, 1, 50_000, 1_000_000]),
    random=st.randoms(use_true_random=False),
)
def test_progress(sizes, window_bytes, random):
    """Slices leave once, ready and within the window; sums are told of in order, in parts that are worth it, and to the end."""
    cut = cut_of(sizes)
    progress = SliceProgress(cut, window_bytes)
    ready, told, under_way, left = [0] * len(sizes), [0] * len(sizes), set(), set()
    tells = 0
    while not progress.is_complete:
        growing = [tensor for tensor, elements in enumerate(sizes) if ready[tensor] < elements]
        if growing and (not under_way or random.random() < 0.5):
            tensor = growing[0]
            ready[tensor] = min(sizes[tensor], ready[tensor] + random.randint(1, 300_000))
            progress.make_ready(tensor, ready[tensor])
        assert (progress.ready_tensors == len(sizes)) == (ready == sizes)
        while (index := progress.next_slice()) is not None:
            assert not window_bytes or progress.under_way_bytes < window_bytes
            assert index not in left
            assert cut.stop[index] <= ready[cut.tensor[index]]
            left.add(index)
            under_way.add(index)
            progress.under_way_bytes += cut.size_bytes[index]
        if under_way:
            index = random.choice(sorted(under_way))
            under_way.remove(index)
            progress.under_way_bytes -= cut.size_bytes[index]
            tensor, elements = cut.tensor[index], progress.note_answer(index)
            if elements is not None:
                tells += 1
                assert elements == sizes[tensor] or elements - told[tensor] >= cut.tell_elements[tensor]
                told[tensor] = elements
            with pytest.raises(KeyError):
                progress.note_answer(index)
    assert told == sizes
    assert tells <= sum(elements // cut.tell_elements[0] + 1 for elements in sizes)


def test_a_broken_off_iteration_is_complete_without_its_last_tensors():
    cut = cut_of([50_000, 50_000, 50_000])
    progress = SliceProgress(cut, 0)
    progress.make_ready(0, 50_000)
    while (index := progress.next_slice()) is not None:
        progress.note_answer(index)
    assert not progress.is_complete
    progress.tensors = 1
    assert progress.is_complete
    assert progress.ready_tensors == progress.summed_tensors == progress.tensors
