"""The stream of samples: laws for any sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.batching.stream import Stream
from nalb.errors import InputError


def shuffle(samples):
    return lambda epoch: np.random.default_rng([7, epoch]).permutation(samples)


@st.composite
def trainings(draw):
    """(samples, total, one list of sizes per iteration)."""
    total = draw(st.integers(3, 40))
    samples = draw(st.integers(total, 150))
    cuts = st.lists(st.integers(0, total), min_size=2, max_size=2).map(sorted)
    rows = draw(st.lists(cuts, min_size=1, max_size=12))
    return samples, total, [[a, b - a, total - b] for a, b in rows]


@given(trainings())
def test_every_epoch_has_every_sample_once_whatever_the_sizes(training):
    samples, total, rows = training
    workers = [Stream(samples, total, shuffle(samples)) for _ in range(3)]
    drawn = []
    for iteration, sizes in enumerate(rows):
        start = 0
        for worker, size in zip(workers, sizes, strict=True):
            if size:
                drawn += worker.batch(iteration, start, start + size)
            start += size
    assert len(drawn) == total * len(rows)
    for epoch in range(0, len(drawn), samples):
        part = drawn[epoch : epoch + samples]
        assert part == shuffle(samples)(epoch // samples)[: len(part)].tolist()


@given(st.integers(1, 40), st.integers(0, 110), st.integers(0, 60))
def test_epochs_follow_each_other_without_gap(total, more, iteration):
    samples = total + more
    stream = Stream(samples, total, shuffle(samples))
    end = stream.end_of_epoch(iteration)
    assert end > iteration
    left = (
        -(-(iteration + 1) * total // samples) * samples - end * total
    )  # of the epoch, for the next one's first batch
    assert 0 <= left < total


def test_less_data_than_a_batch_is_refused():
    with pytest.raises(InputError, match="4 samples for batches of 5"):
        Stream(4, 5, shuffle(4))
