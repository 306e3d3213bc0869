"""The folder's lock: one job at a time, whatever became of the one before."""

import fcntl
import resource
import subprocess
import sys
import threading
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


def test_a_name_need_not_be_utf_8(tmp_path: Path) -> None:
    with lock.claim(tmp_path, "caf\udce9"), lock.claim(tmp_path, "caf\udce9"):
        pass


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


def test_a_full_disk_is_named_and_its_process_holds_nothing_that_others_wait_for(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        with pytest.raises(CheckpointError, match=f"checkpoint folder {tmp_path}: File too large: make room there"):
            lock.claim(tmp_path, "ours")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / lock.FILE).read_bytes() == b""  # no part of a name, which would be another job's
    with lock.claim(tmp_path, "ours"):
        assert (tmp_path / lock.FILE).read_text() == "ours"


def test_nobody_waits_for_ever_for_a_process_that_writes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / lock.FILE).open("a+") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with monkeypatch.context() as patch:
            patch.setattr(lock, "WRITTEN_S", 0.1)
            with pytest.raises(CheckpointError, match=rf"{tmp_path}: a process locked \.lock 0\.1 s ago and has not"):
                lock.claim(tmp_path, "ours")
        threading.Timer(0.2, fcntl.flock, (stopped, fcntl.LOCK_SH)).start()  # as if it had not been able to write it
        threading.Timer(0.4, fcntl.flock, (stopped, fcntl.LOCK_UN)).start()
        lock.claim(tmp_path, "ours").close()
    assert (tmp_path / lock.FILE).read_text() == "ours"


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
