"""The agent alone, with a pipe in place of ssh: it passes output and exit code on, and ends with its leash."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from nalb.cli.main import run
from nalb.launch.agent import REPORT, VERSION, AgentOrder, AgentReport
from nalb.process.guardian import kill_marked, marked
from nalb.transport.keys import make_keys

pytestmark = pytest.mark.jobs

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"DMLC_ROLE": "scheduler", "NALB_STOCK": "1"}  # needs neither shim nor bootstrap
SHOW = "import json, os; print(json.dumps(dict(os.environ)))"
LINGER = """
import subprocess, time
subprocess.Popen(['sleep', '600'], start_new_session=True)
print('up', flush=True)
time.sleep(600)
"""
DAEMON = """
import subprocess
child = subprocess.Popen(['sh', '-c', 'sleep 60 & echo $!; exec sleep 60'], env={}, stdout=-1, start_new_session=True)
print(child.pid, int(child.stdout.readline()), flush=True)
"""


@contextmanager
def agent(order: AgentOrder, *program: str) -> "Iterator[subprocess.Popen[str]]":
    """An agent that has its order."""
    process = subprocess.Popen(
        [sys.executable, *(program or ("-m", "nalb.launch.agent"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        process.stdin.flush()
        yield process
        process.kill()
    kill_marked(order.job)


def order(name: str, *argv: str, **environment: str) -> AgentOrder:
    """For a command in Python."""
    return AgentOrder(VERSION, f"test-{os.getpid()}-{name}", "n0.worker", [*argv], ENVIRONMENT | environment)


def outcome(process: "subprocess.Popen[str]") -> tuple[list[str], AgentReport]:
    """The lines of output, and the last report."""
    assert process.stdout is not None
    lines = process.stdout.read().rstrip("\n").split("\n")  # splitlines would split at REPORT's first character
    own = [line for line in lines if REPORT not in line]
    text, _, word = lines[-1].partition(REPORT)
    return own + ([text] if text else []), msgspec.json.decode(word, type=AgentReport)


@pytest.mark.parametrize(
    ("code", "returncode"),
    [("", 0), ("raise SystemExit(255)", 255), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_the_exit_is_reported_exactly(code: str, returncode: int) -> None:
    with agent(order("exit", sys.executable, "-c", code)) as process:
        assert outcome(process)[1] == AgentReport(returncode=returncode)
        assert process.wait(5) == 0


def test_output_without_a_lines_end_stays_apart_from_the_report() -> None:
    with agent(order("output", sys.executable, "-c", "print('a'); print('b', end='')")) as process:
        assert outcome(process) == (["a", "b"], AgentReport(returncode=0))


def test_the_environment_is_the_orders_and_this_machines() -> None:
    with agent(order("environment", "python", "-c", SHOW, ODD="a 'b' $c\\n")) as process:
        lines, _ = outcome(process)
    environment = json.loads(lines[0])
    assert environment["ODD"] == "a 'b' $c\\n"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
    assert environment["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)  # `python` is the agent's own


def test_what_ps_lite_reads_is_the_orders_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PORT", "DMLC_LOCAL", "DMLC_PS_VAN_TYPE", "PS_RESEND", "PS_VERBOSE"):
        monkeypatch.setenv(name, "1")
    with agent(order("login", "python", "-c", SHOW, DMLC_PS_VAN_TYPE="p3")) as process:
        lines, _ = outcome(process)
    found = json.loads(lines[0])
    of_ps_lite = {name: value for name, value in found.items() if name.startswith(("PORT", "DMLC_", "PS_"))}
    assert of_ps_lite == {"DMLC_ROLE": "scheduler", "DMLC_PS_VAN_TYPE": "p3", "PS_VERBOSE": "1"}


def test_closing_the_leash_ends_all_that_was_started() -> None:
    wanted = order("leash", sys.executable, "-c", LINGER)
    with agent(wanted) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        while process.stdout.readline() != "up\n":
            pass
        end_s = time.monotonic() + 10
        while len(marked(wanted.job)) != 2 and time.monotonic() < end_s:  # the process, and what it detached
            time.sleep(0.01)  # which shows no environment until its exec is through
        assert len(marked(wanted.job)) == 2
        process.stdin.close()
        assert process.wait(10) == 0
        assert marked(wanted.job) == []


@pytest.mark.parametrize("end", ["", "import time; time.sleep(600)"])
def test_what_cleared_its_environment_and_has_a_session_of_its_own_ends_too(end: str) -> None:
    with agent(order("daemon", sys.executable, "-c", DAEMON + end)) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        while not (line := process.stdout.readline())[:1].isdigit():
            pass
        if end:
            process.stdin.close()
        assert process.wait(10) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in line.split())


def test_a_stopped_process_is_reported_and_can_be_ended() -> None:
    wanted = order("stopped", sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    with agent(wanted) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        words = [process.stdout.readline().removeprefix(REPORT) for _ in range(2)]
        ready, stopped = (msgspec.json.decode(word, type=AgentReport) for word in words)
        assert (ready.ready, stopped) == (process.pid, AgentReport(stopped=True))
        process.stdin.close()
        assert process.wait(10) == 0
        assert marked(wanted.job) == []


def test_a_silent_launcher_is_taken_for_dead() -> None:
    """The leash is still there, but no sign of life comes: a cable was cut."""
    wanted = order("silence", sys.executable, "-c", LINGER)
    with agent(wanted, "-c", "from nalb.launch import agent; agent.SILENCE_S = 0.5; agent.main()") as process:
        assert process.wait(10) == 0
        assert marked(wanted.job) == []


def test_a_temporary_folder_may_have_a_path_too_long_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    bind = "import os, socket; socket.socket(socket.AF_UNIX).bind(os.environ['NALB_OBSERVERS'].removeprefix('ipc://'))"
    wanted = order("observers", sys.executable, "-c", bind)
    with agent(msgspec.structs.replace(wanted, observers="NALB_OBSERVERS")) as process:
        assert outcome(process) == ([], AgentReport(returncode=0))
        assert process.wait(5) == 0
    assert list(folder.iterdir()) == []


def test_a_run_directory_need_not_be_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is part of the job's name, which goes to the hosts. A program that runs the command here stands for ssh."""
    (tmp_path / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    hosts = tmp_path / "hosts.toml"
    hosts.write_text(
        f"[[hosts]]\nname = 'a'\naddress = '127.0.0.1'\npython = '{sys.executable}'\ndirectory = '{ROOT}'\n"
    )
    words = ["--hosts", str(hosts), "--framework", "torch", "--scheme", "gloo", "--plain", "--checkpoints", "x"]
    assert run(["launch", *words, "--out", str(tmp_path / "caf\udce9"), "--", "true"]) == 0


def test_a_command_that_is_not_there() -> None:
    with agent(order("missing", "no-such-program")) as process:
        lines, report = outcome(process)
    assert lines == ["nalb: cannot start 'no-such-program' on this host: No such file or directory"]
    assert report == AgentReport(returncode=127)


def test_a_program_in_the_home_of_whoever_logs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "python").symlink_to(sys.executable)
    with agent(order("home", "~/python", "-S", "-E", "-c", "import sys; print(sys.argv[1])", "~/data")) as process:
        assert outcome(process) == (["~/data"], AgentReport(returncode=0))


