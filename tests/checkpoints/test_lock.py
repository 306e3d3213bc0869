"""The folder's lock: one job at a time, whatever became of the one before."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.checkpoints import folder, lock
from nalb.cli.main import run
from nalb.errors import CheckpointError

HOLD = "import sys; from nalb.checkpoints.lock import claim; from pathlib import Path; file = claim(Path(sys.argv[1]), 'theirs')"


def test_the_processes_of_a_job_share_it_and_another_job_is_told_whose_it_is(tmp_path: Path) -> None:
    place = tmp_path / "new"
    used = pytest.raises(CheckpointError, match=f"{place} is used by ours: wait")
    with lock.claim(place, "ours"), lock.claim(place, "ours"), used:
        lock.claim(place, "theirs")
    lock.claim(place, "theirs, of a longer name").close()
    lock.claim(place, "ours").close()


def test_a_killed_job_keeps_nobody_out(tmp_path: Path) -> None:
    code = f"{HOLD}; print('held', flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointError, match="theirs"):
            lock.claim(tmp_path, "ours")
        other.kill()
    with lock.claim(tmp_path, "ours"):
        assert (tmp_path / lock.FILE).read_text() == "ours"


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock.claim(tmp_path, "ours").close()
    assert f"{tmp_path} cannot be locked (Function not implemented): give it to no other job" in caplog.text


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"checkpoint folder {tmp_path / 'file'}: File exists: choose another"):
        lock.claim(tmp_path / "file", "ours")


def test_a_launch_leaves_alone_what_another_job_is_writing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "checkpoints"
    place.mkdir()
    half = place / f".{folder.file_name(7)}.n0.writing"
    half.touch()
    arguments = ["launch", "--local", "1", "--out", str(tmp_path / "run"), "--checkpoints", str(place), "--", "true"]
    with lock.claim(place, "nalb launch (process 7 on n, run directory runs/first)"):
        assert run(arguments) == CheckpointError.exit_code
    assert "is used by nalb launch (process 7 on n, run directory runs/first): wait" in capsys.readouterr().err
    assert half.exists()
