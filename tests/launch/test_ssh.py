"""Jobs over real ssh: one sshd in each namespace of an emulated network, the launcher at the hub."""

import getpass
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from nalb.events import IterationEvent, LayoutEvent, ReadyEvent
from nalb.failures import Cause, Phase
from nalb.launch import ssh
from nalb.launch.hosts import load_hosts
from nalb.launch.roles import ProcessSpec
from nalb.launch.ssh import RemoteJob, unreachable
from nalb.reporting.run_file import read_events, read_run
from netem import build, namespaces, wires
from netem.emulation import Emulation, network_up
from netem.network_file import parse_network
from tests.failures import noted_in, who
from tests.launch.conftest import ROOT, START_LIMIT_S, STEPS, Launch, Launched
from tests.networks import skip_without_networks

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
SSHD_PORT, OTHER_SSHD_PORT = 2222, 2224
SSHD_START_LIMIT_S = 10.0
SEPARATION = Path("/run/sshd")  # sshd's empty directory, which stays: jobs beside this one need it too
# without a view of the hosts' processes, as where hosts are other machines: what ends there their agents have ended
APART = ("unshare", "--pid", "--fork", "--mount-proc")
REPLAY = ["python", "-m", "kvstore_patch.roles.replay", "mobilenet", "--iterations", "3", "--verify"]
OF_PS_LITE = (
    "PORT=http",
    "DMLC_LOCAL=1",
    "DMLC_PS_VAN_TYPE=p3",
    "PS_DROP_MSG=30",
    "PS_RESEND=1",
)
NETWORK = """
name = "{name}"
[defaults]
up_mbps = 1000
down_mbps = 1000
[[nodes]]
name = "a"
[[nodes]]
name = "b"
"""
SSHD_CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding no
PermitRootLogin prohibit-password
"""

pytestmark = [
    pytest.mark.root,
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
    pytest.mark.skipif(not Path(SSHD).exists() or not shutil.which("ssh"), reason="no OpenSSH server and client"),
]


@dataclass
class Cluster:
    """Two hosts that answer ssh."""

    emulation: Emulation
    hosts_file: Path
    folder: Path
    daemons: dict[str, "subprocess.Popen[bytes]"]  # by node

    def launch(
        self, launch: Launch, *command: str, flags: tuple[str, ...] = (), wrap: tuple[str, ...] = (), **environment: str
    ) -> Launched:
        """`nalb launch --hosts` at the hub."""
        arguments = ["--hosts", str(self.hosts_file), "--deadline-s", "5", *flags, "--", *command]
        return launch(*arguments, wrap=[*at_hub(self.emulation), *wrap], **environment)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The hosts a and b of a network of this run, each with an sshd, and their hosts file."""
    skip_without_networks()
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host_key", "user_key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
    with ExitStack() as stack:
        SEPARATION.mkdir(mode=0o755, exist_ok=True)
        network = parse_network(NETWORK.format(name=f"s{os.getpid() % 10**6}"), "test.toml")
        emulation = stack.enter_context(network_up(network))
        daemons = {node: start_sshd(stack, emulation, node, folder) for node in ("a", "b")}
        hosts_file = folder / "hosts.toml"
        hosts_file.write_text(hosts_text(emulation, folder))
        yield Cluster(emulation, hosts_file, folder, daemons)


def at_hub(emulation: Emulation) -> list[str]:
    """Before a command: it runs at the hub."""
    return namespaces.inside_argv(emulation.hub_namespace(), [])


def start_sshd(
    stack: ExitStack,
    emulation: Emulation,
    node: str,
    folder: Path,
    port: int = SSHD_PORT,
    options: tuple[str, ...] = (),
) -> "subprocess.Popen[bytes]":
    """An sshd inside a node, which ends with the stack."""
    argv = [
        SSHD,
        "-D",
        "-p",
        str(port),
        "-E",
        str(folder / f"sshd-{node}.log"),
        "-f",
        str(folder / "sshd_config"),
        *options,
    ]
    daemon = subprocess.Popen(emulation.command(node, argv))
    stack.callback(daemon.wait)
    stack.callback(daemon.terminate)
    end_s = time.monotonic() + SSHD_START_LIMIT_S

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((emulation.address(node), port)) == 0

    while not namespaces.inside(emulation.hub_namespace(), answers):
        assert daemon.poll() is None, (folder / f"sshd-{node}.log").read_text()
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return daemon


