"""about.json: written when a run begins, and read by its report."""

import pytest

from nalb.errors import InputError, MachineError
from nalb.reporting.about_file import read_about, write_about


def test_a_run_says_when_where_and_how_it_began(tmp_path):
    assert read_about(tmp_path) is None
    write_about(tmp_path, "1.2.3", ["compare", "--network", "my net", "caf\udce9"], iterations=30)
    about = read_about(tmp_path)
    assert about.version == "1.2.3"
    assert about.command == ["compare", "--network", "my net", "caf?"]  # names of files need not be UTF-8
    assert about.iterations == 30
    assert "core" in about.machine
    assert about.begun[:2] == "20"


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "about.json").write_text("{")
    with pytest.raises(InputError, match=r"about.json"):
        read_about(tmp_path)


def test_a_directory_that_takes_no_files_is_named(tmp_path):
    with pytest.raises(MachineError, match="choose another --out"):
        write_about(tmp_path / "absent", "1.2.3", ["launch"])
