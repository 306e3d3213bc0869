"""Uneven machines: real groups, real processes that burn real CPU. The kernel's counters decide, not the wall clock."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.errors import InputError, MachineError
from netem import ballast, build, cgroups, cpu_limits, duty_cycle, namespaces, verify_cpu
from netem.emulation import attach, leave_up, network_up
from netem.network_tables import HIGH_CPU_QUOTA, LOW_CPU_QUOTA
from tests.netem.conftest import TWO_NODES, UNEVEN_NODES, leftovers, network_of, standing_groups
from tests.netem.test_teardown import wait_until

SPIN = "while True: pass"
BURN = """
import time
while time.process_time() < 0.03:
    pass
print(time.process_time())
"""
SLOWEST_TICK_US = 10_000  # at CONFIG_HZ=100: a group is stopped this much late at most, on each core


@given(st.floats(LOW_CPU_QUOTA, HIGH_CPU_QUOTA))
def test_a_quota_becomes_a_run_and_a_period_that_the_kernel_takes(cores: float):
    run_us, period_us = cgroups.bandwidth_us(cores)
    assert run_us is not None
    assert run_us >= cgroups.BURST_US
    assert 1_000 <= period_us <= 1_000_000
    assert run_us / period_us == pytest.approx(cores, rel=1e-3)


def test_hierarchies_are_found_in_the_mounts(tmp_path: Path):
    (tmp_path / "cgroup.controllers").write_text("memory cpu pids\n")
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "cgroup /a cgroup rw,cpuset 0 0\ncgroup /b cgroup rw,cpu,cpuacct 0 0\n"
        f"none /c cgroup2 rw 0 0\nnone {tmp_path} cgroup2 rw 0 0\nnone /media/caf\udce9 vfat rw 0 0\n",
        "utf-8",
        "surrogateescape",
    )
    assert cgroups.hierarchies(mounts) == [cgroups.Hierarchy(1, Path("/b")), cgroups.Hierarchy(2, tmp_path)]


def test_the_second_version_has_its_own_files(tmp_path: Path):
    """Held against the real thing wherever the machine has it: the tests below take what is there."""
    hierarchy = cgroups.Hierarchy(2, tmp_path)
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    hierarchy.create("nalb-net.a")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    (tmp_path / "nalb-net.a" / "cpu.max.burst").touch()
    hierarchy.set_quota("nalb-net.a", 0.25)
    assert (tmp_path / "nalb-net.a" / "cpu.max").read_text() == "2000 8000"
    hierarchy.set_quota("nalb-net.a", None)
    assert (tmp_path / "nalb-net.a" / "cpu.max").read_text() == "max 100000"


def test_the_duty_cycle_spends_what_time_earns():
    budget_s = duty_cycle.budget_after(0, quota=0.5, elapsed_s=0.01, used_s=0.01)
    assert budget_s == pytest.approx(-0.005), "it used 10 ms where 5 were due: it stands"
    assert duty_cycle.budget_after(budget_s, 0.5, 0.01, 0) == pytest.approx(0), "and goes on 10 ms later"
    assert duty_cycle.budget_after(0, 0.5, 60, 0) == pytest.approx(0.5 * duty_cycle.SAVED_S), "a rest earns little"
    assert duty_cycle.budget_after(0, 0.5, 0, 60) == -0.5 * duty_cycle.LONGEST_STAND_S, "and no debt silences a node"


def test_what_this_machine_cannot_give_is_refused():
    cores = len(os.sched_getaffinity(0))
    cpu_limits.require_cores(network_of("net", TWO_NODES + f"cpu_quota = {cores}"))
    with pytest.raises(MachineError, match="lower cpu_quota"):
        cpu_limits.require_cores(network_of("net", TWO_NODES + f"cpu_quota = {cores + 0.1}"))
    with pytest.raises(MachineError, match="lower memory_mb"):
        ballast.require(network_of("net", TWO_NODES + "memory_mb = 4e6"))


def group_of(name: str, node: str) -> str:
    """The group of a node of the network that is up."""
    (path,) = (path for path in standing_groups(name) if path.name.endswith(f".{node}"))
    return path.name


def kernel_cores(groups: cgroups.Hierarchy, group: str) -> float | None:
    """A group's quota as its files have it."""
    folder = groups.root / group
    if groups.version == 1:
        run_us, period_us = (int((folder / f"cpu.cfs_{what}_us").read_text()) for what in ("quota", "period"))
        return None if run_us < 0 else run_us / period_us
    run, period = (folder / "cpu.max").read_text().split()
    return None if run == "max" else int(run) / int(period)


