import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.cli import doctor
from nalb.cli.doctor import checks, report
from nalb.cli.main import run
from nalb.doctor import emulation, host, software
from nalb.doctor.finding import Finding
from nalb.errors import MachineError
from netem import namespaces, rootless

ROOT = Path(__file__).resolve().parents[2]
FAKE_SSH = """#!/bin/sh
echo Welcome
for command; do :; done
PATH=/nowhere PYTHONPATH={root} exec /bin/sh -c "$command"
"""
ROUTE_HEAD = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"


def verdicts(findings):
    return {finding.name: finding.verdict for finding in findings}


def only(findings):
    assert len(findings) == 1
    return findings[0]


def answering(code, out="", err=""):
    """A process that is not run."""
    return lambda _argv, _environ: (code, out, err)


def test_exit_code_and_lines_follow_the_verdicts(capsys):
    good, doubtful = Finding("disk", "ok", "there"), Finding("fan", "warn", "loud", "oil it")
    bad = Finding("door", "FAIL", "shut", "open it")
    assert report([lambda: [good, doubtful]], as_json=False) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["warn", "fan", "loud", "->", "oil", "it"]
    assert "can run a job (1 warning)" in out
    assert report([lambda: [good], lambda: [bad]], as_json=False) == 1
    assert "cannot run a job yet: door" in capsys.readouterr().out
    emulated = Finding("qdiscs", "FAIL", "none", "load some", is_of_emulation=True)
    assert report([lambda: [good, emulated]], as_json=False) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "this machine can run a job, but not yet one in an emulated network: qdiscs"
    assert report([lambda: [emulated, bad]], as_json=False) == 1
    assert "cannot run a job yet: qdiscs, door" in capsys.readouterr().out
    assert report([lambda: [bad]], as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"name": "door", "verdict": "FAIL", "detail": "shut", "advice": "open it", "is_of_emulation": False}
    ]


def test_every_doubt_comes_with_advice():
    findings = [
        *software.check_python((3, 12)),
        *software.check_numpy(lambda _: "1.26.4"),
        *software.check_mxnet(answering(1, err="Traceback\nImportError: libgomp.so.1\n")),
        *software.check_mxnet(answering(0, "1.8.0 True\n")),
        *software.check_mxnet(answering(0, "1.9.1 False\n")),
        *software.check_shim(answering(1, err="nalb.errors.MachineError: ABI 2")),
        *software.check_torch(answering(1, err="ImportError: libgomp.so.1\n"), {}, lambda: True),
        *software.check_torch(answering(0, "2.3.1+cpu True True 0\n"), {}, lambda: True),
        *software.check_torch(answering(0, "2.13.0 False False 0\n"), {}, lambda: True),
        *software.check_torch(answering(0, "2.13.0 True False 0\n"), {}, lambda: True),
        *software.check_ssh(True, lambda _: None),
        *host.check_address({"DMLC_NODE_HOST": "1.2.3.4"}, lambda: {"lo": ["127.0.0.1"]}),
        *host.check_address({"DMLC_INTERFACE": "eth9"}, lambda: {"lo": ["127.0.0.1"]}),
        *host.check_address({}, lambda: {"lo": ["127.0.0.1"]}, lambda: None),
        *host.check_told_address("10.0.0.9", lambda: {"eth0": ["10.0.0.2"]}),
        *host.check_memory(lambda: 5e8),
        *host.check_memory(lambda: 1.5e9),
        *host.check_open_files(lambda: 256),
        *host.check_threads({"OMP_NUM_THREADS": "many"}),
        *host.check_threads({"OMP_NUM_THREADS": "64"}, 2),
    ]
    for finding in findings:
        assert finding.verdict != "ok", finding
        assert finding.advice, finding
        assert "\n" not in finding.detail


