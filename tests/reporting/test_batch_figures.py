"""The figure and the rows of batches."""

from math import nan

import pytest
from msgspec import structs

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


def test_a_job_that_grew_has_rows_and_lines_of_every_worker():
    grown = batch(1)
    lists = {name: [9, *getattr(grown, name)] for name in ("sizes", "compute_s", "wait_s", "cpu_share", "next_sizes")}
    record = Timeline(batches=[batch(0), structs.replace(grown, workers=["n2", "n0", "n1"], **lists)])
    told = [(row.worker, row.first_size, row.last_size) for row in batch_rows(record)]
    assert told == [("n0", 8, 9), ("n1", 8, 7), ("n2", 9, 9)]
    above, _ = batches_over_run(record).axes
    assert [list(line.get_ydata()) for line in above.lines] == [[8, 9], [8, 7], [pytest.approx(nan, nan_ok=True), 9]]
