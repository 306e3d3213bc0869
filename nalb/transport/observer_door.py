"""The coordinator's socket for observers. Each observer has a bounded queue, so one that stops reading does not burden the job.

Events for which the queue has no room are dropped and counted; the observer gets the count as soon as there is room again.
The job's own processes have another socket with unbounded queues, because no message to them may be lost.
"""

import errno
import os
from collections.abc import Iterator

import zmq

from nalb.errors import InputError
from nalb.events import MissedEvent
from nalb.protocol import wire

QUEUE_BYTES = 16_000_000  # the approximate size of the events that may wait for one observer
EVENT_BYTES = 400  # an event's size for each process of the job: 4 kB with 12 nodes (docs/run-files.md)
QUEUE_LEAST = 16  # the least number of events that may wait for an observer
SOCKET_PATH_BYTES = 107  # the length of a Unix socket's sun_path less the zero byte at its end
TAKEN_AT_ONCE = 100  # messages read in a row: observers that send too many must not keep the job waiting


class ObserverDoor:
    """The observers' socket, bound on an ipc address, and the number of events that each observer has missed."""

    def __init__(self, socket: "zmq.Socket[bytes]", address: str, processes: int):
        """Bind `socket`, a ROUTER, to `address`. processes: the number of the job's processes. Raises InputError.

        The mode of the socket's file keeps other users out, since anyone who may write to the file can steer the job.
        """
        path = address.removeprefix("ipc://")
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
            raise InputError(
                f"NALB_OBSERVERS: the socket path {path} is longer than {SOCKET_PATH_BYTES} bytes: use a shorter run directory"
            )
        self.socket = socket
        self.missed: dict[bytes, int] = {}  # missed events, by the observers that have not been told yet
        socket.setsockopt(zmq.SNDHWM, max(QUEUE_LEAST, QUEUE_BYTES // (EVENT_BYTES * processes)))
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # without it, messages that cannot be sent are dropped silently
        umask = os.umask(0o177)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise InputError(
                f"NALB_OBSERVERS: no socket can be made at {path} ({error.strerror}): choose an --out on a local disk"
            ) from None
        finally:
            os.umask(umask)

    def arrived(self) -> Iterator[list[bytes]]:
        """Yield the frames of the messages that have arrived, at most TAKEN_AT_ONCE messages."""
        for _ in range(TAKEN_AT_ONCE):
            try:
                yield self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def tell(self, identity: bytes, told: wire.Told, frame: zmq.Frame) -> bool:
        """Queue an event for an observer, or count it as missed; return whether the observer is there. frame: `told`, encoded."""
        try:
            self._tell_missed(identity, told.event.at_s)
            self.socket.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.Again:
            self.missed[identity] = self.missed.get(identity, 0) + 1
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self.missed.pop(identity, None)
            return False
        return True

    def catch_up(self, now_s: float) -> None:
        """Tell observers that have missed events and read again how many they missed; the job may have no next event to do so."""
        for identity in list(self.missed):
            try:
                self._tell_missed(identity, now_s)
            except zmq.Again:
                continue
            except zmq.ZMQError:  # the observer is gone, which tell() notices at the next event
                del self.missed[identity]

    def _tell_missed(self, identity: bytes, at_s: float) -> None:
        if missed := self.missed.get(identity):
            event = MissedEvent(at_s=at_s, events=missed)
            self.socket.send_multipart([identity, wire.encode(wire.Told(event))], zmq.NOBLOCK)
            del self.missed[identity]
