"""Follows a job, for the launcher, compare or a live view: an observer's socket, connected to the coordinator's ipc address."""

import math
import time
from collections.abc import Iterator
from types import TracebackType

import zmq

from nalb.errors import MachineError
from nalb.events import AnyEvent, MissedEvent
from nalb.protocol import wire

_decoder = wire.Decoder(wire.TO_OBSERVERS)

LAST_MS = 2000  # the longest wait for the end of the connection to a coordinator that has ended


def arriving(socket: "zmq.Socket[bytes]", for_s: float) -> Iterator[list[bytes]]:
    """Yield the frames of each message that arrives within the next `for_s` seconds; with 0 of those that have arrived."""
    end_s = time.monotonic() + for_s
    while socket.poll(max(0, math.ceil((end_s - time.monotonic()) * 1000))):
        yield socket.recv_multipart()


class Observer:
    """Receives every event of a job; may set the configured rates and, in a held job, order iterations. For one thread only."""

    def __init__(self, address: str, may_miss: bool = False):
        """may_miss: the caller can do without events that were dropped because it read too slowly; a MissedEvent counts them."""
        self._may_miss = may_miss
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._ends = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self.send(wire.Observe(wire.VERSION))

    def __enter__(self) -> "Observer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.disable_monitor()
        self._ends.close()
        self._socket.close()  # the coordinator notices it when it sends the next event
        self._context.term()

    def send(self, message: wire.Message) -> None:
        """Send the coordinator an observer's message."""
        self.send_frame(wire.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Send the coordinator an encoded message."""
        self._socket.send(frame)

    def frames(self, for_s: float) -> Iterator[bytes]:
        """Yield the messages that arrive within the next `for_s` seconds, encoded; with 0 those that have arrived."""
        for (frame,) in arriving(self._socket, for_s):
            yield frame

    def last_frames(self) -> Iterator[bytes]:
        """Yield the messages left once the coordinator has ended: the connection's end comes after all that it carried."""
        self._ends.poll(LAST_MS)
        return self.frames(0.0)

    def events(self, for_s: float) -> Iterator[AnyEvent]:
        """Yield the events that arrive within the next `for_s` seconds. Raises MachineError for missed events unless `may_miss`."""
        return self._events_of(self.frames(for_s))

    def last_events(self) -> Iterator[AnyEvent]:
        """Yield the events left once the coordinator has ended. Raises MachineError as `events` does."""
        return self._events_of(self.last_frames())

    def _events_of(self, frames: Iterator[bytes]) -> Iterator[AnyEvent]:
        for frame in frames:
            message = _decoder.decode(frame, "the coordinator")
            if isinstance(message, wire.Told):
                if isinstance(message.event, MissedEvent) and not self._may_miss:
                    raise MachineError(
                        f"{message.event.events} events of the job were lost: this process was stopped, or this machine is too "
                        "busy; run it again with less beside it"
                    )
                yield message.event
