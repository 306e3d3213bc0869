"""Arrays between workers: one ROUTER that receives, one DEALER to each peer, one thread that owns them.

Whoever holds an array sends it; whoever needs it waits for it by name. Connections are encrypted where the job is, and then a
piece counts only if it comes from the node that it says. What is not ours is refused and counted. A peer that dies or cannot be
reached ends the job by the control plane (nalb/transport/client.py, reachability.py), so waiting has no deadline of its own.

Bounds: a worker is sent what one token of its needs, and its shares of sums; nobody else's pieces are kept. What waits here to be
taken stays below INBOX_MOST_BYTES; pieces of tokens that are complete everywhere are refused.
"""

import logging
import queue
import socket as sockets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

import numpy.typing as npt
import zmq

from nalb.errors import PeerError, one_line
from nalb.transport.curvezmq import door_kept, node_of_user, secure_client, secure_server
from nalb.transport.keys import NodeKeys
from nalb.transport.pieces import FRAME_MOST_BYTES, Piece, TokenPiece, pack, unpack

log = logging.getLogger(__name__)

INBOX_MOST_BYTES = 4 << 30
LINGER_MS = 2000  # how long the last pieces may take to leave
FLOOD = 1000  # messages received in a row before sends are looked at
FRAMES_MOST = 2  # of a message of ours, without the sender's identity


class _Order(NamedTuple):
    worker: int
    piece: Piece
    load: Callable[[], npt.NDArray[Any]]


