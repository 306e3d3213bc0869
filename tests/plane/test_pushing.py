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
            tensor = random.choice(growing)
            ready[tensor] = min(sizes[tensor], ready[tensor] + random.randint(1, 300_000))
            progress.make_ready(tensor, ready[tensor])
        assert (progress.ready_tensors == len(sizes)) == (ready == sizes)
        while (index := progress.next_slice()) is not None:
            assert not window_bytes or progress.under_way_bytes < window_bytes or index < min(under_way)
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
    assert told == sizes
    assert tells <= sum(elements // cut.tell_elements[0] + 1 for elements in sizes)


@pytest.mark.parametrize("orders", [([0, 1], [1, 0]), ([0, 1], [0, 1])])
def test_ranks_whose_sums_become_ready_in_different_orders_do_not_wait_for_each_other(orders):
    sizes = [200_000, 200_000]
    cut = cut_of(sizes)
    ranks = [SliceProgress(cut, window_bytes=100_000) for _ in orders]
    pushed = [set() for _ in ranks]
    for progress, order in zip(ranks, orders, strict=True):
        for tensor in order:
            progress.make_ready(tensor, sizes[tensor])
            _push(progress, pushed[ranks.index(progress)], cut)
    while not all(one.is_complete for one in ranks):
        summed = set.intersection(*pushed)
        assert summed, "each rank waits for the other"
        for progress, mine in zip(ranks, pushed, strict=True):
            for index in summed:
                progress.under_way_bytes -= cut.size_bytes[index]
                progress.note_answer(index)
            mine -= summed
            _push(progress, mine, cut)


def _push(progress, pushed, cut):
    while (index := progress.next_slice()) is not None:
        progress.under_way_bytes += cut.size_bytes[index]
        pushed.add(index)


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
