"""The guardian itself, as a launcher leaves it behind."""

import socket
import subprocess

import pytest

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
