"""While a job gathers: a coordinator's host that no longer answers ends the process, one that is slow or still to come does not."""

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from nalb.errors import InputError
from nalb.failures import Cause, Phase
from nalb.settings import from_environment
from nalb.transport import reachability as module
from nalb.transport.reachability import Reachability, answers
from nalb.transport.tcp_info import Address, TcpConnection, Ways
from netem import qdiscs, rootless
from netem.emulation import Emulation, network_up
from netem.namespaces import hub_namespace
from netem.network_file import parse_network
from netem.wires import port_name
from tests.failures import AS_LAUNCHED, told_in, who

pytestmark = pytest.mark.jobs

# the host's answers, one after the other, then the process is let go
WATCH = """
import sys, threading
from nalb.transport import reachability
from nalb.transport.reachability import Answer
from nalb.settings import from_environment
left = [{"1": Answer.ACCEPTED, "-": Answer.REFUSED, "0": Answer.NONE}[word] for word in sys.argv[2]]
over = threading.Event()
def knock(peer, limit_s):
    if len(left) == 1:
        over.set()
    return left.pop(0) if left else Answer.ACCEPTED
reachability.knock = knock
environment = {"DMLC_ROLE": "server", "DMLC_PS_ROOT_URI": "192.0.2.1", "DMLC_PS_ROOT_PORT": "9091", "NALB_NODE": "n1",
               "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1", "NALB_DEADLINE_S": "0.5", "NALB_STARTUP_S": sys.argv[3]}
if sys.argv[1] == "together":
    environment |= {"NALB_JOB": "x:n1.server", "NALB_ADDRESSES": "192.0.2.1,192.0.2.2"}
with reachability.reach_kept(from_environment(environment, "n1")):
    over.wait()
"""


@pytest.mark.parametrize(
    ("how", "heard", "startup_s", "cause"),
    [
        ("together", "1" + "0" * 50, "60", Cause.UNREACHABLE),  # the link is lost
        ("together", "0" * 50, "60", Cause.UNREACHABLE),  # or was never there
        ("apart", "0" * 15, "60", None),  # another launcher may start it later
        ("apart", "-" * 15, "60", None),  # or its coordinator
        ("apart", "0" * 50, "1", Cause.NO_COORDINATOR),  # but not for ever
        ("apart", "-" * 50, "1", Cause.NO_COORDINATOR),
        ("apart", "0001" + "0" * 50, "60", Cause.UNREACHABLE),
        ("apart", "--1" + "-" * 50, "60", Cause.NO_COORDINATOR),  # it was there, and has ended
        ("together", "1010101", "60", None),  # now and then is enough
    ],
)
def test_a_host_that_no_longer_answers(how: str, heard: str, startup_s: str, cause: Cause | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCH, how, heard, startup_s],
        env=AS_LAUNCHED,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == (0 if cause is None else 4), done.stderr
    if cause is not None:
        told = told_in(done.stderr)
        assert (told.cause, who(told), told.phase) == (cause, ("server", "n1"), Phase.START)


def test_a_closed_port_is_an_answer() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        assert answers(door.getsockname(), 5.0)
        door.listen()
        assert answers(door.getsockname(), 5.0)


def test_a_name_that_nobody_knows_is_none() -> None:
    assert not answers(("nowhere.invalid", 9092), 5.0)


SETTINGS = from_environment(
    {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "192.0.2.1", "DMLC_PS_ROOT_PORT": "9091", "DMLC_NUM_WORKER": "2",
     "DMLC_NUM_SERVER": "2", "NALB_DEADLINE_S": "10"}, "n1",
)  # fmt: skip


def test_names_are_no_addresses() -> None:
    environment = {"DMLC_PS_ROOT_URI": "n0", "DMLC_PS_ROOT_PORT": "9091", "NALB_ADDRESSES": "10.0.0.1,n1"}
    with pytest.raises(InputError, match=r"^environment variable NALB_ADDRESSES: 'n1' does not .*: give the nodes' IP"):
        from_environment(environment | {"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1"}, "n1")


B, C = ("192.0.2.2", 4000), ("192.0.2.3", 4000)


