"""However the owner of a network ends, the network goes with it."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import psutil
import pytest

from nalb.errors import InputError, MachineError
from netem import build, cpu_limits, namespaces
from netem.emulation import leave_up, network_up
from netem.guardian import NetworkGuardian
from tests.netem.conftest import SITE_OF_B, TWO_NODES, UNEVEN_NODES, leftovers, network_of, standing_groups

pytestmark = pytest.mark.root

DEADLINE_S = 20.0
OWNER = """
import subprocess, sys, time
from netem.emulation import network_up
from netem.network_file import load_network
with network_up(load_network(sys.argv[1])) as emulation:
    inside = subprocess.Popen(emulation.command("a", ["sleep", "1000"]))
    print(inside.pid, flush=True)
    {then}
"""


def wait_until(condition) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def ended(pid: int) -> bool:
    """Whether a process is gone with all its threads, or only waits for its parent to look."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z" and len(os.listdir(f"/proc/{pid}/task")) == 1
    except FileNotFoundError:
        return True


def has_entered(pid: int) -> bool:
    """Whether a process has left our network namespace for its node's."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except FileNotFoundError:
        return True  # it has ended


def interrupted(_names) -> None:
    """A second Ctrl-C, in the middle of taking down."""
    raise KeyboardInterrupt


def start_owner(path, then: str = "time.sleep(1000)", prefix: Sequence[str] = ()) -> tuple[subprocess.Popen, int]:
    """A process that has the network up, and the pid of its child in node a."""
    owner = subprocess.Popen(
        [*prefix, sys.executable, "-c", OWNER.format(then=then), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert owner.stdout is not None
    line = owner.stdout.readline()
    if not line:
        pytest.fail(f"the owner did not start: {owner.communicate()[1]}")
    child = int(line)
    wait_until(lambda: ended(child) or has_entered(child))
    return owner, child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
@pytest.mark.parametrize("more", ["", SITE_OF_B], ids=["nodes", "sites"])
def test_a_signal_to_the_owner_takes_the_network_down(network_path, name: str, number: signal.Signals, more: str):
    network_path.write_text(network_path.read_text() + more)
    owner, child = start_owner(network_path)
    assert len(namespaces.standing(name)) == (4 if more else 3)
    os.killpg(owner.pid, number) if number == signal.SIGINT else owner.send_signal(number)
    with owner:
        owner.communicate(timeout=DEADLINE_S)
    assert owner.returncode == -number
    wait_until(lambda: leftovers(name) == [] and ended(child))


def test_two_interrupts_take_the_network_down_too(network_path, name: str):
    owner, child = start_owner(network_path)
    with owner:
        owner.send_signal(signal.SIGINT)
        owner.send_signal(signal.SIGINT)
        owner.communicate(timeout=DEADLINE_S)
    wait_until(lambda: leftovers(name) == [] and ended(child))


def test_what_an_interrupted_take_down_leaves_is_the_guardians(name: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(KeyboardInterrupt), network_up(network_of(name, TWO_NODES)):
        monkeypatch.setattr(namespaces, "remove", interrupted)
    assert leftovers(name) == []


def test_the_file_of_a_hub_that_is_no_namespace_any_more_goes_too(name: str):
    hub = namespaces.path_of(namespaces.hub_namespace(name))
    with NetworkGuardian(name) as guardian:
        leave_up(network_of(name, TWO_NODES))
        guardian.hub_is_made()
        subprocess.run(["umount", "--lazy", hub], check=True)
        guardian.take_down()
    assert leftovers(name) == []


def test_an_owner_whose_guardian_was_killed_ends_well(network_path, name: str):
    owner, _ = start_owner(network_path, "sys.stdin.read()")
    guardian = next(one for one in psutil.Process(owner.pid).children() if "netem.guardian" in one.cmdline())
    guardian.kill()
    wait_until(lambda: ended(guardian.pid))
    with owner:
        _, complaints = owner.communicate("", timeout=DEADLINE_S)
    assert (owner.returncode, complaints, leftovers(name)) == (0, "", [])


@pytest.mark.parametrize("then", ["pass", "sys.exit(3)", "raise ValueError('no')", "import os; os._exit(4)"])
def test_every_exit_takes_the_network_down(network_path, name: str, then: str):
    owner, child = start_owner(network_path, then)
    with owner:
        owner.communicate(timeout=DEADLINE_S)
    wait_until(lambda: leftovers(name) == [] and ended(child))


def test_a_failed_build_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    made = []
    create = namespaces.create

    def fail_at_the_second_node(namespace: str, *naming) -> None:
        made.append(namespace)
        if len(made) == 3:
            raise KeyboardInterrupt
        create(namespace, *naming)

    monkeypatch.setattr(namespaces, "create", fail_at_the_second_node)
    for bring_up in (leave_up, lambda network: network_up(network).__enter__()):
        made.clear()
        with pytest.raises(KeyboardInterrupt):
            bring_up(network_of(name, TWO_NODES))
        assert leftovers(name) == []


@pytest.mark.parametrize("end", [KeyboardInterrupt, MachineError])
def test_a_hub_that_is_made_when_its_making_ends_goes_too(name: str, monkeypatch: pytest.MonkeyPatch, end):
    create = namespaces.create

    def create_and_end(namespace: str, *naming) -> None:
        create(namespace, *naming)
        raise end

    monkeypatch.setattr(namespaces, "create", create_and_end)
    for bring_up in (leave_up, lambda network: network_up(network).__enter__()):
        with pytest.raises(end):
            bring_up(network_of(name, TWO_NODES))
        assert leftovers(name) == []


def test_an_interrupt_waits_until_a_namespace_is_made(name: str, monkeypatch: pytest.MonkeyPatch):
    attach = namespaces.netns.attach

    def interrupt_and_attach(*words) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        attach(*words)

    monkeypatch.setattr(namespaces.netns, "attach", interrupt_and_attach)
    hub = namespaces.hub_namespace(name)
    with pytest.raises(KeyboardInterrupt):
        namespaces.create(hub)
    assert namespaces.standing(name) == [hub]
    assert namespaces.inside(hub, lambda: os.readlink("/proc/thread-self/ns/net")) != os.readlink("/proc/self/ns/net")


def test_a_hub_that_another_makes_first_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch):
    leave_up(network_of(name, TWO_NODES))
    standing, looks = namespaces.standing, [[]]
    monkeypatch.setattr(namespaces, "standing", lambda network: looks.pop() if looks else standing(network))
    with pytest.raises(InputError, match="already up"):
        leave_up(network_of(name, TWO_NODES))
    assert len(namespaces.standing(name)) == 3


def test_a_hub_that_another_makes_first_is_left_alone_by_an_interrupt_too(name: str, monkeypatch: pytest.MonkeyPatch):
    leave_up(network_of(name, TWO_NODES))
    standing, looks, attach = namespaces.standing, [[]], namespaces.netns.attach

    def interrupt_and_attach(*words) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        attach(*words)

    monkeypatch.setattr(namespaces, "standing", lambda network: looks.pop() if looks else standing(network))
    monkeypatch.setattr(namespaces.netns, "attach", interrupt_and_attach)
    with pytest.raises(KeyboardInterrupt):
        leave_up(network_of(name, TWO_NODES))
    assert len(namespaces.standing(name)) == 3


def test_no_process_or_thread_is_left_for_a_network(name: str, monkeypatch: pytest.MonkeyPatch):
    def scarce(*_args, **_options):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    def scarce_threads(_thread):
        raise RuntimeError("can't start new thread")

    for owner, attribute, refuse in ((subprocess, "Popen", scarce), (threading.Thread, "start", scarce_threads)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, refuse)
            with pytest.raises(MachineError, match=r"cannot be started \(.*\): raise ulimit -u"):
                leave_up(network_of(name, TWO_NODES))
        assert leftovers(name) == []


def test_the_guardian_leaves_a_later_network_of_the_same_name_alone(network_path, name: str):
    owner, _ = start_owner(network_path)
    hub = namespaces.hub_namespace(name)
    first = namespaces.identity(hub)
    namespaces.remove(namespaces.standing(name))
    for _ in range(20):  # the kernel gives a number that is free again, some time later, to the next namespace
        namespaces.create(hub)
        assert namespaces.identity(hub) != first
        namespaces.remove([hub])
        time.sleep(0.05)
    leave_up(network_of(name, TWO_NODES))
    before = {namespace: namespaces.identity(namespace) for namespace in namespaces.standing(name)}
    with owner:
        owner.kill()
        owner.communicate(timeout=DEADLINE_S)  # returns when the guardian, which shares stderr, has ended too
    assert {namespace: namespaces.identity(namespace) for namespace in namespaces.standing(name)} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_groups_and_what_runs_in_them_go_with_the_network(network_path, name: str, number: signal.Signals):
    network_path.write_text(f'name = "{name}"\n{UNEVEN_NODES}memory_mb = 20\n')
    owner, child = start_owner(network_path)
    if isinstance(cpu_limits.choose(network_of(name, UNEVEN_NODES)), cpu_limits.CgroupLimits):
        group = next(group for group in standing_groups(name) if group.name.endswith(".a"))
        wait_until(lambda: str(child) in (group / "cgroup.procs").read_text().split())
    inside = namespaces.processes_by_namespace([f"nalb-{name}.b", f"nalb-{name}"])
    assert inside[f"nalb-{name}.b"], "the competing process"
    owner.send_signal(number)
    with owner:
        owner.communicate(timeout=DEADLINE_S)
    pids = [child, *(pid for each in inside.values() for pid in each)]
    wait_until(lambda: leftovers(name) == [] and all(map(ended, pids)))


IN_A_MOUNT_NAMESPACE = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /run/netns && exec "$@"', "sh")


@pytest.mark.usefixtures("groups")
def test_two_owners_of_one_name_share_the_tree_of_groups_and_nothing_else(network_path, name: str):
    """As in two containers, or rootless beside root: each has namespace files of its own, and all see one tree."""
    network_path.write_text(f'name = "{name}"\n{UNEVEN_NODES}')
    other, child = start_owner(network_path, "sys.stdin.readline()", IN_A_MOUNT_NAMESPACE)
    with other:
        theirs = set(leftovers(name))
        assert len(theirs) == 2, "a group for each node"
        assert build.take_down(name) == []
        assert not ended(child), "a take-down here leaves the other's process alone"
        leave_up(network_of(name, UNEVEN_NODES))
        ours = set(leftovers(name)) - theirs
        other.communicate("\n", timeout=DEADLINE_S)
    assert ended(child)
    assert set(leftovers(name)) == ours, "and the other's end leaves ours"


@pytest.mark.usefixtures("groups")
def test_an_owner_whose_hub_was_removed_by_hand_still_removes_its_groups(network_path, name: str):
    network_path.write_text(f'name = "{name}"\n{UNEVEN_NODES}')
    owner, _ = start_owner(network_path)
    namespaces.remove(namespaces.standing(name))
    with owner:
        owner.kill()
        owner.communicate(timeout=DEADLINE_S)
    assert leftovers(name) == []


def test_a_take_down_cut_short_is_finished_by_the_next(name: str, monkeypatch: pytest.MonkeyPatch):
    leave_up(network_of(name, UNEVEN_NODES))

    with monkeypatch.context() as patch:
        patch.setattr(namespaces, "remove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build.take_down(name)
    assert namespaces.standing(name), "what the guardian looks for stands to the last"
    assert len(build.take_down(name)) == 3
    assert build.take_down(name) == []
    assert leftovers(name) == []


NEEDS_HELPERS = (
    TWO_NODES + "delay_ms = 5\ncpu_quota = 0.5\nmemory_mb = 1\n"
)  # a delay line, a duty cycle, a held memory


@pytest.mark.parametrize("part", ["", ".b"], ids=["hub", "node"])
def test_a_network_of_which_someone_removes_a_namespace_ends_whole(name: str, part: str):
    network = network_of(name, NEEDS_HELPERS)
    gone = f"nalb-{name}{part}"
    with network_up(network, cpu_limits.DutyCycleLimits(network, "on trial")) as emulation:
        inside = namespaces.processes_by_namespace(namespaces.standing(name))
        pids = [pid for pids in inside.values() for pid in pids]
        assert len(pids) == 3
        subprocess.run(["ip", "netns", "del", gone], check=True)
        with pytest.raises(MachineError, match=f"^namespace {gone} is gone, .*: run `nalb net down` and start again$"):
            emulation.reset_rates()
    assert leftovers(name) == []
    wait_until(lambda: all(map(ended, pids)))
