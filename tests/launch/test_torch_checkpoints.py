"""A PyTorch job that is killed goes on from its newest checkpoint, with the batch sizes that it had; a full disk is named."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nalb.events import BatchEvent
from nalb.reporting.run_file import read_events
from tests.launch.conftest import END_LIMIT_S, START_LIMIT_S, Launch
from tests.launch.test_torch_launch import cache_of_torch

SCRIPT = Path(__file__).with_name("torch_checkpoints.py")
STEPS = 16


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install torch")
@pytest.mark.torch
def test_a_killed_job_ends_with_the_bits_of_one_that_was_not(launch: Launch, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(STEPS), str(tmp_path / "started"), "kill"]
    flags = ("--scheme", "average", "--batching", "off", "--max-restarts", "1")
    job = launch("--local", "2", *flags, "--", *command, **cache_of_torch(tmp_path))
    code, _ = job.end(2 * START_LIMIT_S + END_LIMIT_S)
    assert code == 0, job.output
    assert job.output.count("from step 8: bits are equal") == 2, job.output
    assert any("restart 1 of 1 on all nodes, from iteration 8" in line for line in job.lines)
    saved = sorted(path.name for path in (job.run_dir / "checkpoints").glob("*.nalb"))
    assert saved == ["checkpoint-000000012.nalb", "checkpoint-000000016.nalb"], "the newest two"
    batches = [one for one in read_events(job.run_dir / "restart-1") if isinstance(one, BatchEvent)]
    assert [one.sizes for one in batches] == [[24, 8]] * (STEPS - 8)
    job.assert_nothing_left()


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install torch")
@pytest.mark.torch
@pytest.mark.parametrize("scheme", ["average", "gloo"])
def test_the_disk_is_full(launch: Launch, tmp_path: Path, scheme: str) -> None:
    """The plane counts iterations from where it begins to plan: the line has the checkpoint's own."""
    command = [sys.executable, str(SCRIPT), str(STEPS), str(tmp_path / "started"), "full"]
    job = launch("--local", "2", "--scheme", scheme, "--", *command, **cache_of_torch(tmp_path))
    code, _ = job.end(START_LIMIT_S + END_LIMIT_S)
    assert code, job.output
    job.assert_disk_was_full(at=12, kept=8)
