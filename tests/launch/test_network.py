"""A fault of a job inside an emulated network: as on loopback, and the network goes too. More: test_campaign.py."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nalb.events import IterationEvent, NetworkChange
from nalb.failures import Cause
from nalb.launch.network import Changes, configured_bound_s, configured_message, goodput_bound_s, job_nodes
from nalb.reporting.run_file import read_events
from netem import build, namespaces, qdiscs, wires
from netem.network_file import find_network, load_network, parse_network
from tests.failures import who
from tests.launch.conftest import END_LIMIT_S, ROOT, START_LIMIT_S, STEPS, Launch, Launched
from tests.netem.conftest import standing_groups
from tests.networks import skip_without_networks

QUOTA = f"{0.45 * len(os.sched_getaffinity(0)):g}"  # two such nodes leave a tenth of the machine to the rest
NETWORK = f"""
[defaults]
up_mbps = 200
down_mbps = 200
cpu_quota = {QUOTA}
[[nodes]]
name = "a"
[[nodes]]
name = "b"
"""
MORE = """
[[nodes]]
name = "c"
[[links]]
src = "a"
dst = "b"
mbps = 20
[[links]]
src = "a"
dst = "c"
mbps = 30
"""
ROLES = """
defaults = {up_mbps = 200, down_mbps = 100}
nodes = [{name = "w", server = false}, {name = "s", worker = false}, {name = "ws"}]
"""
SITES = """
[defaults]
up_mbps = 400
down_mbps = 400
[[sites]]
name = "east"
up_mbps = 100
down_mbps = 100
[[sites]]
name = "west"
up_mbps = 100
down_mbps = 100
[[nodes]]
name = "n0"
site = "east"
[[nodes]]
name = "n1"
site = "east"
[[nodes]]
name = "n2"
site = "west"
[[nodes]]
name = "n3"
site = "west"
"""
ALL_CPU = NETWORK.replace(f"cpu_quota = {QUOTA}\n", "")
REPLAY = [sys.executable, "-m", "kvstore_patch.roles.replay", "mobilenet"]  # without end
TRAINING = [sys.executable, str(ROOT / "tests/launch/training.py")]

needs_mxnet = pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")


@pytest.fixture
def name():
    """A network name of this run; whatever of it is left is removed."""
    skip_without_networks()
    chosen = f"f{os.getpid() % 10**6}"
    yield chosen
    build.take_down(chosen)


def under_way(launch: Launch, name: str, folder: Path) -> Launched:
    """A replay that iterates on two nodes."""
    path = folder / "network.toml"
    path.write_text(f'name = "{name}"\n{NETWORK}')
    job = launch("--network", str(path), "--deadline-s", "5", "--", *REPLAY)
    job.wait_for_event(IterationEvent)
    assert len(namespaces.standing(name)) == 3
    assert f"CPU quotas in cores: a {QUOTA}, b {QUOTA}; kept by " in job.output
    return job


@pytest.mark.root
@pytest.mark.mxnet
@needs_mxnet
def test_a_server_is_killed(launch: Launch, name: str, tmp_path: Path) -> None:
    job = under_way(launch, name, tmp_path)
    os.kill(job.pid("server", "b"), signal.SIGKILL)
    code, _ = job.end()
    assert code == 128 + signal.SIGKILL
    assert (job.failure().cause, who(job.failure())) == (Cause.ENDED, ("server", "b"))
    assert namespaces.standing(name) == []
    assert standing_groups(name) == []
    job.assert_nothing_left(within_s=0)


@pytest.mark.root
@pytest.mark.mxnet
@needs_mxnet
def test_each_node_has_the_roles_of_its_file(launch: Launch, name: str, tmp_path: Path) -> None:
    path = tmp_path / "network.toml"
    path.write_text(f'name = "{name}"\n{ROLES}')
    job = launch("--network", str(path), "--scheme", "exact", "--", *STEPS, "--steps", "20")
    assert job.end(START_LIMIT_S)[0] == 0, job.output
    assert sorted(line for line in job.lines if "last step" in line) == [
        "[w worker] last step",
        "[ws worker] last step",
    ]
    logs = {path.name for path in (job.run_dir / "logs").iterdir()}
    assert logs == {"w.scheduler.log", "w.worker.log", "s.server.log", "ws.server.log", "ws.worker.log"}
    assert namespaces.standing(name) == []


@pytest.mark.root
@pytest.mark.mxnet
@needs_mxnet
def test_a_node_that_fails_twice_is_left_out(launch: Launch, name: str, tmp_path: Path) -> None:
    """The coordinator is told of the rates of those that are left."""
    path = tmp_path / "network.toml"
    path.write_text(f'name = "{name}"\n{ALL_CPU}{MORE}')
    policy = ["--max-restarts", "2", "--min-nodes", "2"]
    fault = ["--plain", "--fault", "kill", "--fault-at", "7", "--always", "--node", "c"]
    job = launch("--network", str(path), "--scheme", "exact", *policy, "--", *TRAINING, *fault)
    assert job.end(3 * START_LIMIT_S)[0] == 0, job.output
    assert "restart 2 of 2 without c, from iteration 5 " in job.output
    assert " worker] loss 11 " in job.output  # the last: 96 samples, 24 a time, three times over


@pytest.mark.root
@pytest.mark.mxnet
@needs_mxnet
def test_a_network_that_no_longer_changes_ends_the_job(launch: Launch, name: str, tmp_path: Path) -> None:
    """Here because what shapes a node is gone."""

    def unshape(netlink: qdiscs.IPRoute) -> None:
        index = build.interface_index(netlink, wires.NODE_INTERFACE)
        netlink.tc("del", index=index, parent=qdiscs.TC_H_ROOT, handle=qdiscs.ROOT)

    path = tmp_path / "network.toml"
    changes = [f'[[changes]]\nat_s = {s}\nnode = "b"\nup_mbps = {100 + s % 2}\n' for s in range(1, 1000)]
    path.write_text(f'name = "{name}"\n{ALL_CPU}{"".join(changes)}')
    job = launch("--network", str(path), "--", *REPLAY)
    job.wait_for("network change at")
    namespaces.with_netlink(namespaces.node_namespace(name, "b"), unshape)
    assert job.end(START_LIMIT_S)[0] == 3
    assert job.lines[-1].startswith("nalb launch: "), job.output
    assert namespaces.standing(name) == []


def test_the_coordinator_is_told_of_the_jobs_nodes_alone() -> None:
    network = parse_network(f'name = "net"\n{NETWORK}{MORE}', "test.toml")
    told = configured_message(network, 0.0, ["a", "b"])
    assert (told.up, told.down, told.pairs) == ({"a": 25e6, "b": 25e6}, {"a": 25e6, "b": 25e6}, [("a", "b", 2.5e6)])
    assert configured_message(network, 0.0).pairs == [("a", "b", 2.5e6), ("a", "c", 3.75e6)]


def test_the_bound_knows_who_is_worker_and_who_is_server() -> None:
    network = parse_network(f'name = "net"\n{ROLES}', "test.toml")
    assert [(node.is_worker, node.is_server) for node in job_nodes(network)] == [
        (True, False), (False, True), (True, True),
    ]  # fmt: skip
    assert configured_bound_s(network, 25e6) == pytest.approx(2.0)  # each worker's 25 MB at 100 Mbit/s


def test_the_goodput_bound_counts_the_bunches_that_the_network_carries() -> None:
    """A bucket of 100 Mbit/s holds 8 packets. Where rates change, bunches have 4."""
    network = parse_network(f'name = "net"\n{ROLES}', "test.toml")
    assert goodput_bound_s(network, 25e6) == pytest.approx(2.0 * (1514 + 66 / 8) / 1448)
    change = ROLES + '[[changes]]\nat_s = 5\nnode = "w"\nup_mbps = 100\n'
    network = parse_network(f'name = "net"\n{change}', "test.toml")
    assert goodput_bound_s(network, 25e6) == pytest.approx(2.0 * (1514 + 66 / 4) / 1448)


CHANGES = """
import sys
import time
from pathlib import Path
from nalb.launch.network import Changes
from netem.network_file import find_network, load_network
Changes(load_network(find_network("wan4-step")), Path(sys.argv[1])).note_changed(1.0, {"at_s": 1.0, "nodes": {}, "links": []})
"""


def test_a_change_is_noted_though_nobody_reads_the_output(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-c", CHANGES, str(tmp_path)],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    (event,) = read_events(tmp_path)
    assert event.change == NetworkChange(at_s=1.0, nodes={}, links=[])


def test_many_changes_are_all_noted_and_one_a_second_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = Changes(load_network(find_network("wan4-step")), tmp_path)
    for tenth in range(25):
        changes.note_changed(tenth / 10, {"at_s": tenth / 10, "nodes": {}, "links": []})
    assert [event.elapsed_s for event in read_events(tmp_path)] == [tenth / 10 for tenth in range(25)]
    first, *others = capsys.readouterr().out.splitlines()
    assert "since" not in first
    assert [line.partition(": ")[0] for line in others] == ["network change at 1.0 s", "network change at 2.0 s"]
    assert all(line.endswith(" (and 9 since the last line)") for line in others)


@pytest.mark.root
@pytest.mark.mxnet
@needs_mxnet
def test_a_sites_uplink_is_cut(launch: Launch, name: str, tmp_path: Path) -> None:
    """A moment without it heals. Where it stays away, the job ends, and names a process beyond it."""
    path = tmp_path / "network.toml"
    path.write_text(f'name = "{name}"\n{SITES}')
    job = launch("--network", str(path), "--deadline-s", "5", "--verify-sums", "--", *REPLAY)
    job.wait_for_event(IterationEvent)
    wire = wires.wires(parse_network(path.read_text(), str(path)))["west"]
    link = ["ip", "-n", wire.bridge_namespace, "link", "set", wire.port]
    subprocess.run([*link, "down"], check=True)
    time.sleep(1.0)
    subprocess.run([*link, "up"], check=True)
    cut_short = last_iteration(job)
    end_s = time.monotonic() + START_LIMIT_S
    while last_iteration(job) < cut_short + 3:
        assert job.popen.poll() is None, job.output
        assert time.monotonic() < end_s
        time.sleep(0.1)
    subprocess.run([*link, "down"], check=True)
    code, _ = job.end(2 * END_LIMIT_S)  # the silence and the ends alone take 8 s
    assert code != 0
    failure = job.failure()
    assert failure.cause in (Cause.SILENT, Cause.UNREACHABLE, Cause.NO_COORDINATOR), failure
    assert failure.node in ("n2", "n3") or failure.cause is Cause.UNREACHABLE
    job.assert_nothing_left()
    assert namespaces.standing(name) == []


def last_iteration(job: Launched) -> int:
    """That the coordinator has noted; -1: none."""
    return max((event.iteration for event in read_events(job.run_dir) if isinstance(event, IterationEvent)), default=-1)
