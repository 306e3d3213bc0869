"""Where and how the jobs of a campaign run, and how their processes, links and namespaces are found.

Each venue is a kind of job in a place: on loopback, in an emulated network of its own, or on two hosts, which are two nodes of such
a network that answer ssh. All jobs check their sums themselves, and by --verify-sums.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from nalb.errors import MachineError
from nalb.launch.ports import free_pair
from nalb.process.guardian import VARIABLE
from netem.build import BRIDGE, take_down
from netem.emulation import Emulation, network_up
from netem.namespaces import hub_namespace, inside_argv, node_namespace, standing
from netem.network_file import load_network
from netem.wires import port_name
from tests.campaigns.resets import Namespace, listening
from tests.launch import test_ssh as over_ssh
from tests.launch.conftest import LAUNCH, MARK, ROOT, Launched, processes_with

PHASES = ("start", "init", "plan", "forward", "push", "pull", "checkpoint", "end")
NARROW = tuple(
    phase for phase in PHASES if phase not in ("plan", "checkpoint")
)  # whose checkpoints are too small to be caught
UNSEEN = tuple(phase for phase in PHASES if phase not in ("init", "plan"))  # of jobs whose events are written elsewhere
NETWORK = 'name = "{}"\n[defaults]\nup_mbps = 300\ndown_mbps = 300\n[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n'
SITES = """name = "{}"
[defaults]
up_mbps = 400
down_mbps = 400
[[sites]]
name = "east"
up_mbps = 200
down_mbps = 200
[[nodes]]
name = "a"
site = "east"
[[nodes]]
name = "b"
site = "east"
[[nodes]]
name = "c"
"""
STARTUP_S = 60.0
LISTENS_S = 20.0  # until a coordinator listens that rank 0's agent starts
TAKEN_DOWN_S = 15.0  # after a killed launcher the network's guardian takes it down
LARGE = ("phases.py", "--elements", "6000000")  # over loopback, an exchange takes tens of milliseconds
OF_TORCH = ("start", "init", "first", "cycle", *PHASES[2:])  # the first iteration, and one that shows the cycle
MODULES = {"nalb.plane.agent": "agent", "nalb.plane.coordinator": "scheduler"}
LOOPBACK, MASTER_PORT = "127.0.0.1", 29500
TORCH = ("torch_phases.py",)
TORCH_LARGE = ("torch_phases.py", "--elements", "3000000")
PLANNED = (
    ("--scheme", "exact"),
    ("--scheme", "average"),
    ("--scheme", "average", "--encrypt"),
    (),
)  # (): rings are allowed
IN_ENVIRONMENT = (("NALB_SCHEME=exact",), ("NALB_SCHEME=average",), ())  # of ranks that no launcher starts
OF_ALONE = tuple(phase for phase in OF_TORCH if phase != "plan")  # nobody writes down events
TOKENS = (
    ("--parallel", "fela"),
    ("--parallel", "fela", "--weights", "1,1,2", "--subset", "1"),
    ("--parallel", "hp"),
    ("--parallel", "mp"),
)


@dataclass(frozen=True)
class Venue:
    """A kind of job, and its place."""

    nodes: tuple[str, ...]  # the first has the scheduler
    flags: tuple[str, ...] = ()  # {} stands for the network's or hosts' file
    more: tuple[tuple[str, ...], ...] = ((),)  # one of these is added, by lot
    script: tuple[str, ...] = ("phases.py",)
    phases: tuple[str, ...] = PHASES
    network: str | None = None
    site: tuple[str, ...] = ()  # nodes that have a site server
    has_hosts: bool = False
    is_alone: bool = False  # nobody supervises the ranks, and nobody starts them again

    @property
    def stands_before(self) -> bool:
        """Whether the network, if there is one, is there before the job, and after it."""
        return self.has_hosts or self.is_alone

    @property
    def is_of_torch(self) -> bool:
        """Whether a rank is a script with an agent."""
        return self.script[0] == TORCH[0]

    @property
    def is_by_sites(self) -> bool:
        """Whether there are two kinds of server."""
        return bool(self.site)


VENUES = {
    "network": Venue(("a", "b"), ("--network", "{}"), network=NETWORK),
    "local": Venue(
        ("n0", "n1"),
        ("--local", "2"),
        ((), ("--scheme", "exact"), ("--scheme", "average"), ("--encrypt",)),
        LARGE,
    ),
    "sites": Venue(("n0", "n1", "n2"), ("--local", "2+1"), script=LARGE, site=("n0", "n1")),
    "network, sites": Venue(("a", "b", "c"), ("--network", "{}"), network=SITES, site=("a", "b")),
    "tokens": Venue(("n0", "n1", "n2"), ("--local", "3"), TOKENS, ("token_phases.py",), NARROW),
    "network, tokens": Venue(("a", "b"), ("--network", "{}"), TOKENS, ("token_phases.py",), NARROW, NETWORK),
    "batches": Venue(
        ("n0", "n1"),
        ("--local", "2"),
        (("--batching", "lb-bsp"), ("--batching", "lbb"), ("--batching", "dynamic"), ("--scheme", "joint")),
        ("batch_phases.py",),
        NARROW,
    ),
    "hosts": Venue(("a", "b"), ("--hosts", "{}"), ((), ("--plain",)), phases=UNSEEN, network=NETWORK, has_hosts=True),
    "torch, network": Venue(("a", "b"), ("--network", "{}"), PLANNED, TORCH, OF_TORCH, NETWORK),
    "torch, local": Venue(("n0", "n1"), ("--local", "2"), PLANNED, TORCH_LARGE, OF_TORCH),
    "torch, sites": Venue(("a", "b", "c"), ("--network", "{}"), PLANNED[:3], TORCH, OF_TORCH, SITES),
    "torch, hosts": Venue(
        ("a", "b"),
        ("--hosts", "{}"),
        ((), ("--plain",)),
        TORCH,
        tuple(phase for phase in OF_TORCH if phase in UNSEEN),
        NETWORK,
        has_hosts=True,
    ),
    "torch, alone": Venue(("n0", "n1"), more=IN_ENVIRONMENT, script=TORCH_LARGE, phases=OF_ALONE, is_alone=True),
    "torch, network, alone": Venue(
        ("a", "b"), more=IN_ENVIRONMENT, script=TORCH, phases=OF_ALONE, network=NETWORK, is_alone=True
    ),
}
MXNETS = tuple(name for name, venue in VENUES.items() if not venue.is_of_torch)


def role_in_torch(pid: int, script: str) -> str:
    """A process's role by its command, since its environment names none; empty for others than the job's own processes."""
    with suppress(OSError):
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        if words[1:2] == [script]:
            return "worker"
        return next((role for module, role in MODULES.items() if module in words), "")
    return ""


class Staged:
    """A job in its venue."""

    def __init__(self, venue: Venue, folder: Path, name: str, flags: list[str]):
        self._venue, self._name, self._stack = venue, name, ExitStack()
        self._file, wrap, environment = folder / f"{name}.toml", list[str](), {"NALB_STARTUP_S": f"{STARTUP_S:g}"}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")  # else PyTorch leaves a folder
        self.run_dir = folder / name
        self.checkpoints = self.run_dir / "checkpoints"
        self._script = str(ROOT / "tests/launch" / venue.script[0])
        if venue.network is not None:
            self._file.write_text(venue.network.format(name))
        place, program, emulation = self._file, LAUNCH, None
        try:
            if venue.network is not None and venue.stands_before:
                emulation = self._stack.enter_context(network_up(load_network(self._file)))
            if venue.has_hosts:
                assert emulation is not None
                place, wrap = self._hosts(emulation, folder), inside_argv(emulation.hub_namespace(), [])
                self.checkpoints = folder / f"{name}-checkpoints"
                flags = [*flags, "--checkpoints", str(self.checkpoints)]
            where = [word.format(place) for word in venue.flags]
            if venue.is_alone:
                environment |= dict(word.split("=") for word in flags) | {"NALB_CHECKPOINTS": str(self.checkpoints)}
                program, where, flags = [sys.executable, "-m", "tests.campaigns.alone"], self._ranks(emulation), []
            script = [sys.executable, self._script, *venue.script[1:]]
            self.job = Launched([*where, *flags, "--", *script], self.run_dir, wrap, environment, program)
        except BaseException:
            self._stack.close()
            raise

    def _ranks(self, emulation: Emulation | None) -> list[str]:
        """Where the ranks meet, and each one's place."""
        if emulation is None:
            port = self._stack.enter_context(free_pair(LOOPBACK))
            return [LOOPBACK, str(port), *self._venue.nodes]
        places = [f"{node}@{emulation.namespace(node)}" for node in self._venue.nodes]
        return [emulation.address(self._venue.nodes[0]), str(MASTER_PORT), *places]

    def _hosts(self, emulation: Emulation, folder: Path) -> Path:
        """The hosts' file, when all answer ssh."""
        own = folder / f"{self._name}-ssh"
        own.mkdir()
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", own / key], check=True)
        (own / "sshd_config").write_text(over_ssh.SSHD_CONFIG.format(folder=own))
        for node in self._venue.nodes:
            over_ssh.start_sshd(self._stack, emulation, node, own)
        text = over_ssh.hosts_text(emulation, own)
        file = own / "hosts.toml"
        file.write_text(f'{text}\n[defaults.environment]\nNALB_STARTUP_S = "{STARTUP_S:g}"\n')
        return file

    # ---- what is where

    def processes(self) -> dict[int, str]:
        """The roles of the job's workers, agents, servers and scheduler, by pid."""
        return {pid: one["DMLC_ROLE"] for pid, one in self._environments().items()}

    def pid(self, victim: str, node: str) -> int:
        """Of a process of the job, or the launcher. ProcessLookupError where it is not there."""
        if victim == "launcher":
            return self.job.popen.pid
        level, _, role = victim.rpartition(" ")
        if not self._venue.has_hosts and not self._venue.is_of_torch:
            return self.job.pid(role, node, level or None)
        for pid, one in self._environments().items():
            if (one["DMLC_ROLE"], one.get("NALB_NODE"), one.get("NALB_LEVEL", "")) == (role, node, level):
                return pid
        raise ProcessLookupError(f"the job has no {victim} of node {node}")

    def ssh_pid(self, victim: str, node: str) -> int:
        """Of the launcher's ssh client for a process on a host."""
        with suppress(StopIteration):
            return self.job.child(f"{node}.{victim}.ssh")
        raise ProcessLookupError(f"the launcher has no ssh client for {victim} {node}")

    def control_port(self, pid: int) -> int:
        """The coordinator's, as a process of the job knows it."""
        if self._venue.is_alone:
            first, end_s = self._venue.nodes[0], time.monotonic() + LISTENS_S
            while time.monotonic() < end_s:
                with suppress(ProcessLookupError):
                    return listening(self.namespace(first), self.pid("scheduler", first))
                time.sleep(0.02)
        for other, one in self._environments().items():
            if other == pid:
                return int(one["NALB_COORDINATOR"].rpartition(":")[2])
        raise ProcessLookupError(f"{pid} is not the job's")

    def _environments(self) -> dict[int, dict[str, str]]:
        found = self.job.processes() if self._venue.has_hosts else processes_with(f"{MARK}={self.job.token}")
        if self._venue.is_of_torch:
            roles = {pid: role_in_torch(pid, self._script) for pid in found}
            return {pid: one | {"DMLC_ROLE": roles[pid]} for pid, one in found.items() if roles[pid]}
        return {pid: one for pid, one in found.items() if "DMLC_ROLE" in one and VARIABLE in one}

    def namespaces(self) -> list[Namespace]:
        """Where the connections are."""
        if self._venue.network is None:
            return [None]
        return [node_namespace(self._name, node) for node in self._venue.nodes]

    def namespace(self, node: str) -> Namespace:
        """A node's."""
        return None if self._venue.network is None else node_namespace(self._name, node)

    def hub(self) -> Namespace:
        """Where the ssh clients are."""
        return hub_namespace(self._name)

    # ---- what happens to it

    def cut(self, node: str, is_far: bool) -> None:
        """The node loses its link: its own port, or all that is beyond a switch."""
        self._set_link(node, ["nomaster"] if is_far else ["down"])

    def heal(self, node: str, is_far: bool) -> None:
        """It gets it back."""
        self._set_link(node, ["master", BRIDGE] if is_far else ["up"])

    def _set_link(self, node: str, words: list[str]) -> None:
        network = load_network(self._file)
        bridge, _ = Emulation(network).bridge_of(node)
        subprocess.run(["ip", "-n", bridge, "link", "set", port_name(network, node), *words], check=True)

    def kill_node(self, node: str) -> None:
        """All of the job's processes on the node."""
        for pid, one in self._environments().items():
            if one.get("NALB_NODE") == node:
                os.kill(pid, signal.SIGKILL)

    def assert_nothing_left(self) -> None:
        """No process, file or namespace but those that stood before."""
        self.job.assert_nothing_left()
        end_s = time.monotonic() + TAKEN_DOWN_S
        while not self._venue.stands_before and standing(self._name):
            assert time.monotonic() < end_s, "the network was left"
            time.sleep(0.05)

    def destroy(self) -> None:
        """Whatever is left of it."""
        self.job.destroy()
        self._stack.close()
        take_down(self._name)


def require(venues: list[str]) -> None:
    """MachineError where this machine cannot run these."""
    if any(VENUES[name].has_hosts for name in venues):
        if not Path(over_ssh.SSHD).exists():
            raise MachineError("no OpenSSH server: install openssh-server, or leave the venue hosts out")
        over_ssh.SEPARATION.mkdir(mode=0o755, exist_ok=True)
