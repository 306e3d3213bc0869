"""Sockets between agents: slices to their owners, sums back.

An agent is a worker, with a DEALER to every other agent, and a server, with one ROUTER. A push is [header, payload] on the DEALER,
and so is its answer. Where messages are measured a forecast goes before each: its receiver times from the forecast's arrival to
the message's (Cai et al., section 3.2), and reports a row for each. No socket has a high-water mark: pushes are bounded by the
window, answers by the pushes, and a ROUTER would drop what is above its mark.
"""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import zmq
from msgspec import Meta, Struct

from nalb.errors import MachineError, PeerError
from nalb.plane.codecs import NUMBERS, Codec, codec_by
from nalb.plane.sums import Values
from nalb.planning.slices import MAX_SLICE_ELEMENTS
from nalb.protocol import wire
from nalb.transport.client import Drained
from nalb.transport.courier import KEEP_ALIVE
from nalb.transport.curvezmq import door_kept, node_of_user, secure_client, secure_server
from nalb.transport.keys import NodeKeys

FORECAST = b"f"  # no MessagePack array begins so
MESSAGE_MOST = 8 * MAX_SLICE_ELEMENTS + 1024  # bytes of a frame
PUSH_FRAMES = 2  # header and payload; a forecast is one
READS_AT_ONCE = 16  # from one socket before the others have their turn


class SliceHeader(Struct, frozen=True, forbid_unknown_fields=True, array_like=True, gc=False):
    """A message's header, one MessagePack value."""

    iteration: wire.Count
    slice_index: wire.Count
    dtype: Annotated[str, Meta(pattern=r"^float(32|64)\Z")]
    codec: wire.Count  # its number; 0: the values travel as they are


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(SliceHeader)


class Receiver(Protocol):
    """Takes what arrives. All raise PeerError, about the sender, for what may not come."""

    def pushed(self, rank: int, header: SliceHeader, values: Values) -> None:
        """A slice that `rank` has pushed."""

    def room(self, rank: int, header: SliceHeader) -> Values:
        """Where the answer of `rank` belongs, in its whole length."""
        ...

    def answered(self, header: SliceHeader, frame: zmq.Frame | None) -> None:
        """The answer is there. frame: as it came, where a codec made it."""


class _Peer:
    """Another agent."""

    __slots__ = ("forecast_ns", "identity", "name", "rank", "socket")

    def __init__(self, rank: int, identity: bytes, name: str | None, socket: "zmq.Socket[bytes]"):
        self.rank, self.identity = rank, identity
        self.name, self.socket = name, socket  # name: of its node by its key; None: without keys
        # when a forecast came of a push, which is true, or of an answer; without one the message is not measured
        self.forecast_ns: dict[bool, int] = {}


def identity_of(rank: int, job: str) -> bytes:
    """An agent's routing id. job: as in Welcome (nalb/protocol/wire.py); an agent of another job, which knocks where one of its own
    was, is a stranger by it.
    """
    return f"r{rank}-{job}".encode()