def test_a_peer_that_neither_acknowledges_nor_answers_is_lost() -> None:
    reach = Reachability(SETTINGS, pytest.fail)
    reach.close()

    def look(now_s: float, waiting_s: dict[Address, float], heard: set[Address]) -> str | None:
        return reach.lost([TcpConnection(peer, 3, waited_s, 1) for peer, waited_s in waiting_s.items()], heard, now_s)

    assert look(10.0, {B: 1.0, C: 1.0}, {C}) is None  # B since 9; C is there: its packets were lost, or wait
    assert look(14.0, {B: 3.0, C: 6.0}, {C}) is None
    assert look(16.0, {B: 6.0, C: 6.0}, set()) is not None  # of B, in doubt for 7 s
    assert look(17.0, {C: 1.0}, set()) is None  # B is back
    assert look(18.0, {B: 0.7}, set()) is None  # and is in doubt anew
    assert reach.lost([TcpConnection(C, 1, 9.0, 1)], set(), 30.0) is None  # one packet may be lost
    assert look(40.0, {C: 20.0}, {C}) is None  # TCP may be about to repeat what an outage has lost
    assert look(46.0, {C: 25.4}, {C}) is not None


def test_far_nodes_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = (
        TcpConnection(("192.0.2.2", 4000), 0, 0.0, 5, 0.001),
        TcpConnection(("192.0.2.3", 4000), 0, 0.0, 7, 0.08),
    )
    store, coordinator = (
        TcpConnection(("198.51.100.1", 443), 0, 0.0, 9, 0.2),
        TcpConnection(("192.0.2.1", 9092), 0, 0.0, 9, 0.2),
    )
    paced: list[TcpConnection] = []

    def connections(is_far: Callable[[TcpConnection], bool]) -> list[TcpConnection]:
        paced[:] = [one for one in (near, far, store, coordinator) if is_far(one)]
        return [near, far, store, coordinator]

    monkeypatch.setattr(module, "connections", connections)
    ours = replace(SETTINGS, addresses=frozenset({"192.0.2.1", "192.0.2.2", "192.0.2.3"}))
    noted: list[Ways] = []
    reach = Reachability(ours, pytest.fail, noted.append)
    reach.close()
    assert reach.look() is None
    assert noted == [Ways(12, 0.08)]
    assert paced == [far]
    far = far._replace(is_bbr=True)
    assert reach.look() is None
    assert noted[1:] == [Ways(12, 0.08, is_bbr=True)]
    alone = Reachability(replace(ours, is_stock=True), pytest.fail)
    alone.close()
    alone.look()
    assert paced == []  # MXNet's own stays as it is


def test_what_is_queued_for_whoever_made_a_connection_is_under_way() -> None:
    """Agents answer over connections that others made."""
    noted: list[Ways] = []
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()):
        taken, (host, _) = door.accept()
        with taken:
            taken.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    taken.send(bytes(100_000))
            reach = Reachability(replace(SETTINGS, addresses=frozenset({host})), pytest.fail, noted.append)
            reach.close()
            assert reach.look() is None
    assert noted[-1].queued_bytes > 0


def test_what_is_queued_for_a_peer_in_doubt_is_not_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_ = TcpConnection(("192.0.2.2", 4000), 3, 2.0, 70, is_accepted=True)
    monkeypatch.setattr(module, "connections", lambda _: [answers_, answers_._replace(repeated=0, queued_bytes=5)])
    noted: list[Ways] = []
    reach = Reachability(replace(SETTINGS, addresses=frozenset({"192.0.2.2"})), pytest.fail, noted.append)
    reach.close()
    assert reach.look() is None
    assert noted[-1].queued_bytes == 5


def test_the_watch_goes_on_where_it_could_not_look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, said, has_failed = replace(SETTINGS, deadline_s=0.1), [], threading.Event()
    faults = [OSError(errno.EMFILE, "no file left"), RuntimeError("no thread left"), ValueError("a mistake of ours")]
    monkeypatch.setattr(module, "connections", lambda *_: (one for one in ()).throw(faults.pop(0)))
    Reachability(settings, lambda why: (said.append(why), has_failed.set()))
    assert has_failed.wait(60.0)
    assert [(failure.cause, who(failure)) for failure in said] == [(Cause.PROCESS, ("worker", "n1"))]


