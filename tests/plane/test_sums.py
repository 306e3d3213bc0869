"""Sums over ranks: the bits of a sequential sum, whoever came first."""

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nalb.errors import PeerError
from nalb.plane.sums import OrderedSum, SumsUnderWay


def sequential(parts):
    """What a loop over ranks computes."""
    with np.errstate(all="ignore"):
        total = parts[0].copy()
        for part in parts[1:]:
            total = total + part
    return total


def bits(values):
    """The values as whole numbers. IEEE 754 leaves open which NaN the sum of two has, so all NaN count as one."""
    one_nan = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    return one_nan.view(f"u{values.itemsize}").tolist()


def arrays(dtype, ranks):
    """Any floats: NaN of every kind, infinities, subnormals, zeros of both signs."""
    of_bits = hnp.arrays(f"u{np.dtype(dtype).itemsize}", st.shared(st.integers(0, 40), key="elements"))
    return st.lists(of_bits.map(lambda array: array.view(dtype)), min_size=ranks, max_size=ranks)


@given(data=st.data(), dtype=st.sampled_from(["float32", "float64", "float16"]), ranks=st.integers(1, 7))
def test_bits_do_not_depend_on_who_came_first(data, dtype, ranks):
    parts = data.draw(arrays(dtype, ranks))
    order = data.draw(st.permutations(range(ranks)))
    one = OrderedSum()
    totals = [one.add(place, parts[place].copy(), ranks) for place in order]
    assert all(total is None for total in totals[:-1])
    assert totals[-1].dtype == dtype
    assert bits(totals[-1]) == bits(sequential(parts))


@pytest.mark.parametrize("elements", [0, 1, 7, 100_003])
def test_large_and_special_values(elements):
    random = np.random.default_rng(elements)
    parts = [
        random.standard_normal(elements).astype(np.float32) * 10.0 ** random.integers(-44, 38, elements)
        for _ in range(5)
    ]
    parts = [part.astype(np.float32) for part in parts]
    for part, special in zip(parts, (np.nan, np.inf, -np.inf, 1e-45, -0.0), strict=True):
        part[::11] = special
    one = OrderedSum()
    for place in (3, 0, 4, 2, 1):
        total = one.add(place, parts[place].copy(), 5)
    assert bits(total) == bits(sequential(parts))


def test_parts_stay_as_they_are():
    """A part lies in shared memory or in a message: only the sum is new."""
    parts = [np.full(9, rank + 1.0, np.float32) for rank in range(4)]
    one = OrderedSum()
    for place, part in enumerate(parts):
        total = one.add(place, part, 4)
    assert [part[0] for part in parts] == [1, 2, 3, 4]
    assert (total == 10).all()


def test_what_cannot_be_added_is_refused():
    one = OrderedSum()
    one.add(1, np.zeros(3, np.float32), 3)
    with pytest.raises(PeerError, match="twice"):
        one.add(1, np.zeros(3, np.float32), 3)
    with pytest.raises(PeerError, match="pushed 4 float32, others 3 float32"):
        one.add(0, np.zeros(4, np.float32), 3)
    with pytest.raises(PeerError, match="pushed 3 float64, others 3 float32"):
        one.add(0, np.zeros(3, np.float64), 3)
    one.add(0, np.zeros(3, np.float32), 3)
    with pytest.raises(PeerError, match="twice"):
        one.add(0, np.zeros(3, np.float32), 3)


@settings(max_examples=25)
@given(st.data())
def test_memory_is_bounded(data):
    """Only incomplete sums keep parts; of two iterations at most, since a third would need this rank's part of the first."""
    ranks, slices, iterations = 3, 4, 3
    sums, alive, waiting = SumsUnderWay(ranks), [], set()
    todo = {rank: [(k, index) for k in range(iterations) for index in range(slices)] for rank in range(ranks)}
    while any(todo.values()):
        # a rank begins iteration k only once all sums of k - 1 are complete
        free = [rank for rank, left in todo.items() if left and not any(k < left[0][0] for k, _ in waiting)]
        rank = data.draw(st.sampled_from(free))
        iteration, index = todo[rank].pop(
            data.draw(st.integers(0, sum(k == todo[rank][0][0] for k, _ in todo[rank]) - 1))
        )
        part = np.zeros(1, np.float32)
        alive.append(weakref.ref(part))
        waiting.add((iteration, index))
        if sums.add(iteration, index, rank, part) is not None:
            waiting.remove((iteration, index))
        del part
        assert len(waiting) <= 2 * slices
        assert sum(ref() is not None for ref in alive) <= (ranks - 1) * len(waiting)
    assert not waiting
    assert not [ref for ref in alive if ref() is not None]


def test_a_third_iteration_is_refused():
    sums = SumsUnderWay(2)
    sums.add(5, 0, 1, np.zeros(1, np.float32))
    sums.add(6, 0, 1, np.zeros(1, np.float32))
    with pytest.raises(PeerError, match=r"iterations \[5, 6\] are incomplete"):
        sums.add(7, 0, 1, np.zeros(1, np.float32))
