"""Logins that hang, are refused or interrupted: a real ssh client before hosts that take its connection and say nothing."""

import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from nalb.errors import JobError
from nalb.failures import JobFailed
from nalb.launch import ssh
from nalb.launch.hosts import Host, HostsFile, load_hosts
from nalb.launch.roles import ProcessSpec
from nalb.launch.signals import ending_on_signals
from nalb.launch.ssh import LOGINS_MOST, RemoteJob, RemoteProcess, unreachable
from tests.failures import who
from tests.launch.conftest import END_LIMIT_S

pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="no OpenSSH client")

HOSTS = 2 * LOGINS_MOST
LIMIT_S = 60.0
FOREVER = f"ConnectTimeout={LIMIT_S:.0f}"
KILLED = -signal.SIGKILL  # ssh that gives a login up by itself ends with 255


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port of loopback behind which nobody speaks."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * HOSTS) as listener:
        listener.settimeout(LIMIT_S)
        yield listener


def hosts_at(folder: Path, doors: list[socket.socket], *options: str) -> HostsFile:
    """Hosts h0, h1, ..., each behind the port of a socket. options: for ssh."""
    text = ""
    for index, door in enumerate(doors):
        all_options = ["HostName=127.0.0.1", f"Port={door.getsockname()[1]}", *options]
        text += f"[[hosts]]\nname = 'h{index}'\naddress = '10.9.0.{index}'\nssh_options = {all_options}\n"
    (folder / "hosts.toml").write_text(text)
    return load_hosts(folder / "hosts.toml")


def job_on(hosts: HostsFile, folder: Path, **environment: str) -> RemoteJob:
    """A job with a worker on each host."""
    workers = [
        ProcessSpec(host.name, "worker", ("true",), {"DMLC_ROLE": "worker"} | environment) for host in hosts.hosts
    ]
    return RemoteJob(workers, hosts, {}, log_dir=folder / "logs")


@contextmanager
def interrupted(silent: socket.socket) -> Iterator[None]:
    """Ctrl-C, once as many log in as may do so at once. It ends them all; who is still there after END_LIMIT_S is let go."""
    logins: list[socket.socket] = []
    gone: list[socket.socket] = []

    def interrupt() -> None:
        with ExitStack() as stack:
            while len(logins) < LOGINS_MOST:
                logins.append(stack.enter_context(silent.accept()[0]))
            os.kill(os.getpid(), signal.SIGINT)
            for login in logins:
                login.settimeout(END_LIMIT_S)
                with suppress(TimeoutError):
                    while login.recv(4096):
                        pass
                    gone.append(login)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(JobError, match="ended by SIGINT"), ending_on_signals():
            yield
    finally:
        thread.join()
    assert gone == logins
    silent.setblocking(False)
    with pytest.raises(BlockingIOError):  # nobody else has tried to log in
        silent.accept()


def test_a_refused_login_ends_the_start_though_others_hang(
    tmp_path: Path, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteJob, "term_grace_s", LIMIT_S)  # the logins do not end by themselves in this time
    with socket.socket() as refused:
        refused.bind(("127.0.0.1", 0))
        job = job_on(hosts_at(tmp_path, [silent, refused, *[silent] * (HOSTS - 2)]), tmp_path)
        with pytest.raises(JobFailed, match="Connection refused") as caught, job:
            job.wait()
    assert who(caught.value.failure) == ("worker", "h1")
    assert len(job.children) < HOSTS
    codes = [child.popen.returncode for child in job.children]
    assert codes == [255 if index == 1 else KILLED for index in range(len(codes))]


def test_ctrl_c_ends_the_logins_of_a_start(
    tmp_path: Path, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteJob, "term_grace_s", LIMIT_S)
    with interrupted(silent), job_on(hosts_at(tmp_path, [silent] * HOSTS, FOREVER), tmp_path) as job:
        job.wait()


def test_ctrl_c_while_a_client_is_started_ends_it_too(
    tmp_path: Path, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemoteJob, "term_grace_s", LIMIT_S)

    def interrupted_argv(host: Host) -> list[str]:
        os.kill(os.getpid(), signal.SIGINT)
        return argv(host)

    argv = ssh.ssh_argv
    monkeypatch.setattr(ssh, "ssh_argv", interrupted_argv)
    job = job_on(hosts_at(tmp_path, [silent], FOREVER), tmp_path)
    with pytest.raises(JobError, match="ended by SIGINT"), ending_on_signals(), job:
        pass
    assert [child.popen.returncode for child in job.children] == [KILLED]


def test_ctrl_c_ends_the_logins_of_a_probe(
    tmp_path: Path, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "ENTER_S", LIMIT_S)
    with interrupted(silent):
        unreachable(hosts_at(tmp_path, [silent] * HOSTS, FOREVER).hosts)


def test_an_order_is_longer_than_a_pipe_and_its_host_hangs_at_the_login(tmp_path: Path, silent: socket.socket) -> None:
    """The keys of 1,000 hosts have 100 KB. Neither the order nor the signs of life wait for the login."""
    with job_on(hosts_at(tmp_path, [silent] * 3), tmp_path, NAME="x" * 150_000) as job:
        first = job.children[0]
        assert isinstance(first, RemoteProcess)
        for _ in range(1000):
            first.give_sign_of_life()
    assert [child.popen.returncode for child in job.children] == [KILLED] * 3
