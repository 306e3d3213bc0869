"""Which sizes LBB's profile runs, how often, and what ends it."""

import time

import pytest

pytest.importorskip("torch")
from nalb.torch.profiling import measure

LEAST_S = 0.001


def test_sizes_double_up_to_the_most() -> None:
    runs: list[int] = []

    def work(size: int) -> None:
        runs.append(size)
        time.sleep(LEAST_S)

    points, limit = measure(work, most=20)
    assert runs == [4] * 4 + [8] * 4 + [16] * 4, "two runs set a size up, two are timed"
    assert [size for size, _ in points] == [4, 8, 16]
    assert all(elapsed_s >= LEAST_S for _, elapsed_s in points)
    assert limit == 20


def test_sizes_end_where_memory_ends() -> None:
    def work(size: int) -> None:
        if size > 8:
            raise MemoryError
        time.sleep(LEAST_S)

    points, limit = measure(work, most=1000)
    assert [size for size, _ in points] == [4, 8]
    assert limit == 8