@pytest.mark.root
def test_the_kernel_holds_a_node_to_its_quota_and_leaves_others_alone(name: str, groups: cgroups.Hierarchy):
    with network_up(network_of(name, UNEVEN_NODES)) as emulation:
        assert emulation.cpu_mechanism() == groups.label
        assert kernel_cores(groups, group_of(name, "b")) == pytest.approx(0.02)
        assert kernel_cores(groups, group_of(name, "a")) is None
        used = [subprocess.check_output(emulation.command(node, [sys.executable, "-c", BURN])) for node in "ab"]
        counters = groups.counters(group_of(name, "b"))
        run_us, _ = cgroups.bandwidth_us(0.02)
        late_us = SLOWEST_TICK_US * (os.cpu_count() or 1)
        assert float(used[1]) * 1e6 <= counters["nr_periods"] * run_us + run_us + cgroups.BURST_US + late_us
        assert emulation.times_stopped("b") == counters["nr_throttled"] >= 1
        assert emulation.times_stopped("a") == 0
    assert leftovers(name) == []


@pytest.mark.root
@pytest.mark.usefixtures("groups")
def test_what_a_node_starts_is_in_its_group_and_what_cannot_join_is_not_run(name: str):
    with network_up(network_of(name, UNEVEN_NODES)) as emulation:
        grandchild = emulation.command("b", ["sh", "-c", "sh -c 'cat /proc/self/cgroup; true'; true"])
        assert f"/{group_of(name, 'b')}\n" in subprocess.check_output(grandchild, text=True)
        cgroups.remove(standing_groups(name))
        outside = subprocess.run(emulation.command("b", ["echo", "ran"]), capture_output=True, text=True, check=False)
        assert outside.returncode != 0
        assert outside.stdout == ""
        with pytest.raises(MachineError, match="net down"):
            emulation.set_cpu_quotas({"b": 0.5})


@pytest.mark.root
@pytest.mark.usefixtures("groups")
def test_a_process_of_a_node_knows_how_many_cores_it_has(name: str):
    code = "from nalb.process.available_cores import Cores; print(Cores().now())"
    with network_up(network_of(name, TWO_NODES + "cpu_quota = 0.3")) as emulation:
        b, a = (float(subprocess.check_output(emulation.command(node, [sys.executable, "-c", code]))) for node in "ba")
    assert b == pytest.approx(0.3, rel=1e-3)
    assert 0.5 < a <= len(os.sched_getaffinity(0))


@pytest.mark.root
def test_quotas_change_by_hand_and_by_the_clock(name: str, groups: cgroups.Hierarchy):
    made, seen = threading.Event(), []

    def on_change(_elapsed_s, description):
        seen.append(description["cpu_quotas"])
        made.set()

    body = UNEVEN_NODES + '[[cpu_changes]]\nat_s = 0.05\nnode = "a"\ncpu_quota = 0.3\n'
    with network_up(network_of(name, body)) as emulation:
        with emulation.start_changes(on_change):
            assert made.wait(10)
        assert seen == [{"a": 0.3}]
        assert kernel_cores(groups, group_of(name, "a")) == pytest.approx(0.3, rel=1e-3)
        emulation.set_cpu_quotas({"b": 0.5})
        assert emulation.cpu_quotas() == {"a": 0.3, "b": 0.5}
        emulation.reset_rates()
        assert emulation.cpu_quotas() == {"a": None, "b": 0.02}
        assert kernel_cores(groups, group_of(name, "a")) is None
        for wrong in ({"z": 0.5}, {"a": 0.0}, {"a": float("nan")}):
            with pytest.raises(InputError):
                emulation.set_cpu_quotas(wrong)


@pytest.mark.root
def test_a_network_without_quotas_makes_no_groups(name: str):
    with network_up(network_of(name, TWO_NODES)) as emulation:
        assert standing_groups(name) == []
        assert emulation.describe_machines() == []
        with pytest.raises(InputError, match="no CPU quotas"):
            emulation.set_cpu_quotas({"a": 0.5})


@pytest.mark.root
def test_groups_of_an_earlier_hub_whose_inode_was_given_again_are_removed(name: str, groups: cgroups.Hierarchy):
    network = network_of(name, UNEVEN_NODES)
    limits = cpu_limits.CgroupLimits(network, groups)
    with network_up(network, limits) as emulation:
        with subprocess.Popen(limits.argv("b", ["sleep", "20"])) as stale:
            wait_until(
                lambda: str(stale.pid) in (groups.root / group_of(name, "b") / "cgroup.procs").read_text().split()
            )
            limits.start()  # as of a second network, whose hub has the first one's inode
            assert stale.wait(10) == -signal.SIGKILL
        assert subprocess.check_output(emulation.command("b", ["echo", "ran"])) == b"ran\n"
    assert leftovers(name) == []


@pytest.mark.root
def test_a_network_with_quotas_stays_up_until_it_is_taken_down(name: str):
    network = network_of(name, UNEVEN_NODES)
    leave_up(network)
    assert attach(network).cpu_quotas() == {"a": None, "b": 0.02}
    build.take_down(name)
    assert leftovers(name) == []