def hosts_text(emulation: Emulation, folder: Path) -> str:
    """Both are workers and servers; a, the first, has the scheduler too."""
    defaults = [
        "[defaults]",
        f"user = '{getpass.getuser()}'",
        f"port = {SSHD_PORT}",
        f"python = '{sys.executable}'",
        f"directory = '{ROOT}'",
        f"identity_file = '{folder}/user_key'",
        f"known_hosts = '{folder}/known_hosts'",
    ]
    hosts = [f"[[hosts]]\nname = '{node}'\naddress = '{emulation.address(node)}'" for node in ("a", "b")]
    return "\n".join(defaults + hosts) + "\n"


def under_way(cluster: Cluster, launch: Launch) -> Launched:
    """A job that iterates on both hosts."""
    job = cluster.launch(launch, *STEPS)
    job.wait_for("step 3", 2)
    return job


def under_keys(job: Launched) -> dict[int, dict[str, str]]:
    """The environments of the job's processes on the hosts, once all have their keys: encryption is the default there."""
    end_s = time.monotonic() + START_LIMIT_S
    while len(found := {pid: one for pid, one in job.processes().items() if "NALB_KEYS" in one}) < 5:
        assert time.monotonic() < end_s, job.output
        time.sleep(0.05)
    return found


def test_a_replay_with_verified_sums(cluster: Cluster, launch: Launch) -> None:
    job = cluster.launch(launch, *REPLAY)
    job.wait_for("Permanently added")  # ssh, of the hosts' keys
    assert job.processes()
    folders = {Path(one["NALB_KEYS"]).parent for one in under_keys(job).values()}
    assert len(folders) == 5  # each process has its own, private to it
    assert job.end(90)[0] == 0, job.output
    assert "all processes ended well" in job.verdict()
    assert "nalb: started 1 scheduler, 2 servers, 2 workers on hosts; run directory " in job.output
    assert re.search(r"^nalb: all have met after [0-9.]+ s$", job.output, re.MULTILINE)
    assert {path.name for path in (job.run_dir / "logs").iterdir()} == {
        "a.scheduler.log", "a.server.log", "a.worker.log", "b.server.log", "b.worker.log"}  # fmt: skip
    assert "nalb-agent" not in job.output
    kinds = [type(event) for event in read_events(job.run_dir)]  # they came from host a
    assert (kinds[0], LayoutEvent in kinds, kinds.count(IterationEvent)) == (ReadyEvent, True, 3)
    assert "ssh-ed25519" in (cluster.folder / "known_hosts").read_text()
    assert not any(folder.exists() for folder in folders)
    job.assert_nothing_left(within_s=0)


