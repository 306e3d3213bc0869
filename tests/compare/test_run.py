"""What a comparison keeps where a training fails: why, and the results of those before it."""

import sys
from pathlib import Path

import pytest

from nalb.compare import run as comparing
from nalb.compare.run import CompareRequest, compare_batchings, compare_schemes
from nalb.compare.variants import parse_variants
from nalb.errors import JobError
from nalb.events import FailureEvent
from nalb.failures import JobFailed
from nalb.launch.venue import Where
from nalb.options import JobOptions
from nalb.reporting.batching_file import BatchingResult, read_batchings
from nalb.reporting.run_file import read_events
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


@pytest.mark.jobs
def test_the_record_tells_why_a_training_failed(tmp_path: Path) -> None:
    """So that those who follow the run see it."""
    command = (sys.executable, "-c", "raise SystemExit(7)")
    request = CompareRequest(Where(local=(2,)), JobOptions(), None, None, None, tmp_path, command=command)
    with pytest.raises(JobFailed) as caught:
        compare_schemes(request, parse_variants(["exact"]))
    failed = read_events(tmp_path)[-1]
    assert isinstance(failed, FailureEvent)
    assert failed.failure == caught.value.failure
    assert failed.failure.detail == "exited with 7"
