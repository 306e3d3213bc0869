"""Measures how fast a coordinator with many clients answers a round: python benchmarks/coordinator.py [--clients 1000] [--agents]

The real coordinator runs in a process of its own. All clients run in another process, each with a socket of its own, and send
the real messages. In a round every process sends a Report with samples, every worker sends its Done, and every worker gets
the next Plan. A round's time runs from the first message sent to the last plan received, and so includes the time of the
clients' Python. The coordinator's own processor time is printed beside it. With --agents the clients are those of PyTorch's plane,
each worker and server in one.
"""

import argparse
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import psutil
import zmq

from kvstore_patch.keys.plane import PS_LITE
from nalb.launch.ports import free_pair
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.protocol import wire
from nalb.protocol.session import Session, pack, unpack
from nalb.services import composition
from nalb.services.exchange import messages as m
from nalb.services.exchange.planes import AGENTS, Plane
from nalb.settings import Settings
from nalb.transport.server import CoordinatorThread
from nalb.workloads import load

GOAL_MS = 100
PAUSE_S = 0.5  # the pause between rounds, in which slices would travel and the coordinator writes its events
SAMPLE_BYTES = 50_000
WARM_UP = 2  # rounds that do not count: equal shares until all are measured, then the first plan that moves load
STARTUP_S = 300.0


def settings_for(endpoint: str, nodes: int, scheme: str, samples_path: str | None = None) -> Settings:
    """The settings of a job of this many nodes, each with a worker and a server."""
    return Settings(
        role="scheduler", node="host", endpoint=endpoint, num_workers=nodes, num_servers=nodes, scheme=scheme,
        alpha_bytes=FIRST_ALPHA_BYTES, deadline_s=STARTUP_S, startup_s=STARTUP_S, samples_path=samples_path,
    )  # fmt: skip


def serve(settings: Settings, plane: Plane, pipe: Connection) -> None:
    """Run the coordinator in this process until the pipe says to end."""
    with CoordinatorThread(settings, plane=plane):
        pipe.send("ready")
        pipe.recv()


class Clients:
    """All processes of a job, each a socket of this process."""

    def __init__(self, endpoint: str, nodes: int, are_agents: bool):
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * nodes + 10)
        self._sessions: dict[zmq.Socket[bytes], Session[bytes]] = {}
        self.servers = [] if are_agents else [self._join(endpoint, "server", k) for k in range(nodes)]
        self.workers = [self._join(endpoint, "agent" if are_agents else "worker", k) for k in range(nodes)]
        self.received_bytes = 0
        self._told: dict[bytes, bytes] = {}  # the answer to this round's Collect, by the Collect's frame

    def _join(self, endpoint: str, role: str, number: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IDENTITY, f"{role}-{number}".encode())
        socket.connect(endpoint)
        self._sessions[socket] = Session()
        self._say(socket, wire.encode(wire.Hello(wire.VERSION, role, f"n{number}", number, 1000 + number)))
        return socket

    def _say(self, socket: "zmq.Socket[bytes]", frame: bytes) -> None:
        socket.send_multipart([pack(self._sessions[socket].keep(frame)), frame])

    def _hear(self, socket: "zmq.Socket[bytes]") -> bytes:
        """Receive a message; it is empty if only a sign of life came."""
        envelope, frame = socket.recv_multipart()
        self._sessions[socket].accept(unpack(envelope))
        return frame

    def await_message(self, socket: "zmq.Socket[bytes]", tag: bytes) -> bytes:
        """Receive until a message of the kind `tag` comes, and return it."""
        while (frame := self._take(socket)) is None or tag not in frame[:32]:
            pass
        return frame

    def await_plans(self) -> None:
        """Wait until every worker has its next plan."""
        poller = zmq.Poller()
        for socket in self.servers + self.workers:
            poller.register(socket, zmq.POLLIN)
        left = len(self.workers)
        while left:
            for socket, _ in poller.poll():
                frame = self._take(socket)
                if frame is not None and b"Plan" in frame[:32]:
                    poller.unregister(socket)
                    left -= 1

    def _take(self, socket: "zmq.Socket[bytes]") -> bytes | None:
        """Receive a message and return it, or answer it and return None.

        The answer to PrepareSlots says that the slots exist, and the answer to Collect that all samples are sent. An Abort ends the
        benchmark.
        """
        frame = self._hear(socket)
        self.received_bytes += len(frame)
        if b"PrepareSlots" in frame[:32]:
            wanted = composition.decode_at_client(frame)
            assert isinstance(wanted, m.PrepareSlots)
            self._say(socket, wire.encode(m.SlotsReady(wanted.iteration, wanted.layout_version)))
            return None
        if b"Collect" in frame[:32]:
            if frame not in self._told:  # the answer is the same for all servers
                asked = composition.decode_at_client(frame)
                assert isinstance(asked, m.Collect)
                self._told = {frame: wire.encode(m.Collected(asked.iteration))}
            self._say(socket, self._told[frame])
            return None
        if b"Abort" in frame[:32]:
            raise SystemExit(f"the coordinator gave up: {composition.decode_at_client(frame)}")
        return frame

    def start(self) -> None:
        """Join the job, register the tensors and wait for the first plan."""
        for socket in self.servers + self.workers:
            self.await_message(socket, b"Welcome")
        tensors = [m.TensorSpec(t.name, t.elements, t.dtype, 0) for t in load("resnet50")]
        register = wire.encode(m.Register(tensors))
        for socket in self.workers:
            self._say(socket, register)
        self.await_plans()

    def round(self, iteration: int, samples: int) -> tuple[float, int, int]:
        """Run one round; return its seconds, bytes sent and bytes received. The messages are encoded beforehand."""
        now_s = time.monotonic()
        both = self.servers + self.workers
        reports = [self._report(k % len(self.workers), samples, now_s) for k in range(len(both))]
        done = wire.encode(m.Done(iteration, 1.0, 1.0, 0.0, now_s - 100, now_s))
        self.received_bytes = 0
        start_s = time.perf_counter()
        for socket, report in zip(both, reports, strict=True):
            self._say(socket, report)
        for socket in self.workers:
            self._say(socket, done)
        self.await_plans()
        took_s = time.perf_counter() - start_s
        for socket in self.servers:  # these are signs of life
            while socket.poll(0):
                self._hear(socket)
        return took_s, sum(map(len, reports)) + len(done) * len(self.workers), self.received_bytes

    def _report(self, node: int, samples: int, now_s: float) -> bytes:
        """An encoded Report of a receiver whose link carries 5 to 50 MB/s: messages from many peers, one after another."""
        step_ns = int(SAMPLE_BYTES / (5e6 + 45e6 * (node % 10) / 9) * 1e9)
        first_ns = int(now_s * 1e9) - samples * step_ns
        rows = []
        for k in range(samples):
            peer = (node + 1 + k % (len(self.workers) - 1)) % len(self.workers)
            start_ns = first_ns + k * step_ns
            rows.append(wire.SampleRow(1 + 2 * peer, SAMPLE_BYTES, start_ns, start_ns + step_ns))
        return wire.encode(wire.Report(now_s, -1, rows, 0))