def test_a_script_is_compared_on_hosts(cluster: Cluster, tmp_path: Path) -> None:
    words = ["--hosts", str(cluster.hosts_file), "--schemes", "stock,average", "--out", str(tmp_path / "run")]
    argv = [*at_hub(cluster.emulation), sys.executable, "-m", "nalb.cli.main", "compare", *words]
    done = subprocess.run(
        [*argv, "--", sys.executable, str(Path(__file__).with_name("own_training.py"))],
        capture_output=True, text=True, check=False, timeout=120, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_run(tmp_path / "run")
    assert (record.network, record.nodes, record.bound_s) == ("hosts", 2, None)
    assert list(record.schemes) == ["stock", "average"]
    for result in record.schemes.values():
        assert len(result.iteration_s) >= 4
        assert (result.printed or "").startswith("loss ")


def test_a_host_whose_login_sets_what_ps_lite_reads(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    hosts_file = tmp_path / "hosts.toml"
    hosts_file.write_text(f"{cluster.hosts_file.read_text()}port = {OTHER_SSHD_PORT}\n")  # of b
    with ExitStack() as stack:
        options = ("-o", f"SetEnv={' '.join(OF_PS_LITE)}")
        start_sshd(stack, cluster.emulation, "b", cluster.folder, OTHER_SSHD_PORT, options)
        job = launch("--hosts", str(hosts_file), "--deadline-s", "5", "--", *REPLAY, wrap=at_hub(cluster.emulation))
        assert job.end(90)[0] == 0, job.output


def test_a_worker_that_leaves_a_daemon(cluster: Cluster, launch: Launch) -> None:
    """With a cleared environment, a session of its own and the worker's output in its hand."""
    daemon = f"sleep 200.{os.getpid()}"
    job = cluster.launch(launch, "sh", "-c", f"(env -i setsid {daemon} &); exec {' '.join(REPLAY)}", wrap=APART)
    assert job.end(90)[0] == 0, job.output
    assert daemon not in subprocess.check_output(["ps", "-eo", "args"], text=True)
    job.assert_nothing_left(within_s=0)


def test_a_worker_on_a_host_is_killed(cluster: Cluster, launch: Launch) -> None:
    job = under_way(cluster, launch)
    pid = job.child("b.worker")
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert job.token.encode() not in environment  # nothing of the launcher's own environment travels
    os.kill(pid, signal.SIGKILL)
    code, _ = job.end()
    assert code == 128 + signal.SIGKILL
    assert (job.failure().cause, who(job.failure())) == (Cause.ENDED, ("worker", "b"))
    assert (job.failure().iteration or 0) > 0  # as the coordinator on host a has told
    job.assert_nothing_left(within_s=0)


def test_a_process_on_a_host_is_stopped_before_all_have_met(cluster: Cluster, launch: Launch) -> None:
    """No coordinator hears of it: its agent tells the launcher."""
    job = cluster.launch(launch, *STEPS)
    end_s, pid = time.monotonic() + START_LIMIT_S, 0
    while not pid:
        assert time.monotonic() < end_s, job.output
        with suppress(StopIteration):
            pid = job.child("b.server")
    os.kill(pid, signal.SIGSTOP)
    code, _ = job.end(START_LIMIT_S)
    assert code == 4, job.output
    assert (job.failure().cause, who(job.failure())) == (Cause.STOPPED, ("server", "b"))
    job.assert_nothing_left(within_s=0)


def test_the_launcher_is_killed(cluster: Cluster, launch: Launch) -> None:
    job = under_way(cluster, launch)
    assert len(job.processes()) > 5
    job.signal(signal.SIGKILL)
    job.end()
    job.assert_nothing_left()


def test_the_connection_to_a_host_is_lost(cluster: Cluster, launch: Launch) -> None:
    """The worker's ssh client goes: the agent behind it ends the worker, the launcher names the host."""
    job = under_way(cluster, launch)
    worker = job.child("b.worker")
    os.kill(job.child("b.worker.ssh"), signal.SIGKILL)
    code, _ = job.end()
    assert code == 255
    assert who(job.failure()) == ("worker", "b")
    assert not Path(f"/proc/{worker}").exists()
    job.assert_nothing_left(within_s=0)


def test_a_host_is_cut_off_and_the_job_goes_on_without_it(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    flags = ("--max-restarts", "1", "--min-nodes", "1", "--checkpoints", str(tmp_path / "checkpoints"))
    training = ["python", "tests/launch/training.py", "--fault", "wait", "--node", "a"]
    job = cluster.launch(launch, *training, flags=flags, wrap=APART)
    job.wait_for("loss 12")
    assert job.child("b.worker")  # from here on whatever is left of this attempt is seen, on the hosts too
    port = wires.port_name(cluster.emulation.network, "b")
    set_link(cluster.emulation, port, "down")
    try:
        job.wait_for("goes on from checkpoint")
        job.processes()  # the second attempt's mark is another
        code, _ = job.end(START_LIMIT_S)
    finally:
        set_link(cluster.emulation, port, "up")
    assert code == 0, job.output
    (line,) = [line for line in job.lines if "; restart 1 of 1" in line]
    failure = noted_in(job.run_dir)
    assert (failure.cause, failure.node) == (Cause.SILENT, "b")
    assert "; restart 1 of 1 without b, from the newest checkpoint on the hosts, or from the beginning" in line
    assert "[a worker] goes on from checkpoint" in job.output
    assert "[a worker] evaluated" in job.output
    job.assert_nothing_left()


def set_link(emulation: Emulation, name: str, state: str) -> None:
    """The hub's end of a node's cable."""

    def change(netlink: IPRoute) -> None:
        netlink.link("set", index=build.interface_index(netlink, name), state=state)

    namespaces.with_netlink(emulation.hub_namespace(), change)


def test_a_login_that_hangs_is_named(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """ssh itself would wait without a limit, since the host answers."""
    defaults = "[defaults.environment]\nNALB_STARTUP_S = '20'\n[[hosts]]"
    text = cluster.hosts_file.read_text().replace("[[hosts]]", defaults, 1)
    (tmp_path / "hosts.toml").write_text(f"{text}port = {OTHER_SSHD_PORT}\n")  # of b
    with ExitStack() as stack:
        options = ("-o", "ForceCommand=sleep 30")
        start_sshd(stack, cluster.emulation, "b", cluster.folder, OTHER_SSHD_PORT, options)
        job = launch("--hosts", str(tmp_path / "hosts.toml"), "--", *STEPS, wrap=at_hub(cluster.emulation))
        assert job.end(START_LIMIT_S)[0] == 1, job.output
    says = f"did not start: no agent answers at {cluster.emulation.address('b')} within 20 s: does a login there hang?"
    assert says in job.failure().detail
    job.assert_nothing_left(within_s=0)


def test_many_hosts_behind_one_sshd_are_entered_a_few_at_a_time(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An sshd drops some logins of many at once; this one drops all above four. Without a limit the cores let
    about nine log in at once, so the limit here is lower than LOGINS_MOST.
    """
    monkeypatch.setattr(ssh, "LOGINS_MOST", 3)
    (tmp_path / "hosts.toml").write_text(f"{cluster.hosts_file.read_text()}port = {OTHER_SSHD_PORT}\n")  # of b
    hosts = load_hosts(tmp_path / "hosts.toml")
    workers = [ProcessSpec("b", "worker", ("true",), {"DMLC_ROLE": "worker"}) for _ in range(10)]

    def work() -> set[str]:
        with RemoteJob(workers, hosts, {}, log_dir=tmp_path / "logs") as job:
            job.wait()
        return unreachable([hosts.host("b")] * 10)

    with ExitStack() as stack:
        key = f'AuthorizedKeysCommand=/usr/bin/sh -c "sleep 1; cat {cluster.folder}/user_key.pub"'
        slow = ("AuthorizedKeysFile=none", key, "AuthorizedKeysCommandUser=root", "MaxStartups=4:100:4")
        options = tuple(word for option in slow for word in ("-o", option))
        start_sshd(stack, cluster.emulation, "b", cluster.folder, OTHER_SSHD_PORT, options)
        assert namespaces.inside(cluster.emulation.hub_namespace(), work) == set()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("user_key", "other_key"), "{b} .*Permission denied"),
        (
            ("directory = '", "directory = '/nowhere"),
            "{b} has no directory '/nowhere.*': correct `directory` in the hosts",
        ),
        (
            ("python = '", "python = '/etc/passwd' # '"),
            "{b} may not execute '/etc/passwd': allow it, or correct `python`",
        ),
        (("python = '", "python = '/nowhere"), "{b} has no program '/nowhere.*': correct `python` in the hosts file"),
        (
            ("python = '", "python = '/bin/false' # '"),
            "'/bin/false' on {b} cannot run nalb: install it there, or correct",
        ),
        (("port = 2222", "port = 2223"), "{b} .*port 2223: Connection refused"),
        (("known_hosts = ", "# "), "{b} .*Host key verification failed"),
    ],
)
def test_a_host_that_cannot_be_entered(
    cluster: Cluster, launch: Launch, tmp_path: Path, change: tuple[str, str], says: str
) -> None:
    hosts_file = tmp_path / "hosts.toml"
    hosts_file.write_text(cluster.hosts_file.read_text().replace(*change))
    job = launch("--hosts", str(hosts_file), "--", "true", wrap=at_hub(cluster.emulation))
    code, _ = job.end()
    assert code not in (0, 4)
    addresses = "|".join(cluster.emulation.address(node) for node in ("a", "b"))
    assert job.failure().phase is Phase.START
    assert re.search(says.replace("{b}", f"({addresses})"), job.failure().detail), (
        job.output
    )  # the words of ssh and its shell
    job.assert_nothing_left(within_s=0)
