"""What a framework's Checkpoints share; all else is tested through them (tests/kvstore/test_restore.py, tests/torch)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.checkpoints import folder as folders
from nalb.checkpoints import lock
from nalb.checkpoints.file import Progress
from nalb.checkpoints.keeper import Keeper
from nalb.errors import CheckpointError


@pytest.mark.parametrize(("is_in_job", "left"), [(True, set()), (False, {"n2"})])
def test_what_another_node_was_writing_is_removed_in_a_job_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in_job: bool, left: set[str]
) -> None:
    """A process without a job does not know whether another one is writing."""
    monkeypatch.setenv("NALB_NODE", "n1")
    for node in ("n1", "n2"):
        (tmp_path / f".{folders.file_name(3)}.{node}.writing").touch()
    assert Keeper(1, tmp_path, 2, 0, None).find(is_in_job) is None
    assert set(folders.cut_short(tmp_path)) == left


@pytest.mark.parametrize(
    ("address", "owner"),
    [
        ("localhost", "the job of master localhost:29500 on here"),
        ("127.0.0.1", "the job of master 127.0.0.1:29500 on here"),
        ("10.0.0.1", "the job of master 10.0.0.1:29500"),
    ],
)
def test_a_job_that_meets_on_loopback_is_named_by_its_host_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, owner: str
) -> None:
    """Jobs of two hosts may have the same loopback address and port, and one shared folder."""
    monkeypatch.delenv(lock.VARIABLE, raising=False)
    monkeypatch.setenv("MASTER_ADDR", address)
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    Keeper(1, tmp_path, 1, 0, None).claim("master", "MASTER_ADDR", "MASTER_PORT")
    assert (tmp_path / lock.FILE).read_text() == owner


def test_when_one_is_due_and_what_cannot_be(tmp_path: Path) -> None:
    keeper = Keeper(4, tmp_path, 1, 0, None)
    assert [iteration for iteration in range(1, 13) if keeper.is_due(Progress(iteration))] == [4, 8, 12]
    assert not Keeper(0, tmp_path, 1, 0, None).is_due(Progress(4))
    for every, keep in ((-1, 1), (1, 0)):
        with pytest.raises(CheckpointError, match="give every 0 or more, and keep 1 or more"):
            Keeper(every, tmp_path, keep, 0, None)


def test_the_seed_follows_iteration_and_rank(tmp_path: Path) -> None:
    keeper = Keeper(1, tmp_path, 1, 7, None)
    seeds = {keeper.seed_random(iteration, rank) for iteration in range(3) for rank in range(3)}
    assert len(seeds) == 9
    assert keeper.seed_random(2, 1) == Keeper(1, tmp_path, 1, 7, None).seed_random(2, 1)


def test_two_processes_of_one_number_and_one_host_name_are_two_jobs(tmp_path: Path) -> None:
    """As in two containers of a machine, where each is process 1."""
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom nalb.checkpoints.keeper import Keeper\n"
        "os.getpid = lambda: 1\n"
        "keeper = Keeper(1, Path(sys.argv[1]), 2, 0, None)\n"
        "keeper.claim('master', 'NO_ADDR', 'NO_PORT')\nprint('claimed', flush=True)\nsys.stdin.read()"
    )
    argv = [sys.executable, "-c", script, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != lock.VARIABLE}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "claimed\n"
        second = subprocess.run(argv, input="", capture_output=True, text=True, check=False, env=environment)
        first.kill()
    assert (second.returncode != 0, "claimed" in second.stdout) == (True, False)
    assert "is used by process 1 on" in second.stderr
