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
from nalb.cli.main import run
from nalb.failures import Cause, Phase
from tests.failures import noted_in, when, who
from tests.launch.conftest import ROOT, START_LIMIT_S, Launch, Launched

TRAINING = [sys.executable, str(ROOT / "tests/launch/training.py")]

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]


def curve(job: Launched) -> dict[int, float]:
    """Iteration -> rank 0's loss; -1: the net's answers at the end. What attempts computed twice is taken from the last."""
    return dict(values(job))


def values(job: Launched) -> list[tuple[int, float]]:
    """The same as a list, with what was computed twice."""
    lines = re.findall(r"(?:loss (\d+)|evaluated) (\S+)", job.output)
    return [(int(iteration or -1), float(value)) for iteration, value in lines]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """What two nodes with batches of 8 must come to: the plain net on one, with batches of 16."""
    arguments = ["--local", "1", "--", *TRAINING, "--plain", "--batch", "16"]
    job = Launched(arguments, tmp_path_factory.mktemp("plain") / "run", [], {})
    try:
        assert job.end(START_LIMIT_S)[0] == 0, job.output
        return curve(job)
    finally:
        job.destroy()


def restarts(job: Launched) -> list[str]:
    """The launcher's lines about them."""
    return [line for line in job.lines if line.startswith("nalb launch: ") and "; restart " in line]


def test_on_one_node_the_curve_is_exactly_the_same(launch: Launch) -> None:
    """The worker is killed while it writes a checkpoint."""
    whole = launch("--local", "1", "--", *TRAINING)
    job = launch(
        "--local", "1", "--max-restarts", "1", "--", *TRAINING, "--fault", "kill-in-checkpoint", "--fault-at", "15"
    )
    assert whole.end(START_LIMIT_S)[0] == 0, whole.output
    assert job.end(2 * START_LIMIT_S)[0] == 0, job.output
    (line,) = restarts(job)
    failure = noted_in(job.run_dir)
    assert (failure.cause, who(failure), when(failure)) == (Cause.ENDED, ("worker", "n0"), (Phase.CHECKPOINT, 15))
    assert line.endswith("restart 1 of 1 on all nodes, from iteration 10 (epoch 0, batch 10)")
    assert len(curve(whole)) == 37
    assert curve(job) == curve(whole)
    assert [path.name for path in folder.paths(job.run_dir / "checkpoints")] == [folder.file_name(k) for k in (30, 35)]
    job.assert_nothing_left()


def test_what_killed_writers_left_goes_where_the_launcher_does_not_see_it(launch: Launch, tmp_path: Path) -> None:
    """As on hosts: each node has a folder that the launcher does not know, and another node may be rank 0 now."""
    left = [tmp_path / own / f".{folder.file_name(7)}.{node}.writing" for own in ("n0", "n1") for node in (own, "n2")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    job = launch("--local", "2", "--checkpoints", str(tmp_path), "--", *TRAINING, "--own-folder", "--epochs", "1")
    assert job.end(START_LIMIT_S)[0] == 0, job.output
    assert not any(path.exists() for path in left)
    assert list(tmp_path.rglob("*.nalb"))


def test_on_two_nodes_when_a_server_is_killed(launch: Launch, plain: dict[int, float]) -> None:
    """With a folder for each node, only one of which has checkpoints: they travel through the store."""
    training = [*TRAINING, "--plain", "--own-folder", "--fault", "wait"]
    job = launch("--local", "2", "--max-restarts", "1", "--", *training)
    job.wait_for("loss 12")
    os.kill(job.pid("server", "n1"), signal.SIGKILL)
    code, _ = job.end(START_LIMIT_S)
    assert code == 0, job.output
    (line,) = restarts(job)
    assert line
    assert (noted_in(job.run_dir).cause, who(noted_in(job.run_dir))) == (Cause.ENDED, ("server", "n1"))
    resumed = [line for line in job.lines if "goes on from checkpoint" in line]
    assert [line.rpartition("/")[2] for line in resumed] == [folder.file_name(10)]
    twice = [[value for key, value in values(job) if key == iteration] for iteration in (10, 11, 12)]
    np.testing.assert_allclose([before for before, _ in twice], [after for _, after in twice], rtol=1e-4)
    assert_same_loss(job, plain)
    job.assert_nothing_left()


def test_with_mxnets_own_store_a_large_checkpoint_travels(launch: Launch) -> None:
    """In several pieces, from the one node that has it."""
    training = [*TRAINING, "--plain", "--own-folder", "--hidden", "4096", "--fault", "kill", "--node", "n1"]
    job = launch("--local", "2", "--max-restarts", "1", "--scheme", "stock", "--", *training)
    code, _ = job.end(2 * START_LIMIT_S)
    assert code == 0, job.output
    sizes_bytes = {path.stat().st_size for path in (job.run_dir / "checkpoints").rglob("*.nalb")}
    assert min(sizes_bytes) > 512 * 1024  # a piece (agreement.py)
    resumed = [line for line in job.lines if "goes on from checkpoint" in line]
    assert [line.rpartition("/")[2] for line in resumed] == [folder.file_name(10)]
    twice = [[value for key, value in values(job) if key == iteration] for iteration in (10, 11, 12)]
    np.testing.assert_allclose([before for before, _ in twice], [after for _, after in twice], rtol=1e-4)
    job.assert_nothing_left()


def test_a_node_that_fails_twice_is_left_out(launch: Launch, plain: dict[int, float]) -> None:
    """MXNet's own store; the node left computes all samples of every iteration, so the training is the same one."""
    training = [*TRAINING, "--plain", "--fault", "kill", "--always", "--node", "n1"]
    job = launch("--local", "2", "--max-restarts", "2", "--min-nodes", "1", "--scheme", "stock", "--", *training)
    code, _ = job.end(3 * START_LIMIT_S)
    assert code == 0, job.output
    first, second = restarts(job)
    assert who(noted_in(job.run_dir)) == who(noted_in(job.run_dir / "restart-1")) == ("worker", "n1")
    assert "restart 1 of 2 on all nodes, from iteration 10" in first
    assert "restart 2 of 2 without n1, from iteration 10" in second
    assert_same_loss(job, plain)
    assert {path.name for path in (job.run_dir / "restart-2" / "logs").iterdir()} == {
        "n0.scheduler.log", "n0.server.log", "n0.worker.log"}  # fmt: skip
    job.assert_nothing_left()


def assert_same_loss(job: Launched, plain: dict[int, float]) -> None:
    """The net's answers at the end, up to the order of sums; every iteration was made."""
    assert curve(job).keys() == plain.keys()
    np.testing.assert_allclose(curve(job)[-1], plain[-1], rtol=1e-3)


def test_the_disk_is_full(launch: Launch) -> None:
    job = launch("--local", "1", "--", *TRAINING, "--fault", "full")
    code, _ = job.end(START_LIMIT_S)
    assert code == 1, job.output
    job.assert_disk_was_full(at=15, kept=10)


def test_the_environment_names_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    run(["launch", "--local", "1", "--print-env", "--checkpoints", str(kept), "--", *TRAINING])
    assert sum(f"NALB_CHECKPOINTS={kept} " in line for line in capsys.readouterr().out.splitlines()) == 3
