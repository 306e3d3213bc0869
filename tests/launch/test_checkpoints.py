"""Trainings that are interrupted for real: they go on from their newest whole checkpoint, as if nothing had happened."""

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from nalb.checkpoints import folder
from tests.launch.conftest import ROOT, START_LIMIT_S, Launch, Launched

TRAINING = [sys.executable, str(ROOT / "tests/launch/training.py")]
TWO_ATTEMPTS_S = 2 * START_LIMIT_S

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]


def curve(job: Launched) -> dict[int, float]:
    """Iteration -> rank 0's loss; -1: the net's answers at the end. What is computed twice is taken from the second time."""
    lines = re.findall(r"(?:loss (\d+)|evaluated) (\S+)", job.output)
    return {int(iteration or -1): float(value) for iteration, value in lines}


def trained(launch: Launch, *flags: str, nodes: int = 1, launcher: tuple[str, ...] = ()) -> Launched:
    """A training that ends well."""
    job = launch("--local", str(nodes), *launcher, "--", *TRAINING, *flags)
    assert job.end(TWO_ATTEMPTS_S)[0] == 0, job.output
    return job


@pytest.fixture(scope="module")
def plain_on_two(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The curve of the plain net on two nodes, without an interruption."""
    job = Launched(["--local", "2", "--", *TRAINING, "--plain"], tmp_path_factory.mktemp("two") / "run", [], {})
    try:
        assert job.end(START_LIMIT_S)[0] == 0, job.output
        return curve(job)
    finally:
        job.destroy()


def restarts(job: Launched) -> list[str]:
    """The launcher's lines about them."""
    return [line for line in job.lines if line.startswith("nalb launch: ") and "; restart " in line]


def test_on_one_node_the_curve_is_exactly_the_same(launch: Launch) -> None:
    """Killed between checkpoints, then in one; and after that the newest one is damaged."""
    whole = trained(launch)
    ran = launch(
        "--local", "1", "--max-restarts", "1", "--", *TRAINING, "--fault", "kill-in-checkpoint", "--fault-at", "15"
    )
    assert ran.end(TWO_ATTEMPTS_S)[0] == 0, ran.output
    (line,) = restarts(ran)
    assert line.startswith("nalb launch: phase checkpoint of iteration 15: worker n0 was killed by SIGKILL")
    assert line.endswith("restart 1 of 1 on all nodes, from iteration 10 (epoch 0, batch 10)")
    assert len(curve(whole)) == 37
    assert curve(ran) == curve(whole)
    ran.assert_nothing_left()

    newest = folder.paths(ran.run_dir / "checkpoints")[-1]
    os.truncate(newest, newest.stat().st_size - 1)
    again = trained(launch, launcher=("--checkpoints", str(newest.parent)))
    assert f"checkpoint {newest} is skipped: its content does not match its digest" in again.output
    assert min(key for key in curve(again) if key >= 0) == 30
    assert {key: curve(whole)[key] for key in curve(again)} == curve(again)


@pytest.mark.parametrize("flags", [("--scheme", "stock"), ()])
def test_on_two_nodes_when_a_server_is_killed(
    launch: Launch, plain_on_two: dict[int, float], flags: tuple[str, ...]
) -> None:
    """With a folder for each node, only one of which has checkpoints: they travel through the store, also MXNet's own."""
    training = [*TRAINING, "--plain", "--own-folder", "--fault", "wait"]
    job = launch("--local", "2", "--max-restarts", "1", *flags, "--", *training)
    job.wait_for("loss 12")
    os.kill(job.pid("server", "n1"), signal.SIGKILL)
    code, _ = job.end(START_LIMIT_S)
    assert code == 0, job.output
    assert "server n1 was killed by SIGKILL" in restarts(job)[0]
    resumed = [line for line in job.lines if "goes on from checkpoint" in line]
    assert [line.rpartition("/")[2] for line in resumed] == ["checkpoint-000000010.nalb"]
    assert curve(job).keys() == plain_on_two.keys()
    np.testing.assert_allclose(list(curve(job).values()), [plain_on_two[k] for k in curve(job)], rtol=1e-4)
    job.assert_nothing_left()


def test_a_node_that_fails_twice_is_left_out(launch: Launch, plain_on_two: dict[int, float]) -> None:
    """The node left computes all samples of every iteration, so the training is the same one."""
    training = [*TRAINING, "--plain", "--fault", "kill", "--always", "--node", "n1"]
    job = launch("--local", "2", "--max-restarts", "2", "--min-nodes", "1", "--", *training)
    code, _ = job.end(3 * START_LIMIT_S)
    assert code == 0, job.output
    first, second = restarts(job)
    assert "worker n1 was killed by SIGKILL" in first
    assert "restart 1 of 2 on all nodes, from iteration 10" in first
    assert "restart 2 of 2 without n1, from iteration 10" in second
    np.testing.assert_allclose(curve(job)[-1], plain_on_two[-1], rtol=1e-4)
    assert {path.name for path in (job.run_dir / "restart-2" / "logs").iterdir()} == {
        "n0.scheduler.log", "n0.server.log", "n0.worker.log"}  # fmt: skip
    job.assert_nothing_left()


def test_the_disk_is_full(launch: Launch) -> None:
    job = launch("--local", "1", "--", *TRAINING, "--fault", "full")
    code, _ = job.end(START_LIMIT_S)
    assert code == 1, job.output
    assert "worker n0 exited with 1: " in job.verdict()
    assert "node n0, phase checkpoint of iteration 15: File too large in" in job.verdict()
    found, skipped = folder.newest(job.run_dir / "checkpoints")
    assert found is not None
    assert (found.checkpoint.progress.iteration, skipped) == (10, [])
    job.assert_nothing_left()


def test_ctrl_c_never_restarts(launch: Launch) -> None:
    job = launch("--local", "1", "--max-restarts", "5", "--", *TRAINING, "--fault", "wait")
    job.wait_for("loss 12")
    job.signal(signal.SIGINT)
    code, _ = job.end()
    assert code == 128 + signal.SIGINT
    assert "ended by SIGINT" in job.verdict()
    assert not (job.run_dir / "restart-1").exists()
    job.assert_nothing_left(within_s=0)


def test_the_environment_names_the_folder(launch: Launch, tmp_path: Path) -> None:
    job = launch("--local", "1", "--print-env", "--checkpoints", str(tmp_path / "kept"), "--", *TRAINING)
    job.end()
    assert sum(f"NALB_CHECKPOINTS={tmp_path / 'kept'} " in line for line in job.lines) == 3
