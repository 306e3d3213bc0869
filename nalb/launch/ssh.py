"""A job on several machines: on each host the system's ssh client starts an agent, and the process is the agent's child.

The ssh client's stdin is the leash of the process: the launcher writes an empty line every SIGN_OF_LIFE_S, and closing stdin
ends the process on the host. To and from the coordinator's agent, the connection also carries the frames of the coordinator's
socket for observers, which the launcher's Relay serves. The launcher's environment does not travel; ssh itself gets the variables
it needs to find keys and config.
"""

import base64
import fcntl
import os
import shlex
import signal
import socket
import subprocess
import termios
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from nalb.errors import MachineError
from nalb.launch.agent import REPORT, SIGN_OF_LIFE_S, TERM_GRACE_S, VERSION, AgentOrder, AgentReport
from nalb.launch.hosts import Host, HostsFile
from nalb.launch.processes import Ending, LocalProcess, die_with_parent, ending_of
from nalb.launch.roles import ProcessSpec
from nalb.launch.signals import held_back
from nalb.launch.supervisor import KILL_GRACE_S, Job
from nalb.options import DECLARED
from nalb.process.exhaustion import explained
from nalb.process.guardian import mark
from nalb.process.own_program import own_argv
from nalb.settings import startup_of
from nalb.transport.keys import NodeKeys
from nalb.transport.observer_relay import Relay

CONNECT_S = 10
ENTER_S = 2.0 * CONNECT_S  # the limit for connecting to a host and logging in
# Logins at once: an sshd drops some of more than 10 (MaxStartups), also where it is the way to all hosts (ProxyJump).
LOGINS_MOST = 8
LOOK_S = 0.05  # between looks at those that log in
# A host that vanishes is noticed after 9 s. TCP doubles its wait with each packet that is lost, so a connection may be silent for
# twice as long as its link was gone: 4 s do no harm.
ALIVE_INTERVAL_S, ALIVE_COUNT = 1, 8
CONNECTION_LOST = 255  # ssh's exit code where its connection fails
NO_FOLDER = 120  # the exit code of remote_command where the host's directory is not there
NOT_EXECUTABLE, NO_PROGRAM = 126, 127  # a shell's exit codes where it may not execute a program, or where none is there
FOR_SSH = ("HOME", "USER", "LOGNAME", "PATH", "SSH_AUTH_SOCK", "KRB5CCNAME", "TMPDIR")


def ssh_argv(host: Host) -> list[str]:
    """The ssh command that starts an agent on the host."""
    options = [
        *host.ssh_options,  # the user's options come first: ssh takes the first value of an option
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_S}",
        f"ServerAliveInterval={ALIVE_INTERVAL_S}",
        f"ServerAliveCountMax={ALIVE_COUNT}",
        "ClearAllForwardings=yes",
        "ControlMaster=no",  # a master left behind would hold our pipes
        "ControlPath=none",
        "RemoteCommand=none",
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
    """A path quoted for ssh's -o, so that ssh reads exactly this file.

    Without quotes ssh would split the path at blanks and replace %-tokens and the word none. In a wrong file, accept-new would
    accept any host key.
    """
    whole = str(Path(os.path.expanduser(path)).absolute())
    return '"' + whole.replace("\\", r"\\").replace('"', r"\"").replace("%", "%%") + '"'


def remote_command(host: Host, argv: Sequence[str]) -> str:
    """The command line for the host's shell that starts `argv` in the host's directory."""
    command = f"exec {' '.join(map(quote, argv))}"
    return command if host.directory is None else f"cd {quote(host.directory)} || exit {NO_FOLDER}; {command}"


def quote(word: str) -> str:
    """Quote a word for a shell; a leading ~/, or ~ alone, keeps its meaning in that shell."""
    if word in ("~", "~/"):
        return word
    return "~/" + shlex.quote(word[2:]) if word.startswith("~/") else shlex.quote(word)


def unreachable(hosts: Sequence[Host]) -> set[str]:
    """The names of the hosts that ssh cannot enter within ENTER_S. No login outlives the call, even if a signal ends that."""
    left, probes, failed = deque(hosts), list[tuple[Host, float, "subprocess.Popen[bytes]"]](), set[str]()
    try:
        while left or probes:
            while left and len(probes) < LOGINS_MOST:
                with explained("ssh to the hosts"), held_back():
                    host, end_s = left.popleft(), time.monotonic() + ENTER_S
                    probes.append((host, end_s, _login(host)))
            for one in list(probes):
                host, end_s, login = one
                if login.poll() is not None or time.monotonic() > end_s:
                    failed |= {host.name} if _end(login) != 0 else set()
                    probes.remove(one)
            time.sleep(LOOK_S)
    finally:
        for _, _, login in probes:
            _end(login)
    return failed