@contextmanager
def coordinator(nodes: int, scheme: str, plane: Plane) -> Iterator[tuple[str, psutil.Process]]:
    """Run a coordinator for a job of this many nodes and yield its endpoint and its process. It writes its events to a file."""
    here, there = multiprocessing.Pipe()
    with free_pair("127.0.0.1") as port, tempfile.NamedTemporaryFile(suffix=".jsonl") as events:
        endpoint = f"tcp://127.0.0.1:{port}"
        settings = settings_for(endpoint, nodes, scheme, events.name)
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(settings, plane, there))
        process.start()
        try:
            here.recv()
            yield endpoint, psutil.Process(process.pid)
        finally:
            here.send("end")
            process.join(10)
            if process.is_alive():
                process.kill()


def main() -> int:
    """Print the times of rounds; returns 1 if the median misses the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--clients", type=int, default=1000, help="half workers, half servers, or agents (default: 1000)"
    )
    parser.add_argument("--agents", action="store_true", help="each client is a worker and a server")
    parser.add_argument("--samples", type=int, default=10, help="per report (default: 10)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--scheme", default="exact")
    args = parser.parse_args()
    nodes = args.clients if args.agents else args.clients // 2
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # each client takes three descriptors in this process
    times, processor = [], []
    with coordinator(nodes, args.scheme, AGENTS if args.agents else PS_LITE) as (endpoint, process):
        clients = Clients(endpoint, nodes, args.agents)
        clients.start()
        for iteration in range(WARM_UP + args.rounds):
            before = sum(process.cpu_times()[:2])
            took_s, sent, received = clients.round(iteration, args.samples)
            times.append(took_s)
            time.sleep(PAUSE_S)
            processor.append(sum(process.cpu_times()[:2]) - before)
        memory_mb = process.memory_info().rss / 1e6
    low_ms, *_, high_ms = sorted(1e3 * one for one in times[WARM_UP:])
    median_ms, processor_ms = (1e3 * statistics.median(values[WARM_UP:]) for values in (times, processor))
    print(f"{args.clients} clients, {args.samples} samples a report, scheme {args.scheme}")
    print(f"in: {args.clients + nodes} messages, {sent / 1e3:.0f} kB; out: {nodes} plans, {received / 1e3:.0f} kB")
    print(f"round: median {median_ms:.0f} ms, {low_ms:.0f} to {high_ms:.0f} ms")
    print(f"coordinator: {processor_ms:.0f} ms of processor time a round, {memory_mb:.0f} MB")
    print(f"goal {GOAL_MS} ms: {'reached' if median_ms <= GOAL_MS else 'missed'}")
    return int(median_ms > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
