"""A job on several machines: each process is the child of an agent that the system's ssh client started there.

The ssh clients' stdin is the leash: the launcher writes a byte every SIGN_OF_LIFE_S, and closing it ends the process on
the other side. Nothing of the launcher's environment travels; ssh itself gets what it needs to find keys and config.
"""

import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from nalb.errors import MachineError
from nalb.failures import Moment, Phase
from nalb.launch.agent import REPORT, SIGN_OF_LIFE_S, VERSION, AgentReport, Order
from nalb.launch.hosts import Host, Hosts
from nalb.launch.processes import Ending, LocalProcess, die_with_parent, ending_of
from nalb.launch.roles import ProcessSpec
from nalb.launch.supervisor import Job
from nalb.process.exhaustion import explained
from nalb.process.guardian import mark
from nalb.process.own_program import own_argv
from nalb.transport.keys import NodeKeys

CONNECT_S = 10
ENTER_S = 2.0 * CONNECT_S  # until a host that could be connected to has let us in
ALIVE_INTERVAL_S, ALIVE_COUNT = 2, 3  # a host that vanishes is noticed after 6 to 8 s
CONNECTION_LOST = 255  # as ssh has it
FOR_SSH = ("HOME", "USER", "LOGNAME", "PATH", "SSH_AUTH_SOCK", "KRB5CCNAME", "TMPDIR")


def ssh_argv(host: Host) -> list[str]:
    """The ssh command that starts an agent on the host."""
    options = [
        *host.ssh_options,  # ssh takes the first value that it meets
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_S}",
        f"ServerAliveInterval={ALIVE_INTERVAL_S}",
        f"ServerAliveCountMax={ALIVE_COUNT}",
        "ClearAllForwardings=yes",
        "ControlMaster=no",  # a master left behind would hold our pipes
        "ControlPath=none",
    ]
    if host.known_hosts is not None:
        options += [f"UserKnownHostsFile={file_option(host.known_hosts)}", "StrictHostKeyChecking=accept-new"]
    if host.identity_file is not None:
        options += [f"IdentityFile={file_option(host.identity_file)}", "IdentitiesOnly=yes"]
    argv = ["ssh", "-T", "-x", "-a"]
    for option in options:
        argv += ["-o", option]
    if host.port is not None:
        argv += ["-p", str(host.port)]
    if host.user is not None:
        argv += ["-l", host.user]
    return [*argv, "--", host.address, remote_command(host, own_argv("nalb.launch.agent", python=host.python))]


def file_option(path: str) -> str:
    """For ssh's -o: this file and no other. Bare, blanks would make several of it, and % or the word none something else.

    Of other files than the one meant, accept-new takes any host key.
    """
    whole = str(Path(os.path.expanduser(path)).absolute())
    return '"' + whole.replace("\\", r"\\").replace('"', r"\"").replace("%", "%%") + '"'


def remote_command(host: Host, argv: Sequence[str]) -> str:
    """For the host's shell: start argv in the host's directory."""
    command = f"exec {' '.join(map(quote, argv))}"
    return command if host.directory is None else f"cd {quote(host.directory)} && {command}"


def quote(word: str) -> str:
    """Quoted for a shell; a leading ~/, or ~ alone, keeps its meaning there."""
    if word in ("~", "~/"):
        return word
    return "~/" + shlex.quote(word[2:]) if word.startswith("~/") else shlex.quote(word)


