import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.batching.partitions import PartitionedStream, label_skewed, migrate
from nalb.errors import InputError

from ..planning.strategies import laws


def test_five_clients_of_two_classes_share_ten():
    labels = np.repeat(np.arange(10), 50)
    parts = label_skewed(labels, 5, 2, np.random.default_rng(0))
    assert [len(part) for part in parts] == [100] * 5
    assert all(len(np.unique(labels[part])) == 2 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(500))


@laws
@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_every_sample_goes_to_one_client_of_the_right_number_of_classes(clients, per_client, classes, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(classes) * 3 - 1, 40))
    if per_client > classes or clients * per_client < classes:
        with pytest.raises(InputError, match="clients of"):
            label_skewed(labels, clients, per_client, np.random.default_rng(seed))
        return
    parts = label_skewed(labels, clients, per_client, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(len(np.unique(labels[part])) == per_client for part in parts)
    again = label_skewed(labels, clients, per_client, np.random.default_rng(seed))
    assert all((one == other).all() for one, other in zip(parts, again, strict=True))


def test_a_label_too_small_for_its_clients_is_named():
    with pytest.raises(InputError, match="label 1 has 1 samples for 2 clients"):
        label_skewed(np.array([0, 0, 0, 1]), 2, 2, np.random.default_rng(0))


def test_nothing_moves_within_the_threshold():
    assert migrate((100, 100), (3.0, 1.0), (10, 20))[0] is None
    assert migrate((100, 100), (3.5, 1.0), (20, 10))[0] == (1, 0, 33)


def test_their_verification_keeps_traversals_within_two():
    # Chen et al., footnote 13: five workers of 10,000 samples, batches of 64 to 192
    batches = np.array((64, 96, 128, 160, 192))
    partitions, traversals, moves = np.full(5, 10_000), np.zeros(5), 0
    for _ in range(20_000):
        traversals += batches / partitions
        move, _reason = migrate(partitions, traversals, batches)
        assert traversals.max() - traversals.min() <= 2.02
        if move is not None:
            moves += 1
            partitions[move.source] -= move.samples
            partitions[move.target] += move.samples
            traversals[:] = 0
    assert partitions.sum() == 50_000
    assert 2 <= moves <= 20
    rates = batches / partitions
    assert rates.max() / rates.min() < 1.05


def test_sizes_that_even_out_by_themselves_move_nothing():
    assert migrate((100, 100), (5.0, 1.0), (10, 20)) == (None, "by their present batch sizes the partitions even out")


@pytest.mark.parametrize("lists", [((1, 2), (1.0,), (1, 2)), ((), (), ()), ((0, 5), (0.0, 9.0), (1, 1))])
def test_lists_that_do_not_fit_are_named(lists):
    with pytest.raises(InputError, match="migration"):
        migrate(*lists)


def in_order(_moves, _passes, samples):
    return np.arange(samples)


def test_workers_with_the_same_books_make_the_same_moves_and_no_sample_is_lost():
    """The paper's footnote 13: five workers of two classes, batches of 64 to 192."""
    parts = [np.arange(rank, 1000, 5) for rank in range(5)]
    sizes = (64, 96, 128, 160, 192)
    streams = [PartitionedStream(parts, rank, in_order) for rank in range(5)]
    for _ in range(60):
        for rank, stream in enumerate(streams):
            batch = stream.batch(sizes)
            assert len(batch) == sizes[rank]
    assert all(stream.moves == streams[0].moves for stream in streams)
    assert streams[0].moves
    assert sorted(np.concatenate(streams[0].partitions).tolist()) == list(range(1000))
    used = np.array(sizes) / [len(part) for part in streams[0].partitions]
    assert used.max() / used.min() < 1.5 < 3 == sizes[-1] / sizes[0]


def test_a_pass_has_every_sample_once_and_a_batch_may_span_passes():
    stream = PartitionedStream([np.array([3, 5, 7]), np.array([1, 2])], 0, in_order)
    assert stream.batch((2, 1)) == [3, 5]
    assert stream.batch((5, 1)) == [7, 3, 5, 7, 3]


@pytest.mark.parametrize("parts", [([1, 2], []), ([1, 2], [2])])
def test_partitions_are_of_their_workers_alone(parts):
    with pytest.raises(InputError, match="samples of its own"):
        PartitionedStream([np.array(part) for part in parts], 0, in_order)
