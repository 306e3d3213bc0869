"""`nalb net`: exit codes and one-line errors, as root, and as nobody in a user namespace, as other commands there."""

import errno
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyroute2
import pytest

from nalb.cli.main import run
from nalb.doctor.emulation import PROBE
from nalb.errors import MachineError
from netem import namespaces, rootless, verify, verify_cpu
from tests.netem.conftest import SITE_OF_B, TWO_NODES, UNEVEN_NODES, leftovers, standing_groups

ROOT = Path(__file__).parents[2]
NOBODY = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "env",
]  # env: setpriv itself still reads as root
# Runs the words behind it, whose mounts fail with EACCES, as AppArmor makes them in containers and, on some machines, in user
# namespaces. Only unshare's own MS_PRIVATE passes. The filter's lines: take the system call's number; is it move_mount, then fail;
# if it is not mount, go on; take its flags; with MS_PRIVATE go on; fail; go on.
DENYING_MOUNTS = """
import ctypes, os, struct, sys
mount = 40 if os.uname().machine == "aarch64" else 165
lines = (
    (0x20, 0, 0, 0), (0x15, 3, 0, 429), (0x15, 0, 3, mount), (0x20, 0, 0, 40), (0x45, 1, 0, 1 << 18),
    (0x06, 0, 0, 0x50000 | 13), (0x06, 0, 0, 0x7FFF0000),
)
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
libc = ctypes.CDLL(None)
done = libc.prctl(38, 1, 0, 0, 0), libc.prctl(22, 2, struct.pack("HP", len(lines), ctypes.addressof(program)))
assert done == (0, 0), "no seccomp"
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.parametrize("action", ["up", "verify", "down"])
def test_a_bad_file_is_one_line_and_exit_code_2(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "bad.toml"
    path.write_text('name = "Bad"')
    assert run(["net", action, str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert f"{path}: name is 'Bad'" in captured.err


@pytest.mark.root
def test_up_verify_down(network_path: Path, name: str, capsys: pytest.CaptureFixture[str]):
    assert run(["net", "down", str(network_path)]) == 0
    assert "is not up" in capsys.readouterr().out
    assert run(["net", "up", str(network_path)]) == 0
    assert "10.77.0.2" in capsys.readouterr().out
    assert run(["net", "up", str(network_path)]) == 2
    assert "already up" in capsys.readouterr().err
    assert run(["net", "status"]) == 0
    assert f"network {name} is up: a, b\n" in capsys.readouterr().out
    assert run(["net", "verify", str(network_path)]) == 0
    assert capsys.readouterr().out.count("up  ") == 2
    assert namespaces.standing(name), "verify leaves a network that was up"
    assert run(["net", "down", str(network_path)]) == 0
    assert leftovers(name) == []
    assert run(["net", "status"]) == 0
    assert f"network {name} is" not in capsys.readouterr().out


@pytest.mark.root
def test_what_is_left_of_a_network_without_a_hub_is_told_and_removed(
    network_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["net", "up", str(network_path)]) == 0
    subprocess.run(["ip", "netns", "del", f"nalb-{name}"], check=True)
    capsys.readouterr()
    assert run(["net", "status"]) == 0
    told = f"network {name} is not whole: its hub is gone, and left are a, b; run `nalb net down {name}`\n"
    assert told in capsys.readouterr().out
    assert run(["net", "verify", str(network_path)]) == 2
    assert "is not whole" in capsys.readouterr().err
    assert run(["net", "down", name]) == 0
    assert leftovers(name) == []


@pytest.mark.root
def test_up_says_which_machines_share_a_sites_link(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "network.toml"
    slow = TWO_NODES.replace("100", "40").replace("80", "40")  # busy machines carry that too
    path.write_text(f'name = "{name}"\n{slow}{SITE_OF_B}')
    assert run(["net", "up", str(path)]) == 0
    assert "\nsite s: 20 Mbit/s up and 30 down; shared by b\n" in capsys.readouterr().out
    assert run(["net", "verify", str(path)]) == 0
    assert "s down, 1 at once              30.00" in capsys.readouterr().out
    assert run(["net", "down", str(path)]) == 0
    assert leftovers(name) == []


@pytest.mark.root
def test_what_up_prints_can_be_pasted(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "my network.toml"
    path.write_text(f'name = "{name}"\n{UNEVEN_NODES}')
    assert run(["net", "up", str(path)]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert shlex.split(first.split("`")[1]) == ["nalb", "net", "down", str(path)]
    pasted = last.partition(": ")[2].replace("COMMAND", "cat /proc/thread-self/cgroup")
    found = subprocess.run(["bash", "-c", pasted], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    for group in standing_groups(name)[:1]:  # of a, the first node; none where a duty cycle keeps quotas
        assert f":/{group.name}\n" in found.stdout
    assert run(["net", "down", str(path)]) == 0


@pytest.mark.root
def test_a_network_whose_file_is_gone_or_bad_is_removed_by_its_name(
    network_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["net", "up", str(network_path)]) == 0
    network_path.write_text("name = 5")
    assert run(["net", "down", str(network_path)]) == 2
    network_path.unlink()
    assert run(["net", "down", str(network_path)]) == 2
    remedy = "; `nalb net down` also takes a name that `nalb net status` prints\n"
    assert [line.endswith(remedy.strip()) for line in capsys.readouterr().err.splitlines()] == [True, True]
    assert run(["net", "down", f"{name}.a"]) == 2, "a node is no network"
    assert run(["net", "down", name]) == 0
    assert leftovers(name) == []
    assert run(["net", "down", name]) == 2


@pytest.mark.root
@pytest.mark.parametrize(("flags", "has_it"), [("-Ur", False), ("-Urm", True)])
def test_capabilities_that_do_not_reach_mounts_are_no_privilege(flags: str, has_it: bool):
    told = in_user_namespace(flags, "-c", "from netem import rootless; print(rootless.has_privilege())")
    assert told.stdout == f"{has_it}\n", told.stderr


@pytest.mark.root
def test_a_user_namespace_cannot_remove_roots_network(network_path: Path, name: str):
    assert run(["net", "up", str(network_path)]) == 0
    down = in_user_namespace("-Ur", "-m", "nalb.cli.main", "net", "down", name)
    assert (down.returncode, down.stderr.count("\n")) == (3, 1), down.stderr
    code = f"from netem import namespaces; namespaces.remove(['nalb-{name}.a'])"
    removed = in_user_namespace("-Ur", "-c", code)
    assert re.search(
        r"MachineError: namespace \S+ cannot be removed \(.*\): run `nalb net down` as the root", removed.stderr
    )
    assert len(namespaces.standing(name)) == 3


@pytest.mark.root
def test_files_that_are_no_namespaces_are_no_network(network_path: Path, name: str, capsys: pytest.CaptureFixture[str]):
    """Another mount namespace has a network, of which this one sees files alone, also when it is gone."""
    up = in_user_namespace("-Urm", "-m", "nalb.cli.main", "net", "up", str(network_path))
    assert up.returncode == 0, up.stderr
    assert len(namespaces.standing(name)) == 3
    assert run(["net", "status"]) == 0
    assert f"network {name} is up" not in capsys.readouterr().out
    assert run(["net", "verify", str(network_path)]) == 2
    assert "run `nalb net down` where the network is a leftover" in capsys.readouterr().err
    assert run(["net", "down", name]) == 0
    assert leftovers(name) == []


def in_user_namespace(flags: str, *python: str) -> subprocess.CompletedProcess[str]:
    """Run Python as root of a user namespace of its own, which `unshare FLAGS` makes."""
    if subprocess.run(["unshare", flags, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this kernel has no user namespaces for root")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = ["unshare", flags, sys.executable, *python]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)


def drawn(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What `nalb net random WORDS` prints."""
    assert run(["net", "random", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.root
def test_a_drawn_network_stands(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]):
    text = drawn(capsys, "--family", "capped", "--nodes", "3", "--seed", "1", "--scale", "0.3")
    path = tmp_path / "network.toml"
    path.write_text(text.replace('"capped-1"', f'"{name}"'))
    assert run(["net", "up", str(path)]) == 0
    assert run(["net", "verify", str(path)]) == 0
    out = capsys.readouterr().out
    assert "n0 -> n1: at most 26.32 Mbit/s" in out
    assert "all within 10%" in out
    assert run(["net", "down", str(path)]) == 0
    assert leftovers(name) == []


def test_quotas_are_of_this_machines_cores_unless_told(capsys: pytest.CaptureFixture[str]):
    words = ("--family", "shared-cores", "--nodes", "3", "--seed", "1")
    assert f"--cores {len(os.sched_getaffinity(0)):.1f}\n" in drawn(capsys, *words)
    assert "--cores 3.5\n" in drawn(capsys, *words, "--cores", "3.5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--family", "odd"], "family 'odd' is unknown: choose one of even, near"),
        (["--nodes", "1"], "family even of 1 nodes: give 2 to 200"),
        (["--seed", "-1"], "seed -1: give a whole number"),
        (["--scale", "inf"], "scale inf: give 0.01 to 34"),
        (["--cores", "2"], "--cores 2 is of family shared-cores alone: leave it out"),
        (["--family", "shared-cores", "--cores", "0"], "on 0.0 cores: give how many"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert run(["net", "random", "--family", "even", "--nodes", "4", "--seed", "1", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


@pytest.mark.root
def test_verify_fails_where_a_rate_is_off(
    network_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(verify, "measure", lambda flow: verify.Measurement(flow.label, flow.configured_mbps, 60))
    assert run(["net", "verify", str(network_path)]) == 1
    out = capsys.readouterr().out
    assert "off by more than 10%: a up, b up, a down, b down" in out
    assert leftovers(name) == []


@pytest.mark.root
def test_verify_fails_where_a_quota_is_off(
    network_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    network_path.write_text(f'name = "{name}"\n{UNEVEN_NODES}')
    monkeypatch.setattr(verify, "measure", lambda flow: verify.Measurement(flow.label, 1, verify.GOODPUT_PART))
    monkeypatch.setattr(
        verify_cpu, "measure_cpu", lambda _, quotas: {b: verify_cpu.CpuMeasurement(b, quotas[b], 0.03) for b in quotas}
    )
    assert run(["net", "verify", str(network_path)]) == 1
    captured = capsys.readouterr()
    assert "b cpu" in captured.out
    assert "+50.0%   WRONG" in captured.out
    assert "off by more than 10%: b cpu" in captured.out, captured.err
    assert leftovers(name) == []


@pytest.mark.root
def test_without_root(network_path: Path, name: str, nobody: Callable[..., subprocess.CompletedProcess[str]]):
    """verify builds its network in a user namespace, with delays; up says why it cannot."""
    verified = nobody("net", "verify", network_path.name)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "all within 10%" in verified.stdout
    assert "b round trip" in verified.stdout
    refused = nobody("net", "up", network_path.name)
    assert refused.returncode == 3
    assert "outlive the command" in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert leftovers(name) == []


@pytest.mark.root
@pytest.mark.mxnet
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
def test_jobs_without_root(network_path: Path, name: str, nobody: Callable[..., subprocess.CompletedProcess[str]]):
    launched = nobody("launch", "--network", network_path.name, "--scheme", "stock", "--out", "a",
                      "--", "sh", "-c", "id -u; exit 7")  # fmt: skip
    assert launched.returncode == 7, launched.stdout + launched.stderr
    assert "[a worker] 0\n" in launched.stdout
    compared = nobody("compare", "--network", network_path.name, "--replay", "mobilenet", "--schemes", "stock",
                      "--iterations", "1", "--out", "b")  # fmt: skip
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert leftovers(name) == []


@pytest.mark.root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--no-new-privs", r"namespace \S+ cannot be made \(.*\)"),
        ("--bounding-set=-all", "root may not make network namespaces"),
    ],
)
def test_root_of_a_container_is_told_the_remedy(network_path: Path, name: str, flag: str, says: str):
    """With capabilities, whose mounts are denied, and without."""
    argv = [sys.executable, "-c", DENYING_MOUNTS, "setpriv", flag, sys.executable, "-m", "nalb.cli.main"]
    argv += ["net", "verify", str(network_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    refused = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1), refused.stderr
    assert re.search(f"{says}.*: if this is a container, start it with --privileged$", refused.stderr)
    assert leftovers(name) == []


@pytest.mark.root
def test_user_namespaces_that_may_not_mount_are_told_before(
    network_path: Path, nobody: Callable[..., subprocess.CompletedProcess[str]]
):
    refused = nobody("net", "verify", network_path.name, before=(sys.executable, "-c", DENYING_MOUNTS))
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1), refused.stderr
    assert re.search(r"no root, and no user namespace in which to mount \(mount: ", refused.stderr)
    assert refused.stderr.endswith(f": {rootless.REMEDY}\n")


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_settings_that_cannot_be_written_are_one_line_and_the_doctors_too(network_path: Path, name: str):
    """As in a container, where /proc/sys is read-only."""

    def where_read_only(*python: str) -> subprocess.CompletedProcess[str]:
        script = 'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"'
        argv = ["unshare", "--mount", "sh", "-c", script, "-", sys.executable, *python]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)

    refused = where_read_only("-m", "nalb.cli.main", "net", "up", str(network_path))
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1), refused.stderr
    assert re.search(r"/proc/sys/net/\S+ cannot be written .*: mount /proc/sys writable", refused.stderr)
    assert leftovers(name) == []
    probed = where_read_only("-c", PROBE)
    assert "mount /proc/sys writable" in json.loads(probed.stdout)["namespace"], probed.stderr


@pytest.mark.parametrize(
    ("words", "environment", "says"),
    [
        (["--out=/run/user/1/out"], {}, "--out=/run/user/1/out"),
        (["--out", "/run/user/1/out"], {}, "/run/user/1/out"),
        ([], {"TMPDIR": "/run/user/1"}, "TMPDIR=/run/user/1"),
        ([], {"NALB_PREDICTOR_MODELS": "/run/models"}, "NALB_PREDICTOR_MODELS=/run/models"),
    ],
)
def test_without_root_what_lies_below_run_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], environment: dict[str, str], says: str
):
    """Where /var/run/netns is missing and cannot be made, all of /run is mounted over."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was mounted over"))
    monkeypatch.setattr(namespaces.netns, "NETNS_RUN_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "argv", ["nalb", "launch", *words])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MachineError, match=rf"^{says} lies below /run, .*: name another place, or make "):
        rootless.prepare()


@pytest.mark.parametrize(
    "words",
    [
        "net verify absent.toml",
        "launch --network absent.toml --framework mxnet -- true",
        "compare --network absent.toml --replay mobilenet",
        "calibrate --network absent.toml",
    ],
)
def test_no_file_is_read_before_the_command_starts_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str
):
    """A pipe, as of <(...), would be empty then."""
    monkeypatch.setenv(rootless.MARK, "1")
    monkeypatch.setattr(rootless, "has_privilege", lambda: False)
    assert run(words.split()) == 3
    assert "no right to make network namespaces" in capsys.readouterr().err


def test_a_machine_without_processes_left_is_told_from_one_without_namespaces(monkeypatch: pytest.MonkeyPatch):
    def scarce(*_args, **_options):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.delenv(rootless.MARK, raising=False)
    monkeypatch.setattr(rootless, "has_privilege", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", scarce)
    with pytest.raises(MachineError, match=r"^unshare cannot be started \(.*\): raise ulimit -u"):
        rootless.ensure_privilege()


def test_the_second_start_has_the_home_of_the_first(monkeypatch: pytest.MonkeyPatch):
    """By its number the user would be root there, with another home."""
    started: list[dict[str, str]] = []
    monkeypatch.delenv(rootless.MARK, raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(rootless, "has_privilege", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, "", ""))
    monkeypatch.setattr(os, "execvpe", lambda _file, _argv, environment: started.append(environment))
    rootless.ensure_privilege()
    assert started[0]["HOME"] == os.path.expanduser("~")


@pytest.fixture
def nobody(network_path: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs `nalb WORDS...` as nobody, in a directory of nobody's with the network file. `before`: a program that starts this."""
    python = python_for_nobody()
    allowed = subprocess.run([*NOBODY, *rootless.TRIAL], capture_output=True, text=True, check=False)
    if allowed.returncode != 0:
        pytest.skip(f"this kernel has no unprivileged user namespaces: {allowed.stderr.strip()}")
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories are closed to nobody
        Path(directory, network_path.name).write_text(f"{network_path.read_text()}delay_ms = 20\n")  # of b
        os.chown(directory, 65534, 65534)

        def nalb(*words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
            search_path = os.pathsep.join([str(ROOT), str(Path(pyroute2.__file__).parents[1])])
            return subprocess.run(
                [*before, *NOBODY, python, "-B", "-m", "nalb.cli.main", *words],
                env={"PATH": os.environ["PATH"], "PYTHONPATH": search_path, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
                cwd=directory,
            )

        yield nalb


def python_for_nobody() -> str:
    """An interpreter of this version that nobody may start; ours may lie in a private directory."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        trial = "import sys; sys.path[:0] = sys.argv[1:]; import tomllib, pyroute2, netem"
        places = [str(ROOT), str(Path(pyroute2.__file__).parents[1])]
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed")
        argv = [*NOBODY, python, "-B", "-c", trial, *places]
        if subprocess.run(argv, capture_output=True, check=False, cwd="/").returncode == 0:
            return python
    pytest.skip("nobody may not read this Python or this checkout")
