"""What a comparison keeps of trainings that ended well, where a later one fails."""

from pathlib import Path

import pytest

from nalb.compare import run as comparing
from nalb.compare.run import CompareRequest, compare_batchings
from nalb.errors import JobError
from nalb.launch.venue import Where
from nalb.options import JobOptions
from nalb.reporting.batching_file import BatchingResult, read_batchings
from netem.network_file import find_network, load_network

RESULT = BatchingResult(True, [[10, 10]], [[1.0, 1.0]], [[1.0, 1.0]], [[0.0, 0.0]], None, None)


def test_results_of_trainings_outlive_one_that_fails_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No job can be told to fail at a set time, so `run_batching` stands for one here."""

    def train(name: str, *_: object) -> BatchingResult:
        if name == "lb-bsp":
            raise JobError("worker n1 exited with 1")
        return RESULT

    monkeypatch.setattr(comparing, "run_batching", train)
    where = Where([], load_network(find_network("uneven4-cpu")), None)
    request = CompareRequest(where, JobOptions(), None, "cnn", 4, tmp_path)
    with pytest.raises(JobError):
        compare_batchings(request, ["off", "static", "lb-bsp"])
    assert list(read_batchings(tmp_path).batchings) == ["off", "static"]
