"""The guardian itself, as a launcher leaves it behind."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from nalb.process import guardian
from nalb.process.own_program import own_argv


@pytest.mark.parametrize(("last_words", "stays"), [(b"", False), (b"done\n", True)])
def test_what_goes_with_the_job_goes_where_the_launcher_is_killed(tmp_path, last_words, stays):
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "n0.key").write_text("secret")
    door = tmp_path / "observers"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(door))
    words = ["no such job", str(folder), str(door), str(tmp_path / "not made")]
    subprocess.run(own_argv("nalb.process.guardian", *words), input=last_words, check=True)
    assert folder.exists() == door.exists() == stays


def test_adopted_children_are_reaped_and_those_of_other_code_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "REAP_S", 0.0)
    with guardian.Descent() as descent:
        own = subprocess.Popen(["sh", "-c", "exit 3"])
        told = subprocess.run(["sh", "-c", "setsid sleep 600 >&2 & echo $!"], stdout=subprocess.PIPE, check=True)
        orphan = Path("/proc", told.stdout.decode().strip())
        os.kill(int(orphan.name), signal.SIGKILL)
        end_s = time.monotonic() + 10
        while orphan.exists():
            descent.reap([own.pid])
            assert time.monotonic() < end_s
            time.sleep(0.01)
        assert own.wait() == 3