class AgentLinks:
    """All sockets of one agent; only one thread may use them, but for `rows`."""

    def __init__(self, host: str, port: int, keys: NodeKeys | None):
        """port: 0 for a free one. Raises MachineError where the place is taken."""
        self._keys = keys
        self._stack = ExitStack()
        self._context = zmq.Context()
        self.server = self._context.socket(zmq.ROUTER)
        self._common(self.server)
        self.server.setsockopt(zmq.MAXMSGSIZE, MESSAGE_MOST)
        self.server.setsockopt(zmq.ROUTER_HANDOVER, 1)  # an agent that connects anew takes its dead connection's place
        if keys is not None:
            self._stack.enter_context(door_kept(self._context, keys))
            secure_server(self.server, keys)
        try:
            self.server.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            raise MachineError(f"an agent cannot listen on {host}:{port} ({error}): choose another address") from None
        self.address = self.server.getsockopt_string(zmq.LAST_ENDPOINT)
        self._node_of_user = {} if keys is None else node_of_user(keys)
        self.peers: dict[int, _Peer] = {}
        self._by_identity: dict[bytes, _Peer] = {}
        self._timed: deque[tuple[int, wire.SampleRow]] = deque()  # with their iterations
        # By iteration; the client's thread alone uses it.
        self._untold: defaultdict[int, list[wire.SampleRow]] = defaultdict(list)

    def connect(self, own_rank: int, addresses: Sequence[str], job: str) -> None:
        """Connect to all other agents. addresses: by rank; job: as in identity_of. Raises InputError where keys lack an address."""
        names = {} if self._keys is None else {one.address: one.name for one in self._keys.peers}
        for rank, address in enumerate(addresses):
            if rank == own_rank:
                continue
            socket = self._context.socket(zmq.DEALER)
            self._common(socket)
            socket.setsockopt(zmq.ROUTING_ID, identity_of(own_rank, job))
            if self._keys is not None:
                secure_client(socket, self._keys, address)
            socket.connect(address)
            name = names.get(address.removeprefix("tcp://").rpartition(":")[0])
            peer = self.peers[rank] = _Peer(rank, identity_of(rank, job), name, socket)
            self._by_identity[peer.identity] = peer

    def _common(self, socket: "zmq.Socket[bytes]") -> None:
        for option, value in (KEEP_ALIVE | {zmq.SNDHWM: 0, zmq.RCVHWM: 0, zmq.LINGER: 0}).items():
            socket.setsockopt(option, value)

    def close(self) -> None:
        """Drop what has not left; nobody may need it."""
        self._stack.close()
        self._context.destroy(linger=0)

    # ---- out

    def push(self, rank: int, header: SliceHeader, payload: Any, is_measured: bool) -> None:
        """Send a slice to the agent that sums it. payload: its values, or a codec's frame of them."""
        socket = self.peers[rank].socket
        if is_measured:
            socket.send(FORECAST)
        socket.send(_encoder.encode(header), zmq.SNDMORE)
        socket.send(payload)

    def answer(self, ranks: Sequence[int], of: SliceHeader, payload: Any, is_measured: bool) -> None:
        """Send a sum to those that pushed parts of it: one copy for all. payload: as in `push`."""
        header, frame, send = _encoder.encode(of), zmq.Frame(payload, copy=True), self.server.send
        for rank in ranks:
            identity = self.peers[rank].identity
            if is_measured:
                send(identity, zmq.SNDMORE)
                send(FORECAST)
            send(identity, zmq.SNDMORE)
            send(header, zmq.SNDMORE)
            send(frame, copy=False, track=False)

    # ---- in

    def read_pushes(self, receiver: Receiver) -> None:
        """Take in some of what others have pushed."""
        server = self.server
        for _ in range(READS_AT_ONCE):
            try:
                identity, frames = server.recv(zmq.NOBLOCK), server.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            peer = self._by_identity.get(identity)
            if peer is None or len(frames) > PUSH_FRAMES or not self._is_from(peer, frames[0]):
                continue  # of a stranger: anyone can reach the port
            try:
                self._take_push(peer, receiver, *frames)
            except PeerError as error:
                raise _named(peer, error) from None

    def _take_push(self, peer: _Peer, receiver: Receiver, header: zmq.Frame, payload: zmq.Frame | None = None) -> None:
        if payload is None:
            if header.bytes != FORECAST:
                raise PeerError("sent a header alone")
            peer.forecast_ns[True] = time.monotonic_ns()
            return
        head = _header(header.bytes)
        self._note_row(peer, head, True, len(payload), time.monotonic_ns())
        receiver.pushed(peer.rank, head, self._values(head, payload))

    def _values(self, head: SliceHeader, payload: zmq.Frame) -> Values:
        if head.codec:
            return self._codec(head).decode(payload.buffer)
        try:
            return np.frombuffer(payload.buffer, head.dtype)
        except ValueError:
            raise PeerError(f"pushed {len(payload)} bytes of {head.dtype}") from None

    def _codec(self, head: SliceHeader) -> Codec:
        """The codec that a header names. Raises PeerError where it is unknown, or is none for the dtype."""
        if head.dtype != "float32":
            raise PeerError(f"sent {head.dtype} by codec {head.codec}, and codecs are for float32")
        if head.codec not in NUMBERS:
            raise PeerError(f"sent a slice by codec {head.codec}, which this nalb does not know")
        return codec_by(head.codec)

    def _is_from(self, peer: _Peer, header: zmq.Frame) -> bool:
        """Whether a message comes from the node that it names, where there are keys."""
        return self._keys is None or self._node_of_user.get(str(header.get("User-Id"))) == peer.name

    def read_answers(self, rank: int, receiver: Receiver) -> None:
        """Take in some of what `rank` has answered."""
        peer = self.peers[rank]
        for _ in range(READS_AT_ONCE):
            try:
                header = peer.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take_answer(peer, receiver, header)
            except PeerError as error:
                raise _named(peer, error) from None

    def _take_answer(self, peer: _Peer, receiver: Receiver, header: bytes) -> None:
        if header == FORECAST:
            peer.forecast_ns[False] = time.monotonic_ns()
            return
        head, socket = _header(header), peer.socket
        values = receiver.room(peer.rank, head)
        frame = None
        if head.codec:
            frame = socket.recv(copy=False) if socket.rcvmore else zmq.Frame()
            size_bytes, arrived_ns = len(frame), time.monotonic_ns()
            self._codec(head).decode_into(frame.buffer, values)
        else:
            size_bytes = socket.recv_into(values.data) if socket.rcvmore else 0
            arrived_ns = time.monotonic_ns()
            if size_bytes != values.nbytes:
                raise PeerError(f"answered {size_bytes} bytes for {values.nbytes}")
        self._note_row(peer, head, False, size_bytes, arrived_ns)
        receiver.answered(head, frame)

    def timings(self) -> Drained:
        """Rows of the earliest iteration that has any. Called on the client's thread.

        Others may be an iteration ahead, where its plan came early. So messages of two iterations arrive here at the same time.
        """
        while self._timed:
            iteration, row = self._timed.popleft()
            self._untold[iteration].append(row)
        if not self._untold:
            return Drained([])
        iteration = min(self._untold)
        rows = self._untold.pop(iteration)
        if later := rows[wire.ROWS_MOST :]:
            self._untold[iteration] = later
        return Drained(rows[: wire.ROWS_MOST], iteration=iteration)

    def _note_row(self, peer: _Peer, head: SliceHeader, is_push: bool, size_bytes: int, arrived_ns: int) -> None:
        """Note what a message took since its forecast, if one came."""
        if forecast_ns := peer.forecast_ns.pop(is_push, 0):
            number = wire.peer_number(peer.rank, is_worker=is_push)
            self._timed.append((head.iteration, wire.SampleRow(number, size_bytes, forecast_ns, arrived_ns)))


def _named(peer: _Peer, error: PeerError) -> PeerError:
    return PeerError(f"the agent of rank {peer.rank} {error}: install the same nalb everywhere, or report this")


def _header(frame: bytes) -> SliceHeader:
    try:
        return _decoder.decode(frame)
    except msgspec.MsgspecError:
        raise PeerError("sent a header that is not ours") from None