def test_sound_answers_are_ok():
    findings = [
        *software.check_python((3, 11)),
        *software.check_numpy(lambda _: "1.23.5"),
        *software.check_mxnet(answering(0, "a warning\n1.9.1 True\n")),
        *software.check_torch(answering(0, "a warning\n2.13.0+cpu True True 0\n"), {}, lambda: True),
        *software.check_torch(answering(1), {}, lambda: False),
        *host.check_address({"DMLC_NODE_HOST": "10.0.0.2"}, lambda: {"eth0": ["10.0.0.2"]}),
        *host.check_address({}, lambda: {"eth0": ["10.0.0.2"]}, lambda: "eth0"),
        *host.check_told_address("10.0.0.2", lambda: {"eth0": ["10.0.0.2"]}),
        *host.check_told_address("127.0.1.1", lambda: {"eth0": ["10.0.0.2"]}),
        *host.check_memory(lambda: 64e9),
        *host.check_open_files(lambda: 4096),
        *host.check_threads({"OMP_NUM_THREADS": "1"}, 2),
        *host.check_threads({}, 2),
        *software.check_ssh(True, lambda _: "/bin/ssh"),
    ]
    assert {finding.verdict for finding in findings} == {"ok"}


def test_numpy_that_is_not_there_is_said():
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    assert only(software.check_numpy(absent)).detail == "not installed"


def test_shim_that_is_not_built_is_said(monkeypatch):
    def unbuilt():
        raise MachineError("here: the shim is not built: run `pip install .`")

    monkeypatch.setattr(software.shim, "library_path", unbuilt)
    finding = software.check_shim(answering(0))[0]
    assert finding == Finding("shim", "FAIL", "here: the shim is not built", "run `pip install .`")


def test_a_program_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(software, "DEADLINE_S", 0.1)
    code, _, err = software.ask([sys.executable, "-c", "input()"], {"PYTHONPATH": ""})
    assert code != 0
    assert err


def test_a_program_that_cannot_start_is_a_finding():
    code, _, err = software.ask(["/no/such/python"], {})
    assert code != 0
    assert err == "/no/such/python: No such file or directory"


def test_children_take_no_part_in_a_job():
    made = software.child_environment({"DMLC_ROLE": "server", "NALB_NODE": "n0", "PATH": "/bin", "PYTHONPATH": "/x"})
    assert set(made) == {"PATH", "PYTHONPATH"}
    assert made["PYTHONPATH"].endswith(":/x")


def test_dataset_is_found_packed_or_not(tmp_path):
    assert only(software.check_dataset(tmp_path)).verdict == "warn"
    for number, name in enumerate(software.DATASET_FILES):
        (tmp_path / (name + (".gz" if number % 2 else ""))).touch()
    assert only(software.check_dataset(tmp_path)).verdict == "ok"


def test_missing_delays_are_a_warning_and_missing_tbf_is_not():
    lacks = {"namespace": None, "tbf": None, "htb": None, "bfifo": None}
    lacks["delay line"] = "it is not built: run `pip install .`"
    lacks |= {"cgroup": None, "no cgroup": "/sys/fs/cgroup: Permission denied"}
    found = emulation.check_emulation(True, True, answering(0, json.dumps(lacks)))
    assert verdicts(found)["delay and loss"] == "warn"
    assert found[3].advice == "run `pip install .`"
    assert verdicts(found)["traffic shaping"] == "ok"
    assert verdicts(found)["CPU quotas of nodes"] == "warn"
    assert "duty cycle" in found[-1].detail
    lacks["delay line"] = None
    found = emulation.check_emulation(True, True, answering(0, json.dumps(lacks)))
    assert (found[3].verdict, found[3].detail) == ("ok", "nalb's delay line works")
    lacks["tbf"] = "this kernel lacks the qdisc tbf: load sch_tbf"
    finding = emulation.check_emulation(True, True, answering(0, json.dumps(lacks)))[2]
    assert (finding.verdict, finding.advice) == ("FAIL", "load sch_tbf")
    lacks["namespace"] = "namespace x cannot be made (denied): run as root"
    finding = emulation.check_emulation(True, True, answering(0, json.dumps(lacks)))[1]
    assert (finding.verdict, finding.advice) == ("FAIL", "run as root")


def test_no_right_fails_emulation_and_only_warns_for_hosts():
    refused = answering(1, err=f"Traceback\nnalb.errors.MachineError: no root (write: denied): {rootless.REMEDY}\n")
    finding = only(emulation.check_emulation(True, False, refused))
    assert (finding.verdict, finding.detail) == ("FAIL", "no root (write: denied)")
    assert finding.advice == rootless.REMEDY
    assert finding.is_of_emulation
    assert only(emulation.check_emulation(False, False, refused)).verdict == "warn"