def _login(host: Host) -> "subprocess.Popen[bytes]":
    """Start an ssh client that enters the host and does nothing there."""
    return subprocess.Popen(
        [*ssh_argv(host)[:-1], "exit 0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment_for_ssh(),
        start_new_session=True,
    )


def _end(login: "subprocess.Popen[bytes]") -> int:
    """End the ssh client, if it still runs, with the client of its ProxyJump. Returns its return code."""
    if login.poll() is None:
        os.killpg(login.pid, signal.SIGKILL)
    return login.wait()


def environment_for_ssh() -> dict[str, str]:
    """The variables of this process that an ssh client needs."""
    return {name: os.environ[name] for name in FOR_SSH if name in os.environ}


def why_no_answer(host: Host, code: int) -> str:
    """Why none of nalb's programs has answered on a host, by the exit code of ssh."""
    if code == CONNECTION_LOST:
        return f"ssh to {host.address} failed"
    if code == NO_FOLDER:
        return f"{host.address} has no directory {host.directory!r}: correct `directory` in the hosts file"
    if code == NOT_EXECUTABLE:
        return f"the login at {host.address} may not execute {host.python!r}: allow it, or correct `python` in the hosts file"
    if code == NO_PROGRAM:
        return f"{host.address} has no program {host.python!r}: correct `python` in the hosts file"
    return f"{host.python!r} on {host.address} cannot run nalb: install it there, or correct `python` in the hosts file"


def ask(host: Host, argv: Sequence[str], limit_s: float) -> "subprocess.CompletedProcess[str]":
    """Run a command on a host by ssh to its end. Raises OSError without an ssh client, subprocess.TimeoutExpired."""
    return subprocess.run(
        [*ssh_argv(host)[:-1], remote_command(host, argv)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment_for_ssh(),
        timeout=limit_s,
    )


class RemoteProcess(LocalProcess):
    """An ssh client on this machine that stands for a process on a host."""

    is_here = False

    def __init__(self, spec: ProcessSpec, popen: "subprocess.Popen[bytes]", host: Host, relay: Relay | None = None):
        """relay: takes the frames for observers, where the process is the coordinator."""
        super().__init__(spec, popen)
        self._host, self._relay, self._parts = host, relay, b""
        self._has_order = self._is_ready = self._is_stopped = self._is_late = False
        self._begun_s, self._startup_s = time.monotonic(), startup_of(spec.environment)
        self._returncode: int | None = None

    def poll(self) -> Ending | None:
        """The ending of the process on the host, as its agent reported it, or the ending of the connection; None before both."""
        code = self.popen.poll()
        if code is None and not self._is_late and not self._is_ready and self._waited_s() > self._startup_s:
            self._is_late = True
            self.kill()
        if code is None or not self.is_read:  # the agent's report may still be in the pipe
            return None
        if self._returncode is not None:
            return ending_of(self._returncode)
        if self._is_late:
            address, limit_s = self._host.address, self._startup_s
            return Ending(
                1, f"did not start: no agent answers at {address} within {limit_s:g} s: does a login there hang?"
            )
        if self._is_ready:
            return Ending(CONNECTION_LOST, f"lost its ssh connection to {self._host.address}, or its agent there")
        return Ending(code or 1, f"did not start: {why_no_answer(self._host, code)}")

    def logs_in(self) -> bool:
        """Whether its ssh may still be at its login: the agent has not answered, and a login may take so long."""
        return not self._is_ready and self.popen.poll() is None and self._waited_s() < ENTER_S

    def _waited_s(self) -> float:
        return time.monotonic() - self._begun_s

    def stopped_at(self) -> int | None:
        """0 where the agent last reported that the process is stopped, else None; the agent reports no context switches."""
        return 0 if self._is_stopped else None

    def take_line(self, line: str) -> str | None:
        """Take a line of output as LocalProcess does, after removing an agent's report from it."""
        text, found, word = line.partition(REPORT)
        if not found:
            return super().take_line(line)
        with suppress(msgspec.MsgspecError):
            report = msgspec.json.decode(word, type=AgentReport)
            self._is_ready = self._is_ready or report.ready is not None
            self._is_stopped = self._is_stopped if report.stopped is None else report.stopped
            self._parts += report.part or b""
            if report.frame is not None and self._relay is not None:
                self._relay.relay(self._parts + report.frame)
                self._parts = b""
            if report.returncode is not None:
                self._returncode = report.returncode
                self.kill()  # ssh itself would wait for any process on the host that still holds the agent's output open
        return super().take_line(text) if text else None

    def give_order(self, order: AgentOrder) -> None:
        """Tell the agent what to start."""
        self.write_line(msgspec.json.encode(order))
        self._has_order = True

    def give_sign_of_life(self) -> None:
        """Tell the agent that the launcher lives. Before the agent has answered, the line might wait for the login's end."""
        if self._is_ready:
            self.write_line(b"")

    def send_frame(self, frame: bytes) -> None:
        """Send a frame to the coordinator's socket for observers."""
        self.write_line(base64.b64encode(frame))

    def write_line(self, line: bytes) -> None:
        """Write a line to the agent."""
        assert self.popen.stdin is not None
        with suppress(OSError, ValueError):  # the client has ended or its stdin is closed: poll reports that
            self.popen.stdin.write(line + b"\n")
            self.popen.stdin.flush()

    def ask_to_end(self) -> None:
        """Close the client's stdin; the agent then ends the process and reports its return code. Kill a client at its login."""
        assert self.popen.stdin is not None
        with suppress(OSError, ValueError):  # it is closed, or the kernel does not tell
            unread = not self._has_order or any(fcntl.ioctl(self.popen.stdin, termios.TIOCOUTQ, bytes(4)))
            if unread and not self._is_ready:
                self.kill()  # ssh has not read the order, as it does after the login: the host has no agent yet
        with suppress(OSError):
            self.popen.stdin.close()


class RemoteJob(Job):
    """A job on hosts: a Job whose processes are started by ssh, each with its sign of life."""

    lag_s = float(ALIVE_INTERVAL_S * (ALIVE_COUNT + 1))  # a connection that is held up for longer is lost
    term_grace_s = TERM_GRACE_S + KILL_GRACE_S  # an agent kills what has not ended, and says what it could not end

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        hosts: HostsFile,
        keys: Mapping[str, NodeKeys],  # by node; empty: the job is not encrypted
        relay: Relay | None = None,  # where the coordinator's observers are; None: nobody observes
        **more: Any,  # as Job's
    ):
        super().__init__(specs, lambda spec: list(spec.argv), {}, **more)
        self._hosts, self._keys, self._relay = hosts, keys, relay
        self._over = threading.Event()
        self._pulse = threading.Thread(target=self._give_signs_of_life, name="signs-of-life", daemon=True)

    def __enter__(self) -> "RemoteJob":
        with explained("the thread of the signs of life"):
            self._pulse.start()  # before the agents: each counts the launcher's silence from its own start
        try:
            super().__enter__()
        except BaseException:
            self._over.set()
            raise
        return self

    @held_back()
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._pulse.join()
        super().__exit__(kind, error, trace)

    def start(self, spec: ProcessSpec) -> RemoteProcess:
        """Start an ssh client and send the agent its order, once few others log in.

        Raises MachineError without an ssh client, and JobFailed where a process that was started before has failed.
        """
        self.check_failed()
        while sum(child.logs_in() for child in self.children if isinstance(child, RemoteProcess)) >= LOGINS_MOST:
            time.sleep(LOOK_S)
            self.check_failed()
        host = self._hosts.host(spec.node)
        environment = environment_for_ssh()
        keys = self._keys[spec.node].text() if self._keys else None
        relay = self._relay if spec.is_coordinator else None
        observers = None if relay is None else DECLARED["observers"].name
        order = AgentOrder(VERSION, self.id, spec.slug, list(spec.argv), spec.environment, keys, observers)
        try:
            with explained(f"ssh to {host.address}"), held_back():
                # An order has 100 bytes per host, and ssh reads it after the login. A socket takes 200 KB of it, a pipe 64 KiB,
                # or 8 KiB once the user has many pipes.
                ours, theirs = socket.socketpair()
                with ours, theirs:
                    popen = subprocess.Popen(
                        ssh_argv(host),
                        env=environment | mark(self.id, f"{spec.slug}.ssh"),
                        stdin=theirs.fileno(),
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        preexec_fn=die_with_parent(os.getpid()),
                    )
                    popen.stdin = ours.makefile("wb")
                process = RemoteProcess(spec, popen, host, relay)
                self.children.append(process)  # before a signal ends the job
        except OSError as error:
            raise MachineError(f"cannot start ssh ({error.strerror}): install the OpenSSH client") from None
        process.give_order(order)
        if relay is not None:
            relay.connect(process.send_frame)
        return process

    def _give_signs_of_life(self) -> None:
        while not self._over.wait(SIGN_OF_LIFE_S):
            for child in list(self.children):  # a copy, since the main thread may append to the list meanwhile
                assert isinstance(child, RemoteProcess)
                child.give_sign_of_life()
