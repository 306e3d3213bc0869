"""The guardian itself, as a launcher leaves it behind."""

import subprocess

import pytest

from nalb.process.own_program import own_argv


@pytest.mark.parametrize(("last_words", "stays"), [(b"", False), (b"done\n", True)])
def test_secrets_go_where_the_launcher_is_killed(tmp_path, last_words, stays):
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "n0.key").write_text("secret")
    subprocess.run(own_argv("nalb.process.guardian", "no such job", str(folder)), input=last_words, check=True)
    assert folder.exists() == stays