def unreachable(hosts: Sequence[Host]) -> set[str]:
    """The names of those that ssh cannot enter within ENTER_S."""

    def fails(host: Host) -> bool:
        try:
            probe = subprocess.run(
                [*ssh_argv(host)[:-1], "exit 0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment_for_ssh(),
                start_new_session=True,
                timeout=ENTER_S,
            )
        except subprocess.TimeoutExpired:
            return True
        return probe.returncode != 0

    with explained("ssh to every host at once"), ThreadPoolExecutor(max(1, len(hosts))) as pool:
        return {host.name for host, failed in zip(hosts, pool.map(fails, hosts), strict=True) if failed}


def _environment_for_ssh() -> dict[str, str]:
    return {name: os.environ[name] for name in FOR_SSH if name in os.environ}


class RemoteProcess(LocalProcess):
    """The ssh client that stands for a process on a host."""

    def __init__(self, spec: ProcessSpec, popen: "subprocess.Popen[bytes]", host: Host):
        super().__init__(spec, popen)
        self._host = host
        self._is_ready = self._is_stopped = False
        self._returncode: int | None = None

    def poll(self) -> Ending | None:
        """How the process on the host ended, as its agent reported; or that the connection did."""
        code = self.popen.poll()
        if code is None or not self.is_read:  # the agent's report may still be in the pipe
            return None
        if self._returncode is not None:
            return ending_of(self._returncode)
        if self._is_ready:
            return Ending(CONNECTION_LOST, f"lost its ssh connection to {self._host.address}, or its agent there")
        doing = f"ssh to {self._host.address}" if code == CONNECTION_LOST else f"the agent on {self._host.address}"
        return Ending(code or 1, f"did not start: {doing} failed")

    def stopped_at(self) -> int | None:
        """As its agent has reported, without the time."""
        return 0 if self._is_stopped else None

    def take_line(self, line: str) -> str | None:
        """As for a local process; the agent's reports are taken out."""
        text, found, word = line.partition(REPORT)
        if not found:
            return super().take_line(line)
        with suppress(msgspec.MsgspecError):
            report = msgspec.json.decode(word, type=AgentReport)
            self._is_ready = self._is_ready or report.ready is not None
            self._is_stopped = self._is_stopped if report.stopped is None else report.stopped
            if report.returncode is not None:
                self._returncode = report.returncode
                self.kill()  # ssh itself waits for whoever holds the agent's output there
        return super().take_line(text) if text else None

    def give_sign_of_life(self) -> None:
        """Tell the agent that the launcher lives."""
        assert self.popen.stdin is not None
        with suppress(OSError, ValueError):  # ended or closed: poll says so
            self.popen.stdin.write(b"\n")
            self.popen.stdin.flush()

    def ask_to_end(self) -> None:
        """Close the leash; the agent ends the process and reports."""
        assert self.popen.stdin is not None
        with suppress(OSError):
            self.popen.stdin.close()


class RemoteJob(Job):
    """A job on hosts."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        hosts: Hosts,
        keys: Mapping[str, NodeKeys],  # by node; empty: the job is not encrypted
        log_dir: Path,
        show: Callable[[str], None] | None = None,
        show_unfinished: Callable[[str], None] | None = None,
    ):
        super().__init__(specs, lambda spec: list(spec.argv), {}, log_dir, show, show_unfinished=show_unfinished)
        self._hosts, self._keys = hosts, keys
        self._over = threading.Event()
        self._pulse = threading.Thread(target=self._give_signs_of_life, name="signs-of-life", daemon=True)

    def __enter__(self) -> "RemoteJob":
        with explained("the thread of the signs of life"):
            self._pulse.start()  # first: an agent counts the silence from its own start
        try:
            super().__enter__()
        except BaseException:
            self._over.set()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._pulse.join()
        super().__exit__(kind, error, trace)

    @property
    def moment(self) -> Moment:
        """What the job is about, as its coordinator has said last; before that, not all processes have met."""
        told = next((child.moment for child in self.children if child.moment is not None), None)
        return told or (Phase.START, None)

    def start(self, spec: ProcessSpec) -> RemoteProcess:
        """Start an ssh client and give the agent behind it its order."""
        host = self._hosts.host(spec.node)
        environment = _environment_for_ssh()
        keys = self._keys[spec.node].text() if self._keys else None
        order = Order(VERSION, self.id, spec.slug, list(spec.argv), spec.environment, keys)
        try:
            with explained(f"ssh to {host.address}"):
                popen = subprocess.Popen(
                    ssh_argv(host),
                    env=environment | mark(self.id, f"{spec.slug}.ssh"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=die_with_parent(os.getpid()),
                )
        except OSError as error:
            raise MachineError(f"cannot start ssh ({error.strerror}): install the OpenSSH client") from None
        process = RemoteProcess(spec, popen, host)
        assert popen.stdin is not None
        with suppress(OSError):  # it has ended already: poll says why
            popen.stdin.write(msgspec.json.encode(order) + b"\n")
            popen.stdin.flush()
        return process

    def _give_signs_of_life(self) -> None:
        while not self._over.wait(SIGN_OF_LIFE_S):
            for child in list(self.children):  # more may be started meanwhile
                assert isinstance(child, RemoteProcess)
                child.give_sign_of_life()
