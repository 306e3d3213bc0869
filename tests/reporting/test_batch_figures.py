"""The figure and the rows of batches."""

import pytest

from nalb.reporting.batch_figures import batch_rows, batches_over_run
from nalb.reporting.record import Timeline
from tests.reporting.test_page import batch


def test_rows_are_of_the_later_half():
    first, second = batch_rows(Timeline(batches=[batch(k) for k in range(4)]))
    assert (first.worker, first.first_size, first.last_size) == ("n0", 8, 11)
    assert second.compute_s == pytest.approx(2.0)
    assert second.cpu_share == pytest.approx(0.5)
    assert batch_rows(Timeline()) == []


def test_each_worker_has_a_line_above_and_below():
    above, below = batches_over_run(Timeline(batches=[batch(k) for k in range(4)])).axes
    assert [list(line.get_ydata()) for line in above.lines] == [[8, 9, 10, 11], [8, 7, 6, 5]]
    assert [line.get_ydata()[0] for line in below.lines] == [1.0, 2.0]
