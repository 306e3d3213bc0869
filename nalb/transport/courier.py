"""Sends arrays between workers: one ROUTER receives, two DEALERs go to each peer, and one thread owns all sockets.

The worker that holds an array sends it; the worker that needs it waits for it by name. In an encrypted job connections are
encrypted too, and a piece is accepted only if it comes from the node that it names. Other messages are refused and counted.

Arrays go in portions, which stream.py numbers and repeats, so a broken connection loses nothing. One DEALER carries portions and
marks; the other carries words, which must not wait behind portions. Both send only over connections that stand (ZMQ_IMMEDIATE).
Messages queued for a connection that breaks are lost with it and sent again. The kernel gives up a connection on which nothing is
acknowledged for GIVEN_UP of the deadline, and libzmq makes it anew: TCP itself would repeat ever more rarely.

Every wait ends. A worker that waits for a piece asks its holder for a word every beat. The job ends, with piece and holder named,
if the holder gives no word for UNHEARD of the deadline, if a worker cannot connect to a peer for UNCONNECTED of the deadline, or
if VAIN_MOST connections in a row break before anything has come through. A living holder may compute for any time before it has
a share of a sum. But the inputs of a token exist before the token is given out, and the coordinator orders their holder to send
them. So the job also ends if the holder keeps reporting that it has nothing left for this worker, for longer than the holder's
connection to the coordinator may be silent. Waits are counted in beats, so that the time in which this process itself was stopped
does not count.

Memory is bounded. A peer has at most WINDOW_BYTES on the way to this worker. While more than INBOX_MOST_BYTES wait here to be
taken, only peers whose pieces are waited for may send more. Pieces of complete tokens are refused.
"""

import logging
import queue
import socket as sockets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy.typing as npt
import zmq

from nalb.errors import PeerError, one_line
from nalb.failures import Cause
from nalb.protocol.members import LOST_DEADLINES
from nalb.transport.curvezmq import door_kept, node_of_user, secure_client, secure_server
from nalb.transport.keys import NodeKeys
from nalb.transport.pieces import (
    PORTION_MOST_BYTES,
    Assembly,
    Elements,
    Header,
    Mark,
    Piece,
    Sender,
    TokenPiece,
    Word,
    described,
    iteration_of,
    pack,
    pack_header,
    portions,
    unpack,
)
from nalb.transport.stream import Inflow, Outflow

log = logging.getLogger(__name__)

INBOX_MOST_BYTES = 4 << 30
BEAT_S = 0.25  # the time between marks, and between requests for words
# Parts of the deadline. At 0.6 the coordinator names a silent process and reachability.py a link that is down; both know more.
UNHEARD, UNCONNECTED, GIVEN_UP, CONNECTING = 0.8, 0.6, 0.3, 0.1
FLOOD = 1000  # messages received in a row before the thread attends to sends
CURVE_MOST_BYTES = 256  # encryption adds at most this to a frame
VAIN_MOST = 30  # the most rounds in a row (stream.py) in which nothing comes through
FRAMES_MOST = 2  # the frames of a message, without the sender's identity
WORDS_MOST = 16  # the most words that wait to be sent; a later word says all that an earlier one does
# The same values as on ps-lite's sockets (kvstore_patch/shim/shim.c): firewalls forget connections that carry nothing.
KEEP_ALIVE = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 6,
}

Fail = Callable[[Cause, str, int | None], None]  # takes the cause, a text for people, and the iteration if known


class _Order(NamedTuple):
    worker: int
    piece: Piece
    load: Callable[[], npt.NDArray[Any]]


class _EndlessError(Exception):
    """A wait for a piece, or for a connection, that will not end by itself."""

    def __init__(self, cause: Cause, why: str, iteration: int):
        super().__init__(why)
        self.cause, self.iteration = cause, iteration


@dataclass
class _Peer:
    """Another worker's courier, as this courier knows it."""

    rank: int
    address: str
    data: "zmq.Socket[bytes]"
    words: "zmq.Socket[bytes]"
    orders: deque[_Order] = field(default_factory=deque)
    outflow: Outflow[Elements] = field(default_factory=Outflow)
    inflow: Inflow = field(default_factory=Inflow)
    assembly: Assembly = field(default_factory=Assembly)
    owes_word: bool = False
    is_blocked: bool = False  # whether no connection takes the messages that are left for it
    is_idle: bool = False  # whether it has reported that it has nothing left for this worker
    blocked: int = 0  # beats in a row in which it was blocked
    unheard: int = 0  # beats in a row in which it was asked for a word in vain

    @property
    def left(self) -> int:
        """The number of arrays and portions for the peer that it has not confirmed."""
        return len(self.orders) + len(self.outflow)

    @property
    def name(self) -> str:
        """The peer's name in messages for people."""
        return f"the worker of rank {self.rank} at {self.address.removeprefix('tcp://')}"


