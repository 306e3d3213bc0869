"""What a comparison of batchings says of its iterations."""

import pytest

from nalb.reporting.batching_file import BatchingResult


def test_a_pause_of_one_worker_counts_once():
    """Rank 0 tests after every third update: its own period is longer, an iteration later all others'."""
    pauses = range(0, 20, 3)
    periods = [[1.7 if k in pauses else 1.0] + [1.7 if k - 1 in pauses else 1.0] * 3 for k in range(20)]
    rows = [[1.0] * 4] * 20
    result = BatchingResult(True, [[10] * 4] * 20, rows, periods, rows, None, None)
    assert result.iteration_s == pytest.approx(1.0)


def test_who_goes_alone_adds_its_own_speed():
    rows = [[1.0] * 2] * 4
    result = BatchingResult(False, [[10, 10]] * 4, rows, [[0.5, 2.0]] * 4, rows, None, None)
    assert result.iteration_s == pytest.approx(20 / (10 / 0.5 + 10 / 2.0))
