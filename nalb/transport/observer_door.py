"""The coordinator's socket for observers. Each has a queue that ends: one who stops reading costs the job nothing more.

What the queue has no room for is dropped and counted; the observer learns the count as soon as there is room again. The job's own
processes have another socket, whose queues have no end: of what they are told nothing may be lost.
"""

import errno
import os
from collections.abc import Iterator

import zmq

from nalb.errors import InputError
from nalb.events import MissedEvent
from nalb.protocol import messages as m

QUEUE_BYTES = 16_000_000  # of the events that wait for one observer, about
EVENT_BYTES = 400  # of an event, for each process of the job: 4 kB with 12 nodes (docs/run-files.md)
QUEUE_LEAST = 16  # events
SOCKET_PATH_BYTES = 107  # sun_path of a unix socket, less its end
TAKEN_AT_ONCE = 100  # messages: observers that say too much must not keep the job waiting


class ObserverDoor:
    """The socket, bound on an ipc address, and how much each observer has missed."""

    def __init__(self, socket: "zmq.Socket[bytes]", address: str, processes: int):
        """socket: a ROUTER, not yet bound. processes: of the job. Raises InputError.

        The mode of the socket's file is what keeps others out: whoever may write to it steers the job.
        """
        path = address.removeprefix("ipc://")
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise InputError(
                f"NALB_OBSERVERS: the socket path {path} is longer than {SOCKET_PATH_BYTES} bytes: use a shorter run directory"
            )
        self.socket = socket
        self._missed: dict[bytes, int] = {}  # events, of those observers that do not know yet
        socket.setsockopt(zmq.SNDHWM, max(QUEUE_LEAST, QUEUE_BYTES // (EVENT_BYTES * processes)))
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else what cannot be sent is dropped without a word
        umask = os.umask(0o177)
        try:
            socket.bind(address)
        finally:
            os.umask(umask)

    def arrived(self) -> Iterator[list[bytes]]:
        """The frames of the messages that are there, at most TAKEN_AT_ONCE."""
        for _ in range(TAKEN_AT_ONCE):
            try:
                yield self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def tell(self, identity: bytes, told: m.Told, frame: zmq.Frame) -> bool:
        """Queue an event for an observer, or count it as missed; False where the observer is gone. frame: the event encoded."""
        try:
            self._tell_missed(identity, told.event.at_s)
            self.socket.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.Again:
            self._missed[identity] = self._missed.get(identity, 0) + 1
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._missed.pop(identity, None)
            return False
        return True

    def catch_up(self, now_s: float) -> None:
        """Tell those that have missed events and read again; no event may follow that would."""
        for identity in list(self._missed):
            try:
                self._tell_missed(identity, now_s)
            except zmq.Again:
                continue
            except zmq.ZMQError:  # it is gone: the next event finds that out
                del self._missed[identity]

    def _tell_missed(self, identity: bytes, at_s: float) -> None:
        if missed := self._missed.get(identity):
            event = MissedEvent(at_s=at_s, events=missed)
            self.socket.send_multipart([identity, m.encode(m.Told(event))], zmq.NOBLOCK)
            del self._missed[identity]
