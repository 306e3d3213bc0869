"""--print-env: what it prints starts a job without `nalb launch`."""

import importlib.util
import mmap
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from nalb.cli.main import run
from nalb.launch.hosts import load_hosts
from nalb.launch.roles import KEEP_MEMORY, Place, process_specs
from nalb.options import JobOptions
from nalb.process.own_program import own_argv
from nalb.transport.keys import make_keys, write_keys
from netem import build, cgroups
from netem.emulation import leave_up
from netem.network_file import load_network
from tests.launch.conftest import ROOT, STEPS
from tests.networks import skip_without_networks

JOB_LIMIT_S = 90.0
HOSTS = """
[defaults]
python = "/opt/nalb/bin/python"
directory = "/srv/job"
[defaults.environment]
NALB_SAMPLES = "/srv/samples.jsonl"
[[hosts]]
name = "a"
address = "10.9.0.1"
worker = false
[[hosts]]
name = "b"
address = "10.9.0.2"
"""


Print = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def print_env(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Print:
    """`nalb launch --print-env ARGUMENTS`: the exit code, and all lines."""

    def act(*arguments: str) -> tuple[int, list[str]]:
        code = run(["launch", "--out", str(tmp_path / "run"), "--print-env", *arguments])
        assert not (tmp_path / "run").exists()
        printed = capsys.readouterr()
        return code, (printed.out + printed.err).splitlines()

    return act


def lines_of(print_env: Print, *arguments: str) -> dict[str, list[str]]:
    """{what the comment says: the words of the line below}"""
    code, lines = print_env(*arguments)
    assert code == 0
    titles = [line.removeprefix("# ") for line in lines[1::2]]
    return dict(zip(titles, map(shlex.split, lines[2::2]), strict=True))


def variables(words: list[str]) -> dict[str, str]:
    """What `env` sets."""
    return dict(word.partition("=")[::2] for word in words[1:] if "=" in word)


@pytest.mark.mxnet
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
def test_a_job_started_by_hand(print_env: Print) -> None:
    lines = lines_of(print_env, "--local", "2", "--", *STEPS, "--steps", "8")
    assert list(lines) == ["scheduler n0", "server n0", "server n1", "worker n0", "worker n1"]
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with ExitStack() as stack:
        processes = []
        for words in lines.values():
            process = subprocess.Popen(words, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        outputs = [process.communicate(timeout=JOB_LIMIT_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 5, outputs
    assert ["step 3" in output for output in outputs] == [False] * 3 + [True] * 2


def test_for_a_network(print_env: Print) -> None:
    lines = lines_of(print_env, "--network", "wan4-static", "--scheme", "exact", "--", "python", "train.py")
    assert len(lines) == 9
    words = lines["worker n3 in namespace nalb-wan4-static.n3"]
    assert words[-2:] == ["python", "train.py"]
    assert any("nalb-wan4-static.n3" in word for word in words)
    found = variables(words)
    assert (found["NALB_SCHEME"], found["DMLC_NUM_WORKER"], found["NALB_NODE"]) == ("exact", "4", "n3")
    assert found["DMLC_NODE_HOST"] != found["DMLC_PS_ROOT_URI"]
    assert "_shim." in found["LD_PRELOAD"]


@pytest.mark.root
def test_lines_join_the_cpu_groups_of_a_network_that_is_up(print_env: Print, tmp_path: Path) -> None:
    skip_without_networks()
    name = f"e{os.getpid() % 10**6}"
    path = tmp_path / "network.toml"
    path.write_text(
        f'name = "{name}"\ndefaults = {{up_mbps = 200, down_mbps = 200, cpu_quota = 0.3}}\n'
        'nodes = [{name = "a"}, {name = "b"}]\n'
    )
    words = ("--network", str(path), "--", "python", "train.py")
    code, lines = print_env(*words)
    assert (code, lines[-1]) == (2, f"nalb launch: network {name} is not up: run `nalb net up` first")
    leave_up(load_network(path))
    try:
        found = lines_of(print_env, *words)
        if hierarchy := cgroups.usable()[0]:
            groups = list(hierarchy.root.glob(f"nalb-{name}.*.b"))
            assert len(groups) == 1
            assert str(groups[0]) in found[f"worker b in namespace nalb-{name}.b"]
        without_rights = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
        argv = own_argv("nalb.cli.main", "launch", "--print-env", *words)
        done = subprocess.run([*without_rights, *argv], capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert "has CPU quotas, which only lines that root prints keep: run `nalb net up`" in done.stderr
    finally:
        build.take_down(name)


def test_for_stock_there_is_no_shim(print_env: Print) -> None:
    for words in lines_of(print_env, "--local", "1", "--scheme", "stock", "--", "true").values():
        assert not {"LD_PRELOAD", "NALB_SHIM_TRANSPORT"} & set(variables(words))
        assert variables(words)["NALB_STOCK"] == "1"


def test_for_hosts_no_path_of_this_machine_is_printed(print_env: Print, tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(HOSTS)
    assert load_hosts(path).root_port == 9091
    lines = lines_of(print_env, "--hosts", str(path), "--plain", "--", "python", "train.py")
    assert list(lines) == [f"{who} on 10.9.0.{i}, in /srv/job" for who, i in
                           (("scheduler a", 1), ("server a", 1), ("server b", 2), ("worker b", 2))]  # fmt: skip
    worker = lines["worker b on 10.9.0.2, in /srv/job"]
    command = own_argv("nalb.launch.machine_env", "python", "train.py", python="/opt/nalb/bin/python")
    assert worker[-len(command) :] == command
    for words in lines.values():
        assert not any(str(ROOT) in word or sys.prefix in word for word in words)
        found = variables(words)
        assert not {"LD_PRELOAD", "PYTHONPATH", "HOME", "PATH"} & set(found)
        assert (found["DMLC_NUM_WORKER"], found["DMLC_NUM_SERVER"]) == ("1", "2")
        assert found["NALB_SAMPLES"] == "/srv/samples.jsonl"
        assert found["NALB_ADDRESSES"] == "10.9.0.1,10.9.0.2"


def test_only_a_worker_with_a_machine_of_its_own_computes_with_all_of_it(print_env: Print, tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"

    def threads(text: str) -> dict[str, str | None]:
        path.write_text(text)
        lines = lines_of(print_env, "--hosts", str(path), "--plain", "--", "true")
        return {name.split(" on ")[0]: variables(words).get("OMP_NUM_THREADS") for name, words in lines.items()}

    assert threads(HOSTS) == {"scheduler a": "1", "server a": "1", "server b": "1", "worker b": None}
    assert set(threads(HOSTS.replace("[[hosts]]", 'OMP_NUM_THREADS = "3"\n[[hosts]]', 1)).values()) == {"3"}
    local = process_specs([Place("n0", "127.0.0.1")], ["true"], JobOptions(9000), {})
    assert {spec.environment["OMP_NUM_THREADS"] for spec in local} == {"1"}


def test_for_hosts_a_python_at_home_is_started_from_the_home_there(print_env: Print, tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(HOSTS.replace("/opt/nalb/bin/python", "~/python"))
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    command = ["~/python", "-c", "import sys; print(sys.argv[1])", "~/x"]
    code, lines = print_env("--hosts", str(path), "--plain", "--", *command)
    assert code == 0
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", lines[-1]], env=plain, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("~/x\n", "")


def test_with_keys_paths_are_printed_and_no_secret(print_env: Print, tmp_path: Path) -> None:
    keys = make_keys({"n0": "127.0.0.1", "n1": "127.0.0.2"})
    write_keys(tmp_path / "keys", keys)
    arguments = ["--keys", str(tmp_path / "keys"), "--local", "2"]
    lines = lines_of(print_env, *arguments, "--", "python", "train.py")
    for name, words in lines.items():
        found, node = variables(words), name.split()[1]
        assert found["NALB_KEYS"] == str(tmp_path / "keys" / f"{node}.keys")
        assert (found["NALB_NODE"], found["NALB_SHIM_TRANSPORT"]) == (node, "pyzmq")
        assert "_shim." in found["LD_PRELOAD"]  # the scheduler too
        assert not any(one.secret.hex() in word or one.public.hex() in word for one in keys.values() for word in words)
    assert variables(lines["worker n1"])["DMLC_NODE_HOST"] == "127.0.0.2"
    stock = lines_of(print_env, *arguments, "--scheme", "stock", "--", "true")
    assert all("_shim." in variables(words)["LD_PRELOAD"] for words in stock.values())


def test_for_hosts_keys_are_theirs(print_env: Print, tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(HOSTS)
    lines = lines_of(print_env, "--hosts", str(path), "--keys", "/srv/keys", "--", "python", "train.py")
    for name, words in lines.items():
        found = variables(words)
        assert found["NALB_KEYS"] == f"/srv/keys/{name.split()[1]}.keys"
        assert found["NALB_SHIM_TRANSPORT"] == "pyzmq"
    code, (line,) = print_env("--hosts", str(path), "--", "true")
    assert (code, line.startswith("nalb launch: --print-env needs keys that last")) == (2, True)


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"NALB_KEYS": "/nowhere/n0.keys"}, "nalb: key file /nowhere/n0.keys: cannot be read"),
        ({"NALB_KEYS": ""}, "nalb: key file : cannot be read"),
        ({"NALB_SHIM_TRANSPORT": "mxnet"}, "nalb: NALB_SHIM_TRANSPORT=mxnet has no fast CURVE"),
        ({"NALB_NODE": "n9"}, "holds the keys of node n0, this is n9"),
    ],
)
def test_here_refuses_keys_that_cannot_serve(tmp_path: Path, environment: dict[str, str], says: str) -> None:
    write_keys(tmp_path / "keys", make_keys({"n0": "127.0.0.1"}))
    right = {"NALB_KEYS": str(tmp_path / "keys" / "n0.keys"), "NALB_NODE": "n0", "DMLC_ROLE": "scheduler"}
    done = subprocess.run(
        [sys.executable, "-m", "nalb.launch.machine_env", "echo", "started"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)} | right | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert says in done.stderr


def test_here_finds_this_machines_paths() -> None:
    show = "import os; print(os.environ['LD_PRELOAD'], os.environ['PYTHONPATH'])"
    done = subprocess.run(
        [sys.executable, "-m", "nalb.launch.machine_env", sys.executable, "-c", show],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "DMLC_ROLE": "worker"},
        capture_output=True,
        text=True,
        check=True,
    )
    preload, path = done.stdout.split()
    assert Path(preload).name.startswith("_shim.")
    assert path.split(os.pathsep) == [str(ROOT / "kvstore_patch" / "bootstrap"), str(ROOT)]


def test_here_removes_what_ps_lite_would_read_and_no_line_sets() -> None:
    others = {"PORT": "http", "PS_RESEND": "1", "PS_VERBOSE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "nalb.launch.machine_env", "env"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "DMLC_ROLE": "worker"} | others,
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert names & {*others, "DMLC_ROLE"} == {"PS_VERBOSE", "DMLC_ROLE"}


def test_here_without_a_role() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nalb.launch.machine_env", "true"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("nalb: DMLC_ROLE is None: set scheduler, server or worker")


def test_workers_whose_batches_change_keep_their_memory_unless_the_user_says_otherwise() -> None:
    places = [Place("n0", "127.0.0.1")]
    for options, kept in (({}, False), ({"batching": "off"}, True), ({"scheme": "joint"}, True)):
        specs = process_specs(places, ["true"], JobOptions(9000, **options), {"MALLOC_ARENA_MAX": "4"})
        for spec in specs:
            given = {name: value for name, value in spec.environment.items() if name.startswith("MALLOC")}
            expected = KEEP_MEMORY | {"MALLOC_ARENA_MAX": "4"} if kept and spec.role == "worker" else {}
            assert given == expected, spec.name


@pytest.mark.mxnet
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
def test_scheme_p3_sets_what_ps_lite_reads() -> None:
    (folder,) = importlib.util.find_spec("mxnet").submodule_search_locations
    plain, p3 = (
        process_specs([Place("n0", "127.0.0.1")], ["true"], JobOptions(9000, scheme=scheme), {})[0].environment
        for scheme in ("stock", "p3")
    )
    (name,) = p3.keys() - plain.keys()
    assert p3[name] == "p3"
    with (
        open(Path(folder) / "libmxnet.so", "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library,
    ):
        assert library.find(name.encode() + b"\0") > 0, f"ps-lite knows no variable {name}"


def test_here_python_means_this_interpreter_and_its_packages(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "nalb.launch.machine_env",
            "python",
            "-c",
            "import sys; print(sys.executable, sys.prefix)",
        ],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "RANK": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [sys.executable, sys.prefix]