class Courier:
    """This worker's. `fail` is told, on the courier's thread, why it cannot go on."""

    def __init__(self, host: str, keys: NodeKeys | None, fail: Callable[[str], None]):
        self._keys, self._fail = keys, fail
        self._node_of_user = node_of_user(keys) if keys is not None else {}
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._arrived = threading.Condition()
        self._inbox: dict[tuple[Piece, int], npt.NDArray[Any]] = {}
        self._inbox_bytes, self._complete = 0, -1
        self._rank, self._addresses, self._nodes = 0, list[str](), list[str]()
        self._is_closed = False
        self.refused: Counter[str] = Counter()  # why -> how many messages
        self._stack = ExitStack()
        self._context = self._stack.enter_context(zmq.Context())
        if keys is not None:
            self._stack.enter_context(door_kept(self._context, keys))
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.MAXMSGSIZE, FRAME_MOST_BYTES)
        if keys is not None:
            secure_server(self._router, keys)
        self._router.bind(f"tcp://{host}:0")
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._wake_lock = threading.Lock()
        self._wake = self._context.socket(zmq.PAIR)
        self._wake.bind("inproc://wake")
        self._thread = threading.Thread(target=self._run, name="nalb-courier", daemon=True)
        self._thread.start()

    def meet(self, rank: int, addresses: Sequence[str]) -> None:
        """This worker's rank and where all couriers are, by rank. Nothing is received or sent before."""
        self._rank, self._addresses = rank, list(addresses)
        if self._keys is not None:
            names = {peer.address: peer.name for peer in self._keys.peers}
            self._nodes = [names.get(one.removeprefix("tcp://").rpartition(":")[0], "") for one in addresses]
        self._ring()

    def send(self, worker: int, piece: Piece, load: Callable[[], npt.NDArray[Any]]) -> None:
        """Queue an array; any thread. load: gives it, on the courier's thread."""
        self._orders.put(_Order(worker, piece, load))
        self._ring()

    def take(self, piece: Piece, source: int) -> npt.NDArray[Any]:
        """Wait for a piece from a peer, and take it; any thread."""
        with self._arrived:
            while (piece, source) not in self._inbox:
                if self._is_closed:
                    raise PeerError("the courier is closed: nothing more arrives")
                self._arrived.wait(timeout=1.0)
            array = self._inbox.pop((piece, source))
            self._inbox_bytes -= array.nbytes
            return array

    def free(self, complete: int) -> None:
        """Tokens of iterations up to `complete` need nothing any more."""
        with self._arrived:
            self._complete = complete
            for key in [key for key in self._inbox if self._is_past(key[0])]:
                self._inbox_bytes -= self._inbox.pop(key).nbytes

    def close(self) -> None:
        """Send what is queued, and end. What was refused is logged."""
        self._orders.put(None)
        self._ring()
        self._thread.join()
        if self.refused:
            (why, _), count = self.refused.most_common(1)[0], self.refused.total()
            log.warning("%d messages to the courier at %s were refused, most often: %s", count, self.address, why)

    def _is_past(self, piece: Piece) -> bool:
        return isinstance(piece, TokenPiece) and piece.wanted_by.iteration <= self._complete

    def _ring(self) -> None:
        with self._wake_lock, suppress(zmq.Again):  # one that is behind with its bells needs no other
            if not self._wake.closed:
                self._wake.send(b"", zmq.NOBLOCK)

    # ---- the thread

    def _run(self) -> None:
        try:
            with self._stack:
                self._serve()
        except Exception as error:
            self._fail(f"cannot send to or receive from other workers: {one_line(error)}")
        finally:
            with self._arrived:
                self._is_closed = True
                self._arrived.notify_all()

    def _serve(self) -> None:
        dealers: dict[int, zmq.Socket[bytes]] = {}
        wake = self._context.socket(zmq.PAIR)
        wake.connect("inproc://wake")
        poller, is_met = zmq.Poller(), False
        poller.register(wake, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if wake in ready:
                    wake.recv()
                if self._addresses and not is_met:
                    poller.register(self._router, zmq.POLLIN)
                    is_met = True
                while not self._orders.empty():
                    order = self._orders.get()
                    if order is None:
                        return
                    if order.worker not in dealers:
                        dealers[order.worker] = self._connect(self._addresses[order.worker])
                    frames = pack(self._rank, order.piece, order.load())
                    dealers[order.worker].send_multipart(frames, copy=False)
                for _ in range(FLOOD if self._router in ready else 0):
                    if not self._receive():
                        break
        finally:
            for dealer in dealers.values():
                dealer.close(LINGER_MS)
            self._router.close(0)
            wake.close(0)
            with self._wake_lock:
                self._wake.close(0)

    def _connect(self, address: str) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.SNDHWM, 0)  # sends never block the thread; how much waits, the peers' needs bound
        if self._keys is not None:
            secure_client(dealer, self._keys, address)
        dealer.connect(address)
        return dealer

    def _receive(self) -> bool:
        """Take a message in, if one is there."""
        try:
            frame = self._router.recv(zmq.NOBLOCK, copy=False)  # the sender's identity, which says nothing
        except zmq.Again:
            return False
        frames: list[zmq.Frame] = []
        count = 0
        while frame.more:
            frame = self._router.recv(copy=False)
            count += 1
            if count <= FRAMES_MOST:
                frames.append(frame)
        try:
            if count > FRAMES_MOST:
                raise PeerError(f"{count} frames where a header and an array belong")
            received = unpack([one.buffer for one in frames])
            if received.source >= len(self._addresses) or received.source == self._rank:
                raise PeerError(f"rank {received.source} is no other worker's")
            if self._keys is not None and not self._is_from(frames[-1], received.source):
                raise PeerError(f"another node speaks for rank {received.source}")
            self._keep(received.piece, received.source, received.array)
        except PeerError as error:
            self.refused[str(error)[:80] if len(self.refused) < 100 else "others"] += 1
        return True

    def _is_from(self, frame: zmq.Frame, rank: int) -> bool:
        try:
            user = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return False
        return self._node_of_user.get(user) == self._nodes[rank]

    def _keep(self, piece: Piece, source: int, array: npt.NDArray[Any]) -> None:
        with self._arrived:
            if self._is_past(piece):
                raise PeerError("a piece of a token that is complete")
            if (piece, source) in self._inbox:
                raise PeerError("a piece that is here already")
            if self._inbox_bytes + array.nbytes > INBOX_MOST_BYTES:
                raise PeerError("more than fits here")
            self._inbox[piece, source] = array
            self._inbox_bytes += array.nbytes
            self._arrived.notify_all()


def own_host(endpoint: str) -> str:
    """The address of this machine from which it reaches the coordinator."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # sends nothing
        return str(probe.getsockname()[0])