def test_an_order_of_another_version() -> None:
    with agent(msgspec.structs.replace(order("version", "true"), version=VERSION + 1)) as process:
        assert process.stdout is not None
        assert "install one nalb on all" in process.stdout.read()
        assert process.wait(5) == 2


def test_keys_lie_in_private_files_while_the_process_lives() -> None:
    show = "import os; path = os.environ['NALB_KEYS']; print(path, open(path).read().count('peer'))"
    modes = "print(*(oct(os.stat(one).st_mode & 0o777) for one in (path, os.path.dirname(path))))"
    keys = make_keys({"n0": "10.0.0.1", "n1": "10.0.0.2"})["n0"]
    asked = order("keys", sys.executable, "-c", f"{show}; {modes}", NALB_NODE="n0")
    with agent(msgspec.structs.replace(asked, keys=keys.text())) as process:
        lines, last = outcome(process)
    assert last.returncode == 0, lines
    path, count = lines[-2].split()
    assert (count, lines[-1]) == ("2", "0o600 0o700")
    assert not Path(path).parent.exists()


def test_a_full_disk_is_named() -> None:
    keys = make_keys({"n0": "10.0.0.1"})["n0"]
    asked = msgspec.structs.replace(order("full", "true", NALB_NODE="n0"), keys=keys.text())
    with agent(asked, "-c", "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
               "import sys; from nalb.launch.agent import main; sys.exit(main())") as process:  # fmt: skip
        lines, last = outcome(process)
    assert len(lines) == 1
    assert lines[0].startswith("nalb: no place for keys and sockets on this host (")
    assert last.returncode == 3


def test_keys_of_another_node_are_refused_and_removed(tmp_path: Path) -> None:
    keys = make_keys({"n0": "10.0.0.1"})["n0"]
    asked = msgspec.structs.replace(order("other", "true", NALB_NODE="n1"), keys=keys.text())
    with agent(asked, "-c", f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
               "import sys; from nalb.launch.agent import main; sys.exit(main())") as process:  # fmt: skip
        lines, last = outcome(process)
    assert last.returncode == 2
    assert "holds the keys of node n0, this is n1" in lines[-1]
    assert list(tmp_path.iterdir()) == []
