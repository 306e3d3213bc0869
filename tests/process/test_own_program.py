"""nalb's own programs run Python's modules and nalb's, whatever lies in the working folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.process.own_program import ROOT, WITHOUT_FOLDER, own_argv, own_code_argv, python_path

PLANTED = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\nraise SystemExit(1)\n"


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with modules that are called like Python's."""
    for name in ("ctypes", "queue", "select", "subprocess", "contextlib"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    return tmp_path


@pytest.mark.parametrize("inherited", [None, "", os.pathsep, f"{os.pathsep}/nowhere"])
def test_the_working_folder_is_not_looked_into(planted: Path, inherited: str | None) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path(inherited or "")}
    for argv in (own_argv("nalb.process.guardian", "job"), own_code_argv("import nalb.process.guardian")):
        done = subprocess.run(argv, cwd=planted, env=environment, input=b"done\n", capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
    assert list(planted.glob("*.ran")) == []


@pytest.mark.parametrize("safe_path", [{}, {"PYTHONSAFEPATH": "1"}])
def test_another_python_may_lack_the_option_p(planted: Path, safe_path: dict[str, str]) -> None:
    """As 3.10 does, for which this Python stands in."""
    python = planted / "python"
    python.write_text(f'#!/bin/sh\n[ "$1" = -P ] && exit 2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path(""), **safe_path}
    for argv in (
        own_argv("nalb.process.guardian", "job", python=str(python)),
        [str(python), "-c", WITHOUT_FOLDER + "import nalb.process.guardian"],
    ):
        done = subprocess.run(argv, cwd=planted, env=environment, input=b"done\n", capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
    assert list(planted.glob("*.ran")) == []


def test_nothing_beside_the_packages_is_called_like_a_module_of_pythons() -> None:
    """ROOT stands on PYTHONPATH, which comes before the standard library."""
    assert {path.stem for path in ROOT.iterdir()} & sys.stdlib_module_names == set()


def test_the_users_entries_stay_behind_ours() -> None:
    assert python_path("/a::/b", "/first").split(os.pathsep) == ["/first", str(ROOT), "/a", "/b"]