@pytest.mark.parametrize(
    ("available", "default", "verdict"),
    [
        ("reno cubic", "cubic", "ok"),
        ("reno bbr cubic", "bbr", "warn"),
        ("reno", "reno", "warn"),
        ("bbr", "bbr", "FAIL"),
    ],
)
def test_congestion_control(tmp_path, available, default, verdict):
    (tmp_path / "tcp_available_congestion_control").write_text(available + "\n")
    (tmp_path / "tcp_congestion_control").write_text(default + "\n")
    assert only(emulation.check_congestion_control(True, tmp_path)).verdict == verdict
    assert only(emulation.check_congestion_control(True, tmp_path / "none")).verdict == "warn"


def test_busy_port_is_named():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        finding = only(host.check_ports(ports=(port,)))
    assert finding.verdict == "warn"
    assert f"{port} (in use)" in finding.detail
    assert only(host.check_ports(ports=(port,))).verdict == "ok"


def test_default_interface_has_the_lowest_metric(tmp_path):
    routes = tmp_path / "route"
    row = "{} 00000000 0100000A 0003 0 0 {} 00000000 0 0 0\n"
    routes.write_text(
        ROUTE_HEAD + row.format("wlan0", 600) + row.format("eth0", 100) + "eth1 0000000A 0 0001 0 0 0 FF 0 0 0"
    )
    assert host.default_interface(routes) == "eth0"
    routes.write_text(ROUTE_HEAD)
    assert host.default_interface(routes) is None
    assert host.default_interface(tmp_path / "absent") is None


@pytest.mark.mxnet
@pytest.mark.root
def test_whole_doctor_on_this_machine_leaves_nothing_behind(capsys):
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces and tc")
    if importlib.util.find_spec("mxnet") is None:
        pytest.skip("needs mxnet")
    before = sorted(namespaces.netns.listnetns())
    code = run(["doctor", "--json"])
    findings = [Finding(**entry) for entry in json.loads(capsys.readouterr().out)]
    assert code == any(finding.verdict == "FAIL" for finding in findings)
    found = verdicts(findings)
    for name in ("Python", "numpy", "MXNet", "shim", "right to make networks", "network namespaces"):
        assert found[name] == "ok", findings
    mine = [name for name in namespaces.netns.listnetns() if name not in before and "doctor" in name]
    assert mine == []
    assert "mxnet" not in sys.modules


@pytest.mark.root
def test_the_namespace_of_another_doctor_with_our_process_id_stays(capsys):
    """One in another PID namespace, which sees the same namespace files."""
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces and tc")
    others = f"nalb-doctor{os.getpid()}"
    namespaces.create(others)
    try:
        emulation.probe()
        assert json.loads(capsys.readouterr().out)["namespace"] is None
        assert others in namespaces.netns.listnetns()
    finally:
        namespaces.remove([others])


