"""Sessions (nalb/protocol/session.py) on sockets: a worker's or server's session, and the coordinator's, one for each process.

A message has two frames: envelope and message. An empty message is a sign of life whose envelope asks for missing messages.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import zmq

from nalb.errors import PeerError
from nalb.protocol import wire
from nalb.protocol.session import Envelope, Session, pack, unpack
from nalb.services import composition

KEEPALIVE_S = 10  # the time between TCP keep-alives to a silent peer


def bound(socket: "zmq.Socket[bytes]", silence_s: float) -> None:
    """Have TCP give up a connection whose peer confirms nothing for `silence_s`; it is then made anew, and no message is lost."""
    socket.setsockopt(zmq.TCP_MAXRT, int(silence_s * 1000))
    for option, value in (
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S),
        (zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S),
    ):
        socket.setsockopt(option, value)


class ReplacedError(PeerError):
    """The coordinator has ended, and another one listens at its place."""


class Connection:
    """A process's connection to the coordinator, which may be made anew at any time. It must be used by one thread only."""

    def __init__(self, connect: "Callable[[], zmq.Socket[bytes]]"):
        """connect: makes a connected socket, with the same identity each time."""
        self._connect = connect
        self._session = Session[bytes]()
        self.socket = connect()
        self.heard_s = time.monotonic()  # the time of the last arrival, or of the connection's making if that is later

    def say(self, message: wire.Message, is_kept: bool = True) -> None:
        """Send a message. A message that is not kept is lost if the connection breaks."""
        frame = wire.encode(message)
        self._send(self._session.keep(frame) if is_kept else self._session.sign(), frame)

    def hear(self, now_s: float) -> Iterator[wire.Message]:
        """Yield the messages that have arrived, each once and in order.

        Raises PeerError for wrong frames, and ReplacedError where another coordinator has answered.
        """
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.heard_s = now_s
            if len(frames) != 2:
                raise PeerError(f"the coordinator sent {len(frames)} frames instead of two")
            envelope = unpack(frames[0])
            if self._session.is_of_another(envelope):
                raise ReplacedError(
                    "the coordinator of this job has ended, and the one of another job listens at its place"
                )
            is_next = self._session.accept(envelope)
            for one, frame in self._session.again(envelope):
                self._send(one, frame)
            if self._session.misses and not envelope.is_kept:
                self._send(self._session.sign(), b"")
            if is_next and frames[1]:
                yield composition.decode_at_client(frames[1])

    def confirm(self) -> None:
        """Say what has arrived, as the last thing on this connection."""
        self._send(self._session.sign(), b"")

    def overslept(self, by_s: float) -> None:
        """Take in that this process has not run for so long: what has arrived meanwhile is not read yet."""
        self.heard_s += by_s

    def make_anew(self, now_s: float) -> None:
        """Close the connection's socket and make another."""
        self.socket.close(linger=0)
        self.socket, self.heard_s = self._connect(), now_s

    def _send(self, envelope: Envelope, frame: bytes) -> None:
        self.socket.send_multipart([pack(envelope), frame])


class Conversations:
    """The coordinator's ends of all sessions, by the processes' identities."""

    def __init__(self, router: "zmq.Socket[bytes]"):
        self._router = router
        self._sessions: dict[bytes, Session[zmq.Frame]] = {}

    def opened(self, identity: bytes, frames: Sequence[bytes]) -> bytes | None:
        """Take the envelope and message that came from a process; return the message if it is the next one. Raises PeerError."""
        envelope = unpack(frames[0])
        session = self._sessions.setdefault(identity, Session())
        is_next = session.accept(envelope)
        for one, frame in session.again(envelope):
            self._send(identity, one, frame)
        if session.misses and not envelope.is_kept:
            self._send(identity, session.sign(), b"")
        return frames[1] if is_next and frames[1] else None

    def send(self, identity: bytes, message: wire.Message, frame: zmq.Frame) -> None:
        """Send a message that is encoded as `frame`. An answer on a connection for signs of life has no envelope.

        A process that is not of the job has no session here. It gets a message as the first of one.
        """
        session = self._sessions.get(identity)
        if not isinstance(message, wire.Alive):
            self._send(identity, (session or Session()).keep(frame), frame)
        elif session is None:
            self._router.send_multipart([identity, frame])
        else:
            self._send(identity, session.sign(), frame)

    def have_confirmed(self, identities: Iterable[bytes]) -> bool:
        """Whether these processes have confirmed all that was sent to them."""
        return not any(self._sessions[one].unconfirmed for one in identities)

    def forget(self, identity: bytes) -> None:
        """Drop the session of an identity that belongs to no process of the job."""
        self._sessions.pop(identity, None)

    def _send(self, identity: bytes, envelope: Envelope, frame: zmq.Frame | bytes) -> None:
        self._router.send_multipart([identity, pack(envelope), frame])