class Courier:
    """Sends this worker's arrays to other workers and receives theirs.

    fail: is called on the courier's thread when the job cannot go on. deadline_s: the job ends within this time of a fault.
    """

    def __init__(self, host: str, keys: NodeKeys | None, fail: Fail, deadline_s: float):
        self._keys, self._fail = keys, fail
        self._deadline_s = deadline_s
        self._node_of_user = node_of_user(keys) if keys is not None else {}
        self._orders: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._arrived = threading.Condition()
        self._inbox: dict[tuple[Piece, int], npt.NDArray[Any]] = {}
        # by awaited piece and holder: the beats in a row in which the holder had nothing left
        self._wanted: dict[tuple[Piece, int], int] = {}
        self._inbox_bytes, self._complete = 0, -1
        self._sender, self._addresses, self._nodes = Sender(0, ""), list[str](), list[str]()
        self._is_closed = False
        self.refused: Counter[str] = Counter()  # the number of refused messages, by reason
        self._stack = ExitStack()
        self._context = self._stack.enter_context(zmq.Context())
        if keys is not None:
            self._stack.enter_context(door_kept(self._context, keys))
        self._router = self._context.socket(zmq.ROUTER)
        for option, value in (KEEP_ALIVE | {zmq.MAXMSGSIZE: PORTION_MOST_BYTES + CURVE_MOST_BYTES}).items():
            self._router.setsockopt(option, value)
        if keys is not None:
            secure_server(self._router, keys)
        self._router.bind(f"tcp://{host}:0")
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._wake_lock = threading.Lock()
        self._wake = self._context.socket(zmq.PAIR)
        self._wake.bind("inproc://wake")
        self._poller = zmq.Poller()
        self._peers: dict[int, _Peer] = {}  # the peers with which this worker has exchanged something
        self._thread = threading.Thread(target=self._run, name="nalb-courier", daemon=True)
        self._thread.start()

    def meet(self, sender: Sender, addresses: Sequence[str]) -> None:
        """Set who this worker is and the addresses of all couriers, by rank. Nothing is sent or received before this."""
        self._sender = sender
        if self._keys is not None:
            names = {peer.address: peer.name for peer in self._keys.peers}
            self._nodes = [names.get(one.removeprefix("tcp://").rpartition(":")[0], "") for one in addresses]
        self._addresses = list(addresses)  # set last: the thread starts once it sees the addresses
        self._ring()

    def send(self, worker: int, piece: Piece, load: Callable[[], npt.NDArray[Any]]) -> None:
        """Queue an array; any thread may call this.

        load: is called on the courier's thread and gives the array, which nobody may change afterwards.
        """
        self._orders.put(_Order(worker, piece, load))
        self._ring()

    def take_piece(self, piece: Piece, source: int) -> npt.NDArray[Any]:
        """Wait for a piece from the peer of rank `source`, and take it; any thread may call this.

        If the piece will not come, `fail` is called, and this raises PeerError once the courier is closed.
        """
        key = piece, source
        with self._arrived:
            if key not in self._inbox:
                self._wanted[key] = 0
                self._ring()
            try:
                while key not in self._inbox:
                    if self._is_closed:
                        raise PeerError("the courier is closed: nothing more arrives")
                    self._arrived.wait(timeout=1.0)
            finally:
                self._wanted.pop(key, None)
            if self._inbox_bytes >= INBOX_MOST_BYTES:  # peers may be waiting for room
                self._ring()
            array = self._inbox.pop(key)
            self._inbox_bytes -= array.nbytes
            return array

    def free(self, complete: int) -> None:
        """Drop the pieces for tokens of iterations up to `complete`, which are not needed any more, and refuse further ones."""
        with self._arrived:
            self._complete = complete
            for key in [key for key in self._inbox if self._is_past(key[0])]:
                self._inbox_bytes -= self._inbox.pop(key).nbytes
        self._ring()

    def close(self) -> None:
        """End the thread; no other worker may be waiting for this one's arrays. The number of refused messages is logged."""
        self._orders.put(None)
        self._ring()
        self._thread.join()
        if self.refused:
            (why, _), count = self.refused.most_common(1)[0], self.refused.total()
            log.warning("%d messages to the courier at %s were refused, most often: %s", count, self.address, why)

    @property
    def arrived(self) -> int:
        """The number of pieces that wait to be taken."""
        return len(self._inbox)

    @property
    def arrived_bytes(self) -> int:
        """The size of the pieces that wait to be taken."""
        return self._inbox_bytes

    @property
    def awaited(self) -> int:
        """The number of pieces that are waited for."""
        return len(self._wanted)

    def _is_past(self, piece: Piece) -> bool:
        return isinstance(piece, TokenPiece) and piece.wanted_by.iteration <= self._complete

    def _ring(self) -> None:
        with self._wake_lock, suppress(zmq.Again):  # a thread that has bells unread needs no other
            if not self._wake.closed:
                self._wake.send(b"", zmq.NOBLOCK)

    # ---- the thread

    def _run(self) -> None:
        try:
            with self._stack:
                self._serve()
        except _EndlessError as error:
            self._fail(error.cause, str(error), error.iteration)
        except Exception as error:
            why = f"cannot send to or receive from other workers: {one_line(error)}"
            self._fail(Cause.PROCESS, why, None)
        finally:
            with self._arrived:
                self._is_closed = True
                self._arrived.notify_all()

    def _serve(self) -> None:
        wake = self._context.socket(zmq.PAIR)
        wake.connect("inproc://wake")
        self._poller.register(wake, zmq.POLLIN)
        is_met, beat_s, orders = False, 0.0, deque[_Order]()
        try:
            while True:
                ready = dict(self._poller.poll(int(BEAT_S * 1000)))
                if wake in ready:
                    wake.recv()
                if self._addresses and not is_met:
                    self._poller.register(self._router, zmq.POLLIN)
                    is_met = True
                while not self._orders.empty():
                    if (order := self._orders.get()) is None:
                        return
                    orders.append(order)
                while is_met and orders:
                    self._peer(orders[0].worker).orders.append(orders.popleft())
                for _ in range(FLOOD if self._router in ready else 0):
                    if not self._receive():
                        break
                if is_beat := (now_s := time.monotonic()) - beat_s >= BEAT_S:
                    beat_s = now_s
                if is_met:
                    self._attend(is_beat)
        finally:
            for peer in self._peers.values():
                peer.data.close(0)
                peer.words.close(0)
            self._router.close(0)
            wake.close(0)
            with self._wake_lock:
                self._wake.close(0)

    def _peer(self, rank: int) -> _Peer:
        if rank not in self._peers:
            address = self._addresses[rank]
            data, words = self._connect(address, {zmq.SNDHWM: 0}), self._connect(address, {zmq.SNDHWM: WORDS_MOST})
            self._peers[rank] = _Peer(rank, address, data, words)
        return self._peers[rank]

    def _connect(self, address: str, options: dict[zmq.SocketOption, int]) -> "zmq.Socket[bytes]":
        given_up_ms, connecting_ms = (int(part * self._deadline_s * 1000) for part in (GIVEN_UP, CONNECTING))
        waits = {zmq.TCP_MAXRT: given_up_ms, zmq.HANDSHAKE_IVL: given_up_ms, zmq.CONNECT_TIMEOUT: connecting_ms}
        dealer = self._context.socket(zmq.DEALER)
        for option, value in (KEEP_ALIVE | waits | options | {zmq.IMMEDIATE: 1}).items():
            dealer.setsockopt(option, value)
        if self._keys is not None:
            secure_client(dealer, self._keys, address)
        dealer.connect(address)
        return dealer

    # ---- what is sent

    def _attend(self, is_beat: bool) -> None:
        """Send the portions, marks and words that are due; on a beat, also check that every wait can still end."""
        with self._arrived:
            awaited = {source for _, source in self._wanted}
            is_full = self._inbox_bytes >= INBOX_MOST_BYTES
        for rank in awaited - self._peers.keys():
            self._peer(rank)
        for peer in self._peers.values():
            is_awaited = peer.rank in awaited
            if is_awaited or not is_full:
                peer.owes_word |= peer.inflow.open()
            self._send_portions(peer, is_beat)
            if is_beat:
                peer.blocked = peer.blocked + 1 if peer.is_blocked else 0
                peer.unheard = peer.unheard + 1 if is_awaited else 0
            if peer.owes_word or (is_awaited and is_beat):
                self._send_word(peer, is_awaited)
        if is_beat:
            self._check()

    def _send_portions(self, peer: _Peer, is_beat: bool) -> None:
        outflow, was_blocked, peer.is_blocked = peer.outflow, peer.is_blocked, False
        while not peer.is_blocked:
            if (found := outflow.next()) is not None:
                peer.is_blocked = not _sent(peer.data, pack(self._sender, found[0], outflow.round, found[1]))
                if not peer.is_blocked:
                    outflow.leave()
            elif peer.orders and outflow.wants_more:
                order = peer.orders.popleft()
                for one in portions(order.piece, order.load()):
                    outflow.put(one, len(one.data))
            else:
                break
        if peer.left and not peer.is_blocked and (is_beat or was_blocked):
            mark = Mark(self._sender, outflow.sent, outflow.round)
            peer.is_blocked = not _sent(peer.data, pack_header(mark))
        if peer.is_blocked and not was_blocked:
            self._poller.register(peer.data, zmq.POLLOUT)
        elif was_blocked and not peer.is_blocked:
            self._poller.unregister(peer.data)

    def _send_word(self, peer: _Peer, asks: bool) -> None:
        inflow = peer.inflow
        word = Word(self._sender, inflow.received, inflow.limit_bytes, inflow.again, peer.left, asks)
        peer.owes_word = not _sent(peer.words, pack_header(word))

    def _check(self) -> None:
        """Count a beat of every wait, and raise _EndlessError for a wait that will not end."""
        beats = self._deadline_s / BEAT_S
        with self._arrived:
            # a piece that is wanted since this turn began may have a source that is no peer yet
            known = [key for key in self._wanted if key[1] in self._peers]
            for key in known:
                self._wanted[key] = self._wanted[key] + 1 if self._peers[key[1]].is_idle else 0
            wanted = {key: self._wanted[key] for key in known}
        for (piece, source), idle in wanted.items():
            peer, what = self._peers[source], f"waits in vain for {described(piece)}"
            if peer.unheard > UNHEARD * beats:
                why = f"{peer.name} has given no sign of life for {UNHEARD * self._deadline_s:g} s: the link to it is down"
                raise _EndlessError(Cause.UNREACHABLE, f"{what}: {why}", iteration_of(piece))
            if isinstance(piece, TokenPiece) and idle > LOST_DEADLINES * beats:
                why = f"{peer.name} says that it has nothing to send: please report this"
                raise _EndlessError(Cause.PROTOCOL, f"{what}: {why}", iteration_of(piece))
        for peer in self._peers.values():
            broken = None
            if peer.blocked > UNCONNECTED * beats:
                broken = f"there has been no connection to {peer.name} for {UNCONNECTED * self._deadline_s:g} s"
            elif peer.outflow.vain > VAIN_MOST:
                broken = f"{peer.outflow.vain} connections in a row to {peer.name} broke before anything came through"
            if broken is not None:
                piece = (peer.outflow.oldest or peer.orders[0]).piece
                what = f"cannot send {described(piece)}: {broken}: something between the two drops connections"
                raise _EndlessError(Cause.UNREACHABLE, what, iteration_of(piece))

    # ---- what is received

    def _receive(self) -> bool:
        """Receive a message if there is one; return whether there was."""
        try:
            frame = self._router.recv(zmq.NOBLOCK, copy=False)  # the sender's identity, which is of no use
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
                raise PeerError(f"{count} frames where a header and elements belong")
            header, elements = unpack([one.buffer for one in frames])
            rank, job = header.sender
            if job != self._sender.job:
                raise PeerError("another job's worker connects to an address that is this job's now")
            if rank >= len(self._addresses) or rank == self._sender.rank:
                raise PeerError(f"rank {rank} is no other worker's")
            if self._keys is not None and not self._is_from(frames[-1], rank):
                raise PeerError(f"another node speaks for rank {rank}")
            self._take_in(header, elements)
        except PeerError as error:
            self.refused[str(error)[:80] if len(self.refused) < 100 else "others"] += 1
        return True

    def _is_from(self, frame: zmq.Frame, rank: int) -> bool:
        try:
            user = str(frame.get("User-Id"))
        except zmq.ZMQError:
            return False
        return self._node_of_user.get(user) == self._nodes[rank]

    def _take_in(self, header: Header, elements: memoryview) -> None:
        peer = self._peer(header.sender.rank)
        peer.unheard = 0
        if isinstance(header, Word):
            peer.outflow.confirm(header.received, header.limit_bytes, header.again)
            peer.owes_word |= header.asks
            peer.is_idle = not header.left
            return
        peer.owes_word = True
        if isinstance(header, Mark):
            peer.inflow.mark(header.number, header.round)
        elif peer.inflow.is_next(header.number, header.round):
            array = peer.assembly.add(header, elements)
            peer.inflow.note_taken(len(elements))
            if array is not None:
                self._keep(header.piece, header.sender.rank, array)

    def _keep(self, piece: Piece, source: int, array: npt.NDArray[Any]) -> None:
        with self._arrived:
            if self._is_past(piece):
                raise PeerError("a piece of a token that is complete")
            if (piece, source) in self._inbox:
                raise PeerError("a piece that is here already")
            self._inbox[piece, source] = array
            self._inbox_bytes += array.nbytes
            self._arrived.notify_all()


def _sent(socket: "zmq.Socket[bytes]", frames: Sequence[bytes | memoryview]) -> bool:
    """Send the frames if a connection takes them; return whether one did."""
    try:
        socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return False
    return True


def own_host(endpoint: str) -> str:
    """The address of this machine from which it reaches the coordinator at `endpoint`, tcp://HOST:PORT."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # connecting a datagram socket sends nothing
        return str(probe.getsockname()[0])