def test_hosts_flag_turns_emulation_into_warnings(monkeypatch):
    monkeypatch.setattr(emulation, "check_emulation", lambda needed, **_: [Finding("e", "ok", str(needed))])
    details = [check()[0].detail for check in (checks(True)[5], checks(False)[5])]
    assert details == ["False", "True"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh client")
def test_each_host_of_a_file_is_asked(tmp_path, capsys):
    (tmp_path / "hosts.toml").write_text("[[hosts]]\nname = 'a'\naddress = '127.0.0.1'\nport = 9\n")
    assert run(["doctor", "--hosts", str(tmp_path / "hosts.toml")]) == 1
    name, found, verdict = capsys.readouterr().out.splitlines()
    assert (name, verdict) == ("a (127.0.0.1):", "these hosts cannot run a job yet: a")
    assert re.fullmatch(r"FAIL ssh +ssh to 127.0.0.1 failed -> .*[Cc]onnection refused", found)
    assert run(["doctor", "--hosts", str(tmp_path / "hosts.toml"), "--json"]) == 2


@pytest.fixture
def hosts_file(tmp_path, monkeypatch):
    """Writes a hosts file of one host: this machine, whose login prints a line, has this Python, and finds no ssh."""
    (tmp_path / "ssh").write_text(FAKE_SSH.format(root=ROOT))
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def write(python, root_port=9091):
        path = tmp_path / "hosts.toml"
        text = (
            f"[defaults]\nroot_port = {root_port}\n[[hosts]]\nname = 'a'\naddress = '127.0.0.1'\npython = '{python}'\n"
        )
        path.write_text(text)
        return str(path)

    return write


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_host_is_asked_for_what_its_part_in_the_job_needs(hosts_file, capsys):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert run(["doctor", "--hosts", hosts_file(sys.executable, port)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "Welcome" not in lines
    assert not [line for line in lines if "ssh client" in line]
    assert [line for line in lines if re.match(rf"FAIL ports +not free on [0-9.]+: {port} \(in use\)", line)]
    assert "ok   announced address       127.0.0.1, from the hosts file" in lines
    assert re.fullmatch("this machine cannot run a job yet: .*ports", lines[-2])
    assert lines[-1] == "these hosts cannot run a job yet: a"


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("exit 0", "'{python}' on 127.0.0.1 cannot run nalb.* -> it said nothing"),
        ("echo No module named nalb >&2; exit 1", "'{python}' on 127.0.0.1 cannot run nalb.* -> No module named nalb"),
        ("echo no memory is left >&2; exit 3", "nalb doctor at 127.0.0.1 exited with 3 -> no memory is left"),
        (None, "127.0.0.1 has no program '{python}': .*"),
        ("may not", "the login at 127.0.0.1 may not execute '{python}': .*[Pp]ermission denied"),
    ],
)
def test_a_host_that_gives_no_findings_is_a_fault_with_its_reason(hosts_file, tmp_path, capsys, does, says):
    python = tmp_path / "python"
    if does is not None:
        program(python, does).chmod(0o644 if does == "may not" else 0o755)
    assert run(["doctor", "--hosts", hosts_file(python)]) == 1
    name, found, verdict = capsys.readouterr().out.splitlines()
    assert (name, verdict) == ("a (127.0.0.1):", "these hosts cannot run a job yet: a")
    assert re.fullmatch("FAIL ssh +" + says.format(python=python), found), found


def test_only_the_first_host_needs_the_root_port_and_the_next(tmp_path, monkeypatch, capsys):
    asked = []

    def ask(_host, argv, _limit_s):
        asked.append(argv[argv.index("doctor") :])
        return subprocess.CompletedProcess(argv, 0, "[]\n", "")

    monkeypatch.setattr(doctor, "ask", ask)
    monkeypatch.setattr(software, "check_ssh", lambda **_: [])
    hosts = "".join(f"[[hosts]]\nname = 'n{i}'\naddress = '192.0.2.1{i}'\n" for i in range(2))
    (tmp_path / "hosts.toml").write_text(f"[defaults]\nroot_port = 7000\n{hosts}")
    assert run(["doctor", "--hosts", str(tmp_path / "hosts.toml")]) == 0
    assert asked == [["doctor", "--as-host=192.0.2.10", "--root-port=7000"], ["doctor", "--as-host=192.0.2.11"]]
    assert capsys.readouterr().out.endswith("\nall 2 hosts can run a job\n")


def test_each_check_of_a_host_is_of_its_part(monkeypatch):
    for name in ("check_ports", "check_told_address"):
        monkeypatch.setattr(host, name, lambda *words, name=name, **_: [Finding(name, "ok", str(words))])
    monkeypatch.setattr(host, "check_address", lambda: pytest.fail("the hosts file gives the address"))
    monkeypatch.setattr(software, "check_ssh", lambda **_: pytest.fail("a host needs no ssh client"))
    of_others = [found for check in checks(True, "192.0.2.11")[-5:] for found in check()]
    assert "check_ports" not in verdicts(of_others)
    assert Finding("check_told_address", "ok", "('192.0.2.11',)") in of_others
    for has_torch, everywhere in ((False, "192.0.2.10"), (True, "0.0.0.0")):  # where PyTorch's store listens
        monkeypatch.setattr(doctor, "find_spec", lambda name, has=has_torch: has or None if name == "torch" else True)
        of_first = [found for check in checks(True, "192.0.2.10", 7000)[-7:] for found in check()]
        assert Finding("check_ports", "ok", f"('{everywhere}', (7000,))") in of_first
        assert Finding("check_ports", "ok", "('192.0.2.10', (7001,))") in of_first


def test_the_machine_that_asks_the_hosts_needs_ssh(hosts_file, monkeypatch, capsys):
    path = hosts_file(sys.executable)
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(["doctor", "--hosts", path]) == 1
    assert capsys.readouterr().out.startswith("FAIL ssh client")


def test_doctor_itself_never_imports_mxnet():
    code = "import sys, nalb.cli.doctor; sys.exit('mxnet' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