def test_where_no_file_is_left_nothing_is_known_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "no file left")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert answers(B, 5.0)


def test_hosts_are_asked_while_the_interpreter_ends() -> None:
    """The store waits there for its last exchange."""
    code = "import atexit; from nalb.transport.reachability import answering; here = ('127.0.0.1', 1)\n"
    code += "atexit.register(lambda: print(answering({here}, 5.0) == {here}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


SENDER = """
import os, socket, sys, time
from nalb.process.last_words import die
from nalb.transport.reachability import Reachability
from nalb.settings import from_environment
from nalb.transport.tcp_info import connections
made, outside = (socket.create_connection((host, 7000)) for host in sys.argv[1:])
os.environ.update(DMLC_ROLE="worker", DMLC_PS_ROOT_URI=sys.argv[1], DMLC_PS_ROOT_PORT="9091", DMLC_NUM_WORKER="2",
                  DMLC_NUM_SERVER="2", NALB_DEADLINE_S="2", NALB_ADDRESSES=",".join([sys.argv[1], made.getsockname()[0]]))
Reachability(from_environment(os.environ, "b"), die)
print("up", flush=True)
sys.stdin.readline()
outside.sendall(b"x")
# Over three times the silence that the job's own nodes are allowed.
while not any(connection.waiting_s > 4.0 for connection in connections()):
    time.sleep(0.1)
print("outlived", flush=True)
sys.stdin.readline()
while True:
    made.sendall(b"x" * 1000)
    made.recv(1)  # waits for ever, as ps-lite does
"""
READER = "import socket\ndoor = socket.create_server(('', 7000))\nprint('up', flush=True)\none, _ = door.accept()\n"
READER += "while one.recv(1000):\n    one.sendall(b'y')\n"


def lose_beyond(emulation: Emulation, node: str) -> None:
    """Both ends still have their carrier."""
    network = emulation.network
    link = ["ip", "-n", hub_namespace(network.name), "link", "set", port_name(network, node), "nomaster"]
    subprocess.run(link, check=True)


def lose_by_route(emulation: Emulation, node: str) -> None:
    """The sender's own kernel refuses its packets, so none is under way."""
    route = ["ip", "-n", emulation.namespace("b"), "route", "add", "blackhole", f"{emulation.address(node)}/32"]
    subprocess.run(route, check=True)


@pytest.mark.root
@pytest.mark.parametrize("lose", [lose_beyond, lose_by_route])
def test_a_way_that_is_lost(lose: Callable[[Emulation, str], None]) -> None:
    """A host that is no node of the job, c, may be lost; a node may not."""
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces and tc")
    qdiscs.require(("tbf", "htb", "bfifo"))
    defaults = "[defaults]\nup_mbps = 100\ndown_mbps = 100\n"
    text = f'name = "r{os.getpid() % 10**6}"\n{defaults}' + "".join(f'[[nodes]]\nname = "{one}"\n' for one in "abc")
    with network_up(parse_network(text, "n.toml")) as emulation, ExitStack() as stack:

        def start(node: str, code: str, *words: str) -> "subprocess.Popen[str]":
            argv = emulation.command(node, [sys.executable, "-c", code, *words])
            process = subprocess.Popen(
                argv,
                env=AS_LAUNCHED,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            return process

        def send_on() -> None:
            assert sender.stdin is not None
            sender.stdin.write("lost\n")
            sender.stdin.flush()

        start("a", READER)
        start("c", READER)
        sender = start("b", SENDER, emulation.address("a"), emulation.address("c"))
        lose(emulation, "c")
        send_on()
        assert sender.stdout is not None
        assert sender.stdout.readline() == "outlived\n"
        lose(emulation, "a")
        send_on()
        said, _ = sender.communicate(timeout=60)
    assert sender.returncode == 4
    told = told_in(said)
    assert (told.cause, who(told)) == (Cause.UNREACHABLE, ("worker", "b"))
