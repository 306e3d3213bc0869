"""A process's end of the control plane."""

import subprocess
import sys
import threading

import pytest
import zmq

from nalb.failures import Cause, Failure, Phase
from nalb.protocol import wire
from nalb.services import composition
from nalb.services.exchange import messages as m
from nalb.transport.client import Client, Drained
from tests.failures import AS_LAUNCHED, told_in, when, who

pytestmark = pytest.mark.jobs


def test_the_thread_may_end_before_its_last_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat may find the client closing before `close` wakes the thread: then nobody is there to be woken."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as coordinator:
        port = coordinator.bind_to_random_port("tcp://127.0.0.1")
        hello = wire.Hello(version=wire.VERSION, role="worker", node="n0", rank=0, pid=1)
        client = Client(f"tcp://127.0.0.1:{port}", hello, lambda: Drained([]), silence_s=60.0, startup_s=60.0)
        wake = client._wake

        def wake_late() -> None:
            client._thread.join()
            while client._wake_out.poll(0, zmq.POLLOUT):  # its end of the pair is closed in the background
                pass
            wake()

        monkeypatch.setattr(client, "_wake", wake_late)
        closing = threading.Thread(
            target=client.close,
            args=(wire.Failed(Failure(cause=Cause.SCRIPT, detail="a trace of \udcff" * 1000)),),
            daemon=True,
        )
        closing.start()
        closing.join(5.0)
        assert not closing.is_alive()
        kinds = [type(composition.decode_at_coordinator(coordinator.recv_multipart()[2], "a worker")) for _ in range(2)]
        assert kinds == [wire.Hello, wire.Failed]  # as much of the trace as a message may carry
        monkeypatch.undo()
        client.send(wire.Goodbye())  # too late, and harmless


def test_what_is_noted_is_told_in_order_with_what_is_sent() -> None:
    """Though a thread that is behind takes all of it at once: a report that goes before a message is of its time."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as coordinator:
        port = coordinator.bind_to_random_port("tcp://127.0.0.1")
        hello = wire.Hello(version=wire.VERSION, role="worker", node="n0", rank=0, pid=1)
        client = Client(f"tcp://127.0.0.1:{port}", hello, lambda: Drained([]), silence_s=60.0, startup_s=60.0)
        client.note(exchanging=4, calls=7)
        client.send(m.Collected(4))
        client.note(exchanging=-1)
        client.send(m.Collected(5))
        client.close()
        said: list[wire.Message] = []
        while coordinator.poll(1000) and m.Collected(5) not in said:
            said.append(composition.decode_at_coordinator(coordinator.recv_multipart()[2], "a worker"))
        before = [said[said.index(m.Collected(number)) - 1] for number in (4, 5)]
        assert [(one.exchanging, one.calls) for one in before if isinstance(one, wire.Report)] == [(4, 7), (-1, 7)]


# a coordinator that welcomes a worker and then is silent on its connection, as after an outage; sys.argv: whether it hears others
HALF = """
import os, sys, zmq
from nalb.failures import Cause, Failure
from nalb.protocol import wire
from nalb.services import composition
from nalb.services.exchange import messages as m
from nalb.transport.client import Client, Drained
from nalb.transport.conversations import Conversations
context = zmq.Context()
router = context.socket(zmq.ROUTER)
router.setsockopt(zmq.ROUTER_HANDOVER, 1)
talks = Conversations(router)
port = router.bind_to_random_port("tcp://127.0.0.1")
client = Client(f"tcp://127.0.0.1:{port}", wire.Hello(wire.VERSION, "worker", "n1", 0, 1), lambda: Drained([]), 60.0, 60.0)
first, *said = router.recv_multipart()
assert isinstance(composition.decode_at_coordinator(talks.opened(first, said), "n1"), wire.Hello)
def tell(message):
    talks.send(first, message, zmq.Frame(wire.encode(message)))
tell(wire.Welcome(wire.VERSION, "job", ["n1"], 0.05, 2.0, 1))
signs = 0
while signs < 12:  # one every third of a second: for longer than the silence that is allowed
    identity, *frames = router.recv_multipart()
    if len(frames) == 1 and sys.argv[1] == "hears":  # no envelope: it is no message of the first connection
        assert composition.decode_at_coordinator(frames[0], "n1") == wire.Still(first.decode())
        signs += 1
        router.send_multipart([identity, wire.encode(wire.Alive())])
