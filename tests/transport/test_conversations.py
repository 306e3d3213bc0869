"""Both ends of a control connection over real sockets, with a way between them that breaks connections and swallows bytes."""

import random
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import zmq

from nalb.protocol import wire
from nalb.services import composition
from nalb.services.exchange import messages as m
from nalb.settings import for_agents
from nalb.transport import server
from nalb.transport.client import Client, Drained
from nalb.transport.conversations import Connection, Conversations, bound
from nalb.transport.server import CoordinatorThread

pytestmark = pytest.mark.jobs

LIMIT_S = 30.0
MESSAGES = 300


def no_samples() -> Drained:
    """What a process has that moves nothing."""
    return Drained([])


class Way:
    """Carries TCP connections to a port; a reset breaks all of them with what they carry."""

    def __init__(self, port: int):
        self._port = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self._ends: dict[socket.socket, socket.socket] = {}
        self._stuck: set[socket.socket] = set()
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """As a firewall that is loaded anew."""
        with self._lock:
            for one in self._ends:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a RST, no FIN
                one.close()
            self._ends.clear()

    def swallow(self) -> None:
        """From here on the present connections carry nothing, and do not say so."""
        with self._lock:
            self._stuck |= self._ends.keys()

    def swallow_answers(self) -> None:
        """From here on the present connections carry nothing that comes from the port."""
        with self._lock:
            self._stuck |= {one for one in self._ends if one.getpeername()[1] == self._port}

    def close(self) -> None:
        """End it."""
        self._is_over.set()
        self._thread.join()
        self.reset()
        self._door.close()

    def _carry(self) -> None:
        while not self._is_over.is_set():
            with self._lock:
                ready = select.select([self._door, *self._ends.keys() - self._stuck], [], [], 0)[0]
                for one in ready:
                    if one is self._door:
                        near, far = self._door.accept()[0], socket.create_connection(("127.0.0.1", self._port))
                        self._ends |= {near: far, far: near}
                    else:
                        with suppress(OSError):
                            self._ends[one].sendall(one.recv(65536))
            time.sleep(0.0005)


@contextmanager
def coordinator(heard: list[wire.Message], stop: threading.Event) -> Iterator[int]:
    """Answers each Collected by a Collect of the same number, and gives signs of life; yields its port."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        router.setsockopt(zmq.LINGER, 0)
        bound(router, 2.0)
        talks = Conversations(router)
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def serve() -> None:
            identity = b""
            while not stop.is_set():
                if router.poll(50):
                    identity, *frames = router.recv_multipart()
                    if frame := talks.opened(identity, frames):
                        heard.append(composition.decode_at_coordinator(frame, "n1"))
                        if isinstance(last := heard[-1], m.Collected):
                            answer = m.Collect(last.iteration)
                            talks.send(identity, answer, zmq.Frame(wire.encode(answer)))
                elif identity:
                    talks.send(identity, wire.Alive(), zmq.Frame(wire.encode(wire.Alive())))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield port
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("fault", ["reset", "swallow"])
def test_nothing_is_lost_doubled_or_overtaken_whatever_becomes_of_connections(fault: str) -> None:
    generator = random.Random(7)
    heard: list[wire.Message] = []
    told: list[int] = []
    stop = threading.Event()
    with coordinator(heard, stop) as port, zmq.Context() as context:
        way = Way(port)

        def connect() -> "zmq.Socket[bytes]":
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.IDENTITY, b"worker-n1")
            dealer.setsockopt(zmq.LINGER, 0)
            bound(dealer, 2.0)
            dealer.connect(f"tcp://127.0.0.1:{way.port}")
            return dealer

        connection = Connection(connect)
        faults = sorted(generator.sample(range(MESSAGES), 6))
        begun_s = time.monotonic()
        said = 0
        while len(told) < MESSAGES and time.monotonic() - begun_s < LIMIT_S:
            if said < MESSAGES:
                connection.say(m.Collected(said))
                said += 1
                if said in faults:
                    getattr(way, fault)()
            else:
                connection.say(wire.Report(0.0, -1, [], 0), is_kept=False)
                time.sleep(0.05)
            told += [one.iteration for one in connection.hear(time.monotonic()) if isinstance(one, m.Collect)]
            if time.monotonic() - connection.heard_s > 0.5:
                connection.make_anew(time.monotonic())
            time.sleep(0.002)
        connection.socket.close()
        stop.set()
        way.close()
    assert told == list(range(MESSAGES))
    assert [one.iteration for one in heard if isinstance(one, m.Collected)] == list(range(MESSAGES))


def test_the_coordinator_stays_until_all_workers_know_that_all_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of one is reset while Farewell is on it."""
    monkeypatch.setattr(server, "FAREWELL_S", 10 * LIMIT_S)
    settings = for_agents(
        {"NALB_DEADLINE_S": "1000"}, node="n0", endpoint="tcp://127.0.0.1:0", size=2, role="scheduler"
    )
    with CoordinatorThread(settings) as served:
        way = Way(served.port)
        ports = served.port, way.port
        near, far = (
            Client(
                f"tcp://127.0.0.1:{port}",
                wire.Hello(wire.VERSION, "agent", f"n{rank}", rank, 1),
                no_samples,
                60.0,
                60.0,
            )
            for rank, port in enumerate(ports)
        )
        for one in (near, far):
            one.wait_for(wire.Welcome)
        way.swallow_answers()
        for one in (near, far):
            one.send(wire.Goodbye())
        near.wait_for(wire.Farewell)
        near.close()
        waiting = threading.Thread(target=served.wait, daemon=True)
        waiting.start()
        waiting.join(1.0)
        assert waiting.is_alive(), "the far one has not heard it"
        way.reset()
        far.wait_for(wire.Farewell)
        far.close()
        waiting.join(LIMIT_S)
        assert not waiting.is_alive()
        way.close()
