"""`python toy_plane.py RANK PORT...`: a worker and server on plain sockets, without any framework, that sums by the plans it gets.

PORT: where each rank listens on loopback. It prints "sums are right" once all are.
"""

import os
import socket
import struct
import sys
import threading
import time

import numpy as np

from nalb.planning.slices import Tensor
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.services.exchange.worker_protocol import layout_by
from nalb.settings import from_environment
from nalb.transport.client import Drained
from nalb.transport.worker_session import WorkerSession

ELEMENTS, ITERATIONS = 60_000, 8
RATES = (2e6, 4e6, 6e6)  # bytes per second that each rank sends, as long as it has something to send
HEADER = struct.Struct("<?III")  # is a push; iteration; slice; bytes that follow


class Sockets:
    """Connections to all ranks, this one included; whatever comes is summed, or kept as an answer."""

    def __init__(self, rank, ports):
        self.rank, self.ranks = rank, range(len(ports))
        self.first_sent_s, self.is_timed, self._lock, self._rows = None, False, threading.Condition(), []
        self._pushed, self._answers, self._uplink = {}, {}, threading.Lock()
        listener = socket.create_server(("127.0.0.1", ports[rank]))
        self._out = [self._connect(port) for port in ports]
        for peer in self._out:
            peer.sendall(bytes([rank]))
        for _ in ports:
            threading.Thread(target=self._read, args=(listener.accept()[0],), daemon=True).start()

    @staticmethod
    def _connect(port):
        end_s = time.monotonic() + 30
        while True:
            try:
                return socket.create_connection(("127.0.0.1", port))
            except OSError:
                assert time.monotonic() < end_s
                time.sleep(0.05)

    # ---- what the control plane asks of a data plane

    def begin(self, plan):
        self.first_sent_s, self.is_timed = None, plan.measure

    def timings(self):
        with self._lock:
            rows, self._rows = self._rows, []
            return Drained(rows)

    def make_room(self, order):
        raise AssertionError(f"{order}: a plane without slots")

    # ---- the exchange

    def push(self, iteration, plan, layout, gradients):
        for piece in layout.slices:
            part = np.concatenate([gradients[f.tensor_offset :][: f.length] for f in piece.fragments])
            server = plan.server_of_slice[piece.index] if plan.server_of_slice else piece.index % len(self.ranks)
            self.first_sent_s = self.first_sent_s or time.monotonic()
            self._send(server, True, iteration, piece.index, part)

    def wait(self, iteration, layout):
        with self._lock:
            assert self._lock.wait_for(lambda: len(self._answers.get(iteration, {})) == len(layout.slices), 20)

    def sums(self, iteration, layout):
        summed = np.zeros(ELEMENTS, np.float32)
        answers = self._answers.pop(iteration)
        for piece in layout.slices:
            for f in piece.fragments:
                summed[f.tensor_offset :][: f.length] = answers[piece.index][f.slice_offset :][: f.length]
        return summed

    def _send(self, rank, is_push, iteration, index, values):
        with self._uplink:
            self._out[rank].sendall(HEADER.pack(is_push, iteration, index, values.nbytes))
            if rank != self.rank:
                time.sleep(values.nbytes / RATES[self.rank])
            self._out[rank].sendall(values.tobytes())

    def _read(self, peer):
        stream = peer.makefile("rb")
        sender = stream.read(1)[0]
        while header := stream.read(HEADER.size):
            is_push, iteration, index, size = HEADER.unpack(header)
            start_ns = time.monotonic_ns()
            values = np.frombuffer(stream.read(size), np.float32)
            number = wire.peer_number(sender, is_worker=is_push)
            with self._lock:
                if self.is_timed:
                    self._rows.append(wire.SampleRow(number, size, start_ns, time.monotonic_ns()))
            if is_push:
                self._add(sender, iteration, index, values)
            else:
                with self._lock:
                    self._answers.setdefault(iteration, {})[index] = values
                    self._lock.notify_all()

    def _add(self, sender, iteration, index, values):
        with self._lock:
            pushed = self._pushed.setdefault((iteration, index), {})
            pushed[sender] = values
            if len(pushed) < len(self.ranks):
                return
            del self._pushed[iteration, index]
        for rank in self.ranks:
            self._send(rank, False, iteration, index, sum(pushed[one] for one in self.ranks))


def main():
    rank, ports = int(sys.argv[1]), [int(port) for port in sys.argv[2:]]
    sockets = Sockets(rank, ports)
    session = WorkerSession(from_environment(os.environ, "host"), rank, sockets, role="agent")
    session.client.on(m.Measure, lambda _: None)
    spec = m.TensorSpec("w", ELEMENTS, "float32", 0)
    order = session.register([spec])
    for _ in range(ITERATIONS):
        while True:
            if isinstance(order, m.Setup):
                layout = layout_by(order, [Tensor(spec.name, spec.elements, spec.dtype)], "the toy")
            order, waited_s = session.next_plan()
            if isinstance(order, m.Plan):
                break
        iteration = session.protocol.iteration
        sockets.push(iteration, order, layout, np.arange(ELEMENTS, dtype=np.float32) * (rank + iteration))
        session.finish(
            order,
            wait_computed=lambda: None,
            wait=lambda number=iteration, cut=layout: sockets.wait(number, cut),
            sums=lambda: None,
            plan_wait_s=waited_s,
            is_whole=True,
        )
        session.wait_finished()
        factor = sum(other + iteration for other in sockets.ranks)
        assert np.allclose(sockets.sums(iteration, layout), np.arange(ELEMENTS, dtype=np.float32) * factor)
    session.leave()
    print("sums are right")


if __name__ == "__main__":
    main()
