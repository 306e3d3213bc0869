"""What a comparison of batchings says of its iterations."""

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from nalb.errors import InputError, MachineError
from nalb.reporting.batching_file import BatchingFile, BatchingResult, read_batchings, write_batchings
from nalb.reporting.run_file import RunFile, write_run


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


def test_the_time_to_an_accuracy_ends_with_the_last_gradient():
    """The first batch begins at 0 s, the second at 3 s, the third at 7 s; the second one's gradient takes 2 s."""
    curve = [(1, 0.5), (2, 0.7)]
    result = BatchingResult(
        True, [[10]] * 3, [[1.0], [2.0], [1.0]], [[0.0], [3.0], [4.0]], [[0.0]] * 3, None, None, curve
    )
    assert result.seconds_to(0.5) == pytest.approx(1.0)
    assert result.seconds_to(0.7) == pytest.approx(5.0)
    assert result.seconds_to(0.8) is None


RUN = BatchingFile(
    "net", "train cnn", "auto", 20, {"off": BatchingResult(True, [[10, 10]], [[1.0] * 2], [], [], None, None)}
)


def write_other(run_dir: Path) -> None:
    write_run(run_dir, RunFile("net", "replay mobilenet", 2, 1000, 1.0, {}))


@pytest.mark.parametrize(("name", "write"), [("batching", lambda d: write_batchings(d, RUN)), ("run", write_other)])
def test_a_result_that_finds_no_room_is_not_there(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    """A limit of the file size is a disk that is full in the middle of the file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(MachineError, match=rf"/{name}\.json: File too large: make room or choose another --out\Z"):
            write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.json"]


def test_what_is_wrong_with_a_file_is_named(tmp_path: Path) -> None:
    write_batchings(tmp_path, RUN)
    assert read_batchings(tmp_path) == RUN
    (tmp_path / "batching.json").write_text('{"network":')
    with pytest.raises(InputError, match=r"batching\.json: .*; restore the file, or remove it"):
        read_batchings(tmp_path)