tell(wire.Abort(Failure(cause=Cause.SILENT, detail="as the test ends")))
client.wait_for(m.Setup)
"""

# as HALF, but what connects the two loses all connections once both are in use, and takes new ones
STUCK = (
    """
import select, socket, threading
door, ways, lost = socket.create_server(("127.0.0.1", 0)), {}, set()
def carry(port):
    while True:
        for one in select.select([door, *(way for way in ways if way not in lost)], [], [], 0.05)[0]:
            if one is door:
                near, far = door.accept()[0], socket.create_connection(("127.0.0.1", port))
                ways.update({near: far, far: near})
            elif one not in lost:
                said = one.recv(65536)
                ways[one].sendall(said) if said else lost.add(one)
"""
    + HALF.partition("signs = 0")[0].replace(
        "client =",
        "threading.Thread(target=carry, args=(port,), daemon=True).start()\nport = door.getsockname()[1]\nclient =",
    )
    + """
used = {first}
while len(used) < 2:
    used.add(router.recv_multipart()[0])
lost.update(ways)
signs = 0
while signs < 12:
    identity = router.recv_multipart()[0]
    if identity != first:
        router.send_multipart([identity, wire.encode(wire.Alive())])
        signs += identity not in used
print("made anew", flush=True)
os._exit(0)
"""
)

# as HALF, but the coordinator is killed before all have come, and another one listens at its place
REPLACED = (
    HALF.partition("tell(wire.Welcome")[0]
    + """
for _ in range(10):
    tell(wire.Alive())
    router.recv_multipart()
context.destroy(linger=0)
context = zmq.Context()
router = context.socket(zmq.ROUTER)
router.setsockopt(zmq.ROUTER_HANDOVER, 1)
router.bind(f"tcp://127.0.0.1:{port}")
talks = Conversations(router)
while True:
    identity, *frames = router.recv_multipart()
    talks.opened(identity, frames)
    talks.forget(identity)
"""
)


def test_another_coordinator_at_the_place_of_the_jobs_own():
    done = subprocess.run(
        [sys.executable, "-c", REPLACED], env=AS_LAUNCHED, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 4, done.stderr
    told = told_in(done.stderr)
    assert (told.cause, who(told)) == (Cause.NO_COORDINATOR, ("worker", "n1"))
    assert "listens at its place" in told.detail


def test_signs_of_life_are_sent_anew_where_all_connections_are_stuck():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("made anew\n", "")


def test_the_longest_deadline_has_signs_of_life_too():
    script = HALF.partition("signs = 0")[0].replace("0.05, 2.0", "60.0, 51840.0")  # of NALB_DEADLINE_S=86400
    script += "client.wait_for(wire.Welcome)\nclient.close(wire.Goodbye())\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("how", "cause"), [("hears", Cause.SILENT), ("is deaf", Cause.NO_COORDINATOR)])
def test_signs_of_life_find_another_way_while_the_connection_is_silent(how, cause):
    done = subprocess.run(
        [sys.executable, "-c", HALF, how], env=AS_LAUNCHED, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 4, done.stderr
    assert told_in(done.stderr).cause is cause


def test_a_coordinator_that_never_comes_is_told_however_many_reports_wait():
    script = (
        "from nalb.protocol import wire\nfrom nalb.transport.client import Client, Drained\n"
        "hello = wire.Hello(wire.VERSION, 'worker', 'n1', 0, 1)\n"
        "client = Client('tcp://127.0.0.1:9', hello, lambda: Drained([]), 60.0, 4.0)\n"
        "client._heartbeat_s = 0.0001  # more than libzmq's thousand\n"
        "client.wait_for(wire.Welcome)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=AS_LAUNCHED, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 4, done.stderr
    told = told_in(done.stderr)
    assert (told.cause, who(told), when(told)) == (Cause.NO_COORDINATOR, ("worker", "n1"), (Phase.START, None))


@pytest.mark.parametrize("stream", ["None", "open(__file__)", "object()"])
def test_a_process_ends_whatever_the_script_has_made_of_its_output(tmp_path, stream):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom nalb.failures import Cause, Failure\nfrom nalb.process.last_words import die\n"
        f"sys.stdout = sys.stderr = one = {stream}\n"
        "getattr(one, 'close', int)()\ndie(Failure(cause=Cause.PROCESS, detail='a test'))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 4, done.stderr
