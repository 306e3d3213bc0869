"""Laws of micro-batches: one size, and each sample once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.batching.micro_batches import micro_batches
from nalb.errors import InputError


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(1, 60))
def test_parts_have_one_size_and_count_each_sample_once(chosen: list[int], size: int) -> None:
    parts = list(micro_batches(chosen, size))
    assert {(len(part), len(weights)) for part, weights in parts} == {(size, size)}
    counted = np.concatenate([part[weights == 1] for part, weights in parts])
    assert counted.tolist() == chosen
    assert len(parts) == -(-len(chosen) // size)
    assert {float(one) for _, weights in parts for one in weights} <= {0.0, 1.0}


def test_a_size_below_1_is_refused() -> None:
    with pytest.raises(InputError, match="give 1 or more"):
        next(micro_batches([1], 0))
