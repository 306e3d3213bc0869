"""`nalb` itself: its version, and completion as a real bash does it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nalb
from nalb.cli import doctor
from nalb.cli.main import SUBCOMMANDS, run
from nalb.errors import InputError, MachineError
from tests.reporting.runs import write_fake_run

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}  # stdout, as for users


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"nalb {nalb.__version__}\n")


def test_a_lack_of_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_args: object) -> int:
        raise MemoryError

    monkeypatch.setattr(doctor, "main", fail)
    assert run(["doctor"]) == MachineError.exit_code
    assert capsys.readouterr().err == "nalb doctor: no memory is left: free memory, or raise ulimit -v\n"


NUMPY = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    raise ImportError("numpy.core.multiarray failed to import")  # as numpy's imports in C turn it
"""


def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(NUMPY)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    argv = [sys.executable, "-m", "nalb.cli.main", "plan"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "nalb plan: interrupted\n")


@pytest.mark.parametrize("nobody", ["2>/dev/full", "2>&1 | true; exit ${PIPESTATUS[0]}"])
def test_the_exit_code_tells_where_nobody_reads(nobody: str) -> None:
    command = f"{sys.executable} -m nalb.cli.main launch --local 0 -- true {nobody}"
    assert subprocess.run(["bash", "-c", command]).returncode == InputError.exit_code


@pytest.mark.parametrize(
    "words",
    [
        "plan --capacities-mbps 1,2 --model-bytes 1000",
        "net trace --family mobile --seed 1 --seconds 1000 --low 1 --high 9",  # more than a buffer
        "why {run}",
        "trace {run}",
        "simulate --random 2:10-20:1 --model-bytes 1000",
        "keys --help",
        "--version",
    ],
)
def test_a_full_disk_under_stdout_is_one_line(tmp_path: Path, words: str) -> None:
    write_fake_run(tmp_path)
    command = f"{sys.executable} -m nalb.cli.main {words.format(run=tmp_path)} > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=BUFFERED)
    name = "nalb" if words == "--version" else f"nalb {words.split()[0]}"
    says = f"{name}: standard output: No space left on device: make room there\n"
    assert (done.returncode, done.stderr) == (MachineError.exit_code, says)


def test_a_lack_of_descriptors_is_one_line() -> None:
    command = f"ulimit -n 10; {sys.executable} -m nalb.cli.main launch --framework torch --local 2 -- true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    says = "nalb launch: Too many open files: raise ulimit -n, or use fewer nodes\n"
    assert (done.returncode, done.stderr) == (MachineError.exit_code, says)


@pytest.mark.parametrize("home", [[], ["HOME=/dev/null"]])
@pytest.mark.parametrize("command", ["report", "trace"])
def test_figures_need_no_home(command: str, home: list[str]) -> None:
    """The user is one that /etc/passwd does not know."""
    nobody = ["unshare", "--user", "--map-user=54321", "env", "-i", f"PATH={os.environ['PATH']}", *home]
    if subprocess.run([*nobody, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs user namespaces")
    argv = [*nobody, sys.executable, "-m", "nalb.cli.main", command, "nodir"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == InputError.exit_code
    assert done.stderr.startswith(f"nalb {command}: nodir: no such directory: ")


def test_a_tilde_is_the_home_behind_a_flags_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.toml").write_text("[[hosts]]\nname = 'a'\naddress = '10.0.0.1'\n")
    assert run(["keys", "--hosts=~/hosts.toml", "--out=~/keys"]) == 0
    assert (tmp_path / "keys" / "a.keys").exists()


def test_a_tilde_in_a_word_of_its_own_is_the_shells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell leaves one that begins a folder's name."""
    monkeypatch.chdir(tmp_path)
    write_fake_run(tmp_path / "~run")
    assert run(["why", "~run"]) == 0


def test_paths_need_not_be_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path / "caf") + b"\xe9"))
    folder.mkdir()
    write_fake_run(folder)
    assert run(["trace", str(folder)]) == 0
    assert run(["keys", "--nodes", "a=10.0.0.1", "--out", str(folder / "keys")]) == 0
    printed = capsys.readouterr().out
    assert "caf?/trace.json" in printed
    assert "caf?/keys/a.keys" in printed


@pytest.fixture(scope="module")
def script() -> str:
    """What bash is to read."""
    argv = [sys.executable, "-m", "nalb.cli.main", "--print-completion", "bash"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def completed(script: str, folder: Path, *words: str) -> set[str]:
    """What bash offers for the last of the words after `nalb`."""
    typed = " ".join(f"'{word}'" for word in ("nalb", *words))
    ask = f"""{script}
        COMP_WORDS=({typed}) COMP_CWORD={len(words)} COMP_LINE="nalb {" ".join(words)}" COMP_POINT=${{#COMP_LINE}}
        function=$(complete -p nalb | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        compopt() {{ :; }}
        $function nalb "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", ask], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_flags_choices_and_files(script: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    (tmp_path / "runs").mkdir()
    assert set(SUBCOMMANDS) <= completed(script, tmp_path, "")
    assert completed(script, tmp_path, "comp") == {"compare"}
    assert "--max-restarts" in completed(script, tmp_path, "launch", "--max")
    assert completed(script, tmp_path, "launch", "--transport", "") == {"mxnet", "pyzmq"}
    assert completed(script, tmp_path, "net", "r") == {"random"}
    assert completed(script, tmp_path, "launch", "--hosts", "m") == {"mine.toml"}
    assert completed(script, tmp_path, "report", "r") == {"runs"}
    assert completed(script, tmp_path, "net", "up", "m") == {"mine.toml"}
    assert completed(script, tmp_path, "launch", "--network", "m") == {"mine.toml"}
    assert completed(script, tmp_path, "launch", "--network", "wan4") == {"wan4-static", "wan4-step", "wan4-traces"}
    assert "wan6-static" in completed(script, tmp_path, "net", "up", "")


@pytest.mark.parametrize("words", [["--print-completion", "zsh"], ["--print-completion=zsh"]])
def test_zsh_has_a_script_too(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "#compdef nalb" in printed
    assert "--max-restarts" in printed


@pytest.mark.parametrize(
    "words", ["trace {run} --force", "why {run}", "plan --capacities-mbps 1,2 --model-bytes 1000", "keys --help"]
)
def test_a_reader_that_went_away_is_no_error(tmp_path: Path, words: str) -> None:
    write_fake_run(tmp_path)
    nalb = [sys.executable, "-m", "nalb.cli.main", *words.format(run=tmp_path).split()]
    argv = ["bash", "-c", '"$@" | true; exit ${PIPESTATUS[0]}', "-", *nalb]
    for _ in range(2):  # a pipe that is closed at once, and one that takes some of it first
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=BUFFERED)
        assert (done.returncode, done.stderr) == (0, "")
        argv[2] = argv[2].replace("| true", "| head -c 1 > /dev/null")
