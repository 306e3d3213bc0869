"""Which framework the workers' Python has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.errors import InputError, MachineError
from nalb.launch.frameworks import FRAMEWORKS, MXNET, TORCH, chosen, chosen_on, frameworks_of
from nalb.launch.hosts import load_hosts


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


@pytest.mark.parametrize(
    ("command", "framework"),
    [("venv/bin/python", TORCH), ("~/job/venv/bin/python", TORCH), ("python", MXNET), ("env", MXNET)],
)
def test_the_commands_own_python_is_asked_on_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, framework: str
) -> None:
    """By a path relative to the host's directory or its home, through a login that prints something itself."""
    programs = {
        "ssh": 'for last; do :; done\necho Agent pid 12 of torch\nprintf "hello "\nexec sh -c "$last"',
        "python3": "echo mxnet",
        "job/venv/bin/python": "echo torch",
    }
    for name, lines in programs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hosts.toml").write_text("[[hosts]]\nname = 'a'\naddress = '10.9.0.1'\ndirectory = '~/job'\n")
    (host,) = load_hosts(tmp_path / "hosts.toml").hosts
    assert chosen_on(host, [command, "train.py"]) == framework


def test_a_host_that_cannot_be_asked_counts_as_what_the_flags_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 255\n")
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = tmp_path / "hosts.toml"
    hosts.write_text("[[hosts]]\nname = 'a'\naddress = '10.9.0.1'\ndirectory = '~/job'\n")
    (host,) = load_hosts(hosts).hosts
    assert [chosen_on(host, ["python"]), chosen_on(host, ["python"], TORCH)] == [MXNET, TORCH]
    for words in ("launch --scheme gloo --plain", "launch --precision int8", "compare --plain --schemes gloo,exact"):
        command = [sys.executable, "-m", "nalb.cli.main", *words.split(), "--hosts", str(hosts)]
        told = subprocess.run([*command, "--", "true"], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert "worker a did not start: ssh to 10.9.0.1 failed" in told.stderr, told.stderr
        assert "leave it out" not in told.stderr + told.stdout


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
