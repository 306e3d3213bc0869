"""A front end that is not MXNet's KVStore needs the recorder and the exchange alone, or the exchange alone."""

import json
from pathlib import Path

import pytest

from .test_store import run_job

pytestmark = pytest.mark.mxnet


@pytest.mark.parametrize(("way", "without_plan"), [("learns", 1), ("knows", 0)])
def test_numpys_arrays_are_summed_by_plan(tmp_path, way, without_plan):
    script = str(Path(__file__).with_name("toy_front_end.py"))
    done = run_job(tmp_path, script, way, flags=("--scheme", "average", "--verify-sums"))
    assert done.returncode == 0, done.stdout + done.stderr
    events = list(map(json.loads, (tmp_path / "run" / "samples.jsonl").read_text().splitlines()))
    ended = [event for event in events if event["event"] == "iteration"]
    assert len(ended) == 12 - without_plan
