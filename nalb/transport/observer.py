"""Follows a job, for the launcher, compare or a live view: an observer's socket, connected to the coordinator's ipc address."""

import time
from collections.abc import Iterator
from types import TracebackType

import zmq

from nalb.errors import MachineError
from nalb.events import AnyEvent, MissedEvent
from nalb.protocol import wire

_decoder = wire.Decoder(wire.TO_OBSERVERS)


def arriving(socket: "zmq.Socket[bytes]", for_s: float) -> Iterator[list[bytes]]:
    """Yield the frames of each message that arrives within the next `for_s` seconds."""
    end_s = time.monotonic() + for_s
    while (left_s := end_s - time.monotonic()) > 0:
        if socket.poll(max(1, int(left_s * 1000))):
            yield socket.recv_multipart()


class Observer:
    """Receives every event of a job; may set the configured rates and, in a held job, order iterations. For one thread only."""

    def __init__(self, address: str, may_miss: bool = False):
        """may_miss: the caller can do without events that were dropped because it read too slowly; a MissedEvent counts them."""
        self._may_miss = may_miss
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.connect(address)
        self.send(wire.Observe(wire.VERSION))

    def __enter__(self) -> "Observer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()  # the coordinator notices it when it sends the next event
        self._context.term()

    def send(self, message: wire.Message) -> None:
        """Send the coordinator an observer's message."""
        self._socket.send(wire.encode(message))

    def events(self, for_s: float) -> Iterator[AnyEvent]:
        """Yield the events that arrive within the next `for_s` seconds. Raises MachineError for missed events unless `may_miss`."""
        for (frame,) in arriving(self._socket, for_s):
            message = _decoder.decode(frame, "the coordinator")
            if isinstance(message, wire.Told):
                if isinstance(message.event, MissedEvent) and not self._may_miss:
                    raise MachineError(
                        f"{message.event.events} events of the job were lost: this process was stopped, or this machine is too "
                        "busy; run it again with less beside it"
                    )
                yield message.event
