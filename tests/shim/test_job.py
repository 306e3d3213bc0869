"""The shim in a job with a name: the same messages as without, and none of other jobs."""

import pytest

from tests.shim.conftest import Build

pytestmark = pytest.mark.jobs

NAMED = {"NALB_JOB": "0123456789abcdef:n0.worker", "NALB_ADDRESSES": "127.0.0.1"}


@pytest.mark.parametrize("scenario", ["exchange", "many_peers", "threads", "churn", "ends", "interleaved"])
def test_the_same_messages_as_without_a_name(build: Build, scenario: str) -> None:
    plain, named = build.run(scenario), build.run(scenario, **NAMED)
    assert named.lines == plain.lines
    assert named.counters == plain.counters


def test_messages_of_another_job_are_dropped_and_its_ids_are_not_ours(build: Build) -> None:
    seen = build.run("foreign", **NAMED)
    control, *ours = seen.lines
    assert control.split()[1] == "0:"  # the identity of one that has no id yet, as ps-lite gets it
    assert [line.split()[1] for line in ours] == ["3:ps9", "3:ps9"]
    assert 1 <= seen.counters["foreign_messages"] <= 7  # four messages and three forecasts; the last may come too late
    assert seen.counters["hostile_frames"] == 0
    assert [one.peer for one in seen.samples] == [9, 9]
    assert seen.self_id == 9


@pytest.mark.parametrize("missing", ["NALB_JOB", "NALB_ADDRESSES"])
def test_without_a_name_all_are_taken(build: Build, missing: str) -> None:
    seen = build.run("foreign", **{**NAMED, missing: ""})
    assert any("ps9@other" in line for line in seen.lines)
    assert seen.counters["foreign_messages"] == 0
