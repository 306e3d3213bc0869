import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.planning.assignment import assign, greedy_counts, interleave, whole_bytes
from nalb.planning.slices import build_layout

from .strategies import laws, simple_layout, tensor_lists

lefts = st.lists(st.integers(-100_000, 1_000_000), min_size=1, max_size=12).map(np.array)


def algorithm_2(left, sizes):
    """As printed: for each slice, walk over all servers."""
    left, chosen = list(left), []
    for size in sizes:
        receiver, most = 0, -np.inf
        for i, value in enumerate(left):
            if most < value - size:
                most, receiver = value - size, i
        chosen.append(receiver)
        left[receiver] = most
    return chosen


def spread(layout, shares):
    """assign() for a layout."""
    left = whole_bytes(np.array(shares, dtype=float), layout.model_bytes)
    return assign(left, layout.sizes_bytes, layout.class_of_slice, layout.is_probe)


@laws
@given(lefts, st.integers(1, 50_000), st.integers(0, 2000))
def test_greedy_counts_are_those_of_algorithm_2_as_printed(left, size, count):
    expected = np.bincount(algorithm_2(left, [size] * count), minlength=len(left))
    np.testing.assert_array_equal(greedy_counts(left, size, count), expected)


@laws
@given(lefts, st.integers(1, 50_000), st.integers(1, 500))
def test_greedy_leaves_servers_level(left, size, count):
    counts = greedy_counts(left, size, count)
    after = left - counts * size
    assert after[counts > 0].max() - after[counts > 0].min() <= size
    assert (after[counts == 0] <= after[counts > 0].min() + size).all()


@laws
@given(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any).map(np.array))
def test_interleave_keeps_counts_and_proportion_along_the_way(counts):
    sequence = interleave(counts)
    np.testing.assert_array_equal(np.bincount(sequence, minlength=len(counts)), counts)
    total = counts.sum()
    seen = np.zeros(len(counts))
    for step, server in enumerate(sequence, start=1):
        seen[server] += 1
        assert (np.abs(seen - counts * step / total) <= (1 + len(counts) * counts / total) / 2 + 1e-9).all()


def test_interleave_does_not_start_with_one_server():
    assert interleave(np.array([4, 4])).tolist() == [0, 1] * 4
    assert interleave(np.array([6, 2])).tolist() == [0, 0, 1, 0, 0, 0, 1, 0]


@laws
@given(tensor_lists(), st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-3))
def test_every_slice_has_one_server_and_a_slot_of_its_own(tensors, weights):
    servers = len(weights)
    layout = build_layout(tensors, num_nodes=servers, num_servers=servers, alpha_bytes=4000.0)
    server, slot = spread(layout, weights)
    assert len(server) == len(slot) == len(layout.slices)
    assert set(server) <= set(range(servers))
    used = set(zip(server, layout.class_of_slice, slot, strict=True))
    assert len(used) == len(layout.slices)
    highest = {}
    for one, slot_class, number in used:
        highest.setdefault((one, slot_class), set()).add(number)
    assert all(numbers == set(range(len(numbers))) for numbers in highest.values())


@laws
@given(tensor_lists(), st.integers(1, 9))
def test_probes_go_round_the_servers(tensors, servers):
    layout = build_layout(tensors, num_nodes=servers, num_servers=servers, alpha_bytes=4000.0)
    server, _ = spread(layout, [1.0] + [0.0] * (servers - 1))
    counts = np.bincount(server[layout.is_probe], minlength=servers)
    assert counts.max() - counts.min() <= 1


def test_an_idle_server_has_its_probes_only():
    layout = simple_layout(10_000_000, 4)
    server, _ = spread(layout, [1, 1, 0, 1])
    idle = np.flatnonzero(server == 2)
    assert layout.is_probe[idle].all()
    assert len(idle) == 2


@laws
@given(
    st.integers(500_000, 5_000_000),
    st.lists(st.floats(0.2, 1), min_size=2, max_size=9),
)
def test_whole_slices_come_within_a_slice_of_the_shares(elements, weights):
    layout = simple_layout(elements, len(weights))
    target = whole_bytes(np.array(weights), layout.model_bytes)
    server, _ = spread(layout, weights)
    held = np.bincount(server, layout.sizes_bytes, minlength=len(weights))
    assert held.sum() == layout.model_bytes
    assert np.abs(held - target).max() <= 2 * layout.sizes_bytes.max()


def test_assignment_is_deterministic_and_ties_go_to_the_lower_index():
    layout = simple_layout(1_000_000, 3)
    first, second = spread(layout, [1, 1, 1]), spread(layout, [1, 1, 1])
    np.testing.assert_array_equal(first, second)
    assert greedy_counts(np.array([5, 5, 5]), 1, 4).tolist() == [2, 1, 1]


def test_greedy_alone_would_fill_the_biggest_server_first():
    """Why assign() interleaves: the same counts, but the first third of the order is not one server's."""
    sizes = np.full(30, 10)
    left = np.array([200, 50, 50])
    assert set(algorithm_2(left, sizes)[:10]) == {0}
    server, _ = assign(left, sizes, np.zeros(30, dtype=int), np.zeros(30, dtype=bool))
    assert set(server[:10]) == {0, 1, 2}
    np.testing.assert_array_equal(np.bincount(server), np.bincount(algorithm_2(left, sizes)))


@laws
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20).filter(lambda w: sum(w) > 1e-3), st.integers(1, 10**15))
def test_whole_bytes_add_up(weights, total):
    whole = whole_bytes(np.array(weights), total)
    assert whole.sum() == total
    assert (whole >= 0).all()
    expected = np.array(weights) / sum(weights) * total
    assert np.abs(whole - expected).max() <= 1 + 1e-9 * total


@pytest.mark.parametrize("count", [0, 1])
def test_few_or_no_slices(count):
    server, slot = assign(
        np.array([10, 10]), np.full(count, 10), np.zeros(count, dtype=int), np.zeros(count, dtype=bool)
    )
    assert server.tolist() == slot.tolist() == [0] * count