@pytest.mark.root
def test_a_process_of_another_pid_namespace_is_no_trial(groups: cgroups.Hierarchy):
    """Its trial group may carry our process id."""
    others = groups.root / f"nalb-trial-{os.getpid()}"
    others.mkdir()
    try:
        assert cgroups.usable() == (groups, "")
        assert others.is_dir()
    finally:
        others.rmdir()


REMOVE = "import sys; from pathlib import Path; from netem import cgroups; cgroups.remove([Path(sys.argv[1])])"


@pytest.mark.root
def test_what_another_pid_namespace_runs_in_a_group_dies_and_nothing_else(tmp_path: Path):
    """There, cgroup v2 shows its id as 0. Any v2 hierarchy will do."""
    roots = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if " cgroup2 " in line]
    group = Path(roots[0] if roots else tmp_path) / f"nalb-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no writable cgroup v2: {error}")
    if not (group / "cgroup.kill").exists():
        group.rmdir()
        pytest.skip("no cgroup v2 with cgroup.kill: Linux 5.14 has it")
    with subprocess.Popen(["/bin/sh", "-c", cgroups.JOIN, str(group), "sleep", "1000"]) as foreign:
        try:
            wait_until(lambda: str(foreign.pid) in (group / "cgroup.procs").read_text().split())
            removing = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", REMOVE, str(group)]
            done = subprocess.run(removing, start_new_session=True, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
            assert foreign.wait(10) == -signal.SIGKILL
            assert not group.exists()
        finally:
            foreign.kill()
            foreign.wait()
            cgroups.remove([group])


def test_no_signal_goes_to_a_process_that_is_shown_as_0(tmp_path: Path):
    """A folder stands in for a group of cgroup v2 before Linux 5.14, which has no cgroup.kill."""
    (tmp_path / "cgroup.procs").write_text("0\n")
    removing = subprocess.run(
        [sys.executable, "-c", REMOVE, str(tmp_path)],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert removing.returncode == 1, "it was not killed by its own signal"
    assert "cannot be removed (Directory not empty)" in removing.stderr


@pytest.mark.root
def test_a_competing_process_holds_its_memory(name: str):
    with network_up(network_of(name, TWO_NODES + "memory_mb = 30\n")) as emulation:
        (pid,) = namespaces.processes_by_namespace([emulation.namespace("b")])[emulation.namespace("b")]
        assert psutil.Process(pid).memory_info().rss >= 30 * ballast.MB
        assert emulation.describe_machines() == ["held by a competing process, MB: b 30"]


@pytest.mark.root
def test_a_measurement_burns_within_the_quota(name: str):
    with network_up(network_of(name, UNEVEN_NODES)) as emulation:
        found = verify_cpu.measure_cpu(emulation, {"b": 0.02}, warm_s=0.05, measure_s=0.3)["b"]
    assert 0 < found.measured_cores < 0.5, "at most two runs, a burst and a late tick in 300 ms"


def test_no_process_left_to_burn_is_explained(monkeypatch: pytest.MonkeyPatch):
    def scarce(*_args, **_options):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", scarce)
    emulation = SimpleNamespace(command=lambda _name, argv: argv)
    with pytest.raises(MachineError, match=r"^the processes that burn CPU cannot be started \(.*\): raise ulimit -u"):
        verify_cpu.measure_cpu(emulation, {"b": 0.02})


@pytest.mark.root
def test_the_duty_cycle_stops_a_node_lets_it_go_and_ends_with_the_network(name: str):
    network = network_of(name, UNEVEN_NODES)
    with network_up(network, cpu_limits.DutyCycleLimits(network, "on trial")) as emulation:
        assert standing_groups(name) == []
        assert emulation.stops_processes
        assert "duty cycle of SIGSTOP and SIGCONT, coarser than a cgroup (on trial)" in emulation.describe_machines()[0]
        with subprocess.Popen(emulation.command("b", [sys.executable, "-c", SPIN])) as spinning:
            wait_until(lambda: emulation.times_stopped("b") >= 2)  # so it went on in between
            wait_until(lambda: state(spinning.pid) == "T")
            emulation.set_cpu_quotas({"b": None})
            wait_until(lambda: state(spinning.pid) in "RS")
            emulation.set_cpu_quotas({"b": 0.02})
            wait_until(lambda: state(spinning.pid) == "T")
            (controller,) = namespaces.processes_by_namespace([emulation.hub_namespace()])[emulation.hub_namespace()]
            build.take_down(name)  # what is stopped dies too
        assert state(controller) in "ZX"
    assert leftovers(name) == []


def state(pid: int) -> str:
    """The letter of ps; X where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
