"""Batch sizes on real processes of PyTorch."""

import json
import time
from pathlib import Path

import pytest

from nalb.events import BatchEvent
from nalb.reporting.run_file import read_events
from tests.torch import ranks

STEPS = 14  # sizes are chosen after the sixth
LEAST_S = 0.001  # of a run that is measured
SLOW_S = 0.1  # that unequal.py makes rank 0 sleep while it computes


@pytest.mark.torch
def test_gradients_are_those_of_the_union_of_all_batches(tmp_path: Path) -> None:
    ended = ranks.run(
        "unequal.py",
        str(STEPS),
        str(SLOW_S),
        size=2,
        NALB_SCHEME="average",  # by the plane, however fast links are
        NALB_BATCHING="lb-bsp",
        NALB_SAMPLES=str(tmp_path / "samples.jsonl"),
    )
    assert [one.code for one in ended] == [0, 0], [one.output[-3000:] for one in ended]
    drawn, others = (json.loads(one.output.partition("sizes ")[2].splitlines()[0]) for one in ended)
    assert drawn == others
    assert drawn[0] == [24, 8]
    reports = [one for one in read_events(tmp_path) if isinstance(one, BatchEvent)]
    assert [one.sizes for one in reports] == drawn
    assert [one.next_sizes for one in reports[:-1]] == drawn[1:], "the coordinator chooses"
    assert all(one.compute_s[0] >= SLOW_S for one in reports)


@pytest.mark.torch
def test_a_script_with_batch_sizes_runs_in_a_job_by_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    from nalb.torch import BatchSizes

    monkeypatch.setenv("NALB_NODE", "n0")
    monkeypatch.setenv("NALB_SITES", "n0=east")
    assert len(next(iter(BatchSizes(10, 4)))) == 4


@pytest.mark.torch
def test_unequal_sizes_are_refused_where_ranks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from nalb.errors import InputError
    from nalb.torch import BatchSizes, batching

    monkeypatch.setenv("NALB_FIRST_WORKERS", "3")
    monkeypatch.setattr(batching, "gathered", lambda own, _: [own, 8])
    with pytest.raises(InputError, match="Give all ranks the same one"):
        BatchSizes(10, 24)


@pytest.mark.torch
def test_a_script_with_batch_sizes_runs_on_gloo_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from nalb.torch import BatchSizes  # other environments have no torch

    monkeypatch.setenv("NALB_SCHEME", "gloo")
    assert len(next(iter(BatchSizes(10, 4)))) == 4


@pytest.mark.torch
@pytest.mark.parametrize(
    ("first_workers", "total", "samples"), [("3", "", 12), ("3", "40", 40), ("", "7", 7), ("", "", 4)]
)
def test_a_rank_alone_has_all_samples(
    monkeypatch: pytest.MonkeyPatch, first_workers: str, total: str, samples: int
) -> None:
    """As after a restart that left one node of three, or in a job of one node."""
    import torch.distributed as dist

    from nalb.errors import InputError
    from nalb.torch import BatchSizes

    told = {"NALB_FIRST_WORKERS": first_workers, "NALB_BATCH_TOTAL": total, "NALB_BATCHING": "lb-bsp"}
    for name, value in (told | {"MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    dist.init_process_group("nalb", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sizes = BatchSizes(100, 4, most=samples)
        assert (len(next(iter(sizes))), sizes.total) == (samples, samples)
        with pytest.raises(InputError, match=f"a total of {samples} does not fit workers that take 1 to 3 samples"):
            BatchSizes(100, 4, most=3)
        monkeypatch.setenv("NALB_BATCH_MOST", "2")
        with pytest.raises(InputError, match=f"a total of {samples} does not fit workers that take 1 to 2 samples"):
            BatchSizes(100, 4, most=3)
    finally:
        dist.destroy_process_group()


@pytest.mark.torch
def test_sizes_of_a_profile_double_up_to_the_most() -> None:
    from nalb.torch.batching import measure

    runs: list[int] = []

    def work(size: int) -> None:
        runs.append(size)
        time.sleep(LEAST_S)

    points, limit = measure(work, most=20)
    assert runs == [4] * 4 + [8] * 4 + [16] * 4, "two runs set a size up, two are timed"
    assert [size for size, _ in points] == [4, 8, 16]
    assert all(elapsed_s >= LEAST_S for _, elapsed_s in points)
    assert limit == 20


@pytest.mark.torch
def test_sizes_of_a_profile_end_where_memory_ends() -> None:
    from nalb.torch.batching import measure

    def work(size: int) -> None:
        if size > 8:
            raise MemoryError
        time.sleep(LEAST_S)

    points, limit = measure(work, most=1000)
    assert [size for size, _ in points] == [4, 8]
    assert limit == 8
