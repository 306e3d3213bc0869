"""Which framework the workers' Python has."""

import sys
from pathlib import Path

import pytest

from nalb.errors import InputError, MachineError
from nalb.launch.frameworks import FRAMEWORKS, chosen, frameworks_of


@pytest.fixture
def python(tmp_path: Path):
    """Makes a program called python3 that answers as it is told."""

    def make(answer: str, code: int = 0) -> list[str]:
        program = tmp_path / "python3"
        program.write_text(f"#!/bin/sh\necho {answer}\nexit {code}\n")
        program.chmod(0o700)
        return [str(program), "train.py"]

    return make


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_only_one_need_not_be_named(python, framework: str) -> None:
    assert chosen(None, python(framework)) == framework
    assert chosen(framework, python(framework)) == framework
    assert chosen(framework, python("mxnet torch")) == framework


def test_both_none_another_and_no_answer_are_told(python) -> None:
    both = python("mxnet torch")
    with pytest.raises(InputError, match=r"python3 has mxnet and torch: say which one trains, by --framework"):
        chosen(None, both)
    neither = r"python3 has neither mxnet nor torch: pip install -e '.\[mxnet\]' in nalb's folder or pip install torch"
    with pytest.raises(MachineError, match=neither):
        chosen(None, python(""))
    with pytest.raises(MachineError, match=r"python3 has no torch: pip install torch there, or name another Python"):
        chosen("torch", python("mxnet"))
    with pytest.raises(MachineError, match=r"python3 does not say which framework it has .*: add --framework"):
        chosen(None, python("", code=1))


def test_a_wrapper_may_bring_any_python() -> None:
    assert chosen("torch", ["env", "python", "train.py"]) == "torch"


def test_this_python_knows_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called as a framework where the command runs is none."""
    found = frameworks_of(sys.executable)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    assert frameworks_of(sys.executable) == found
