"""How the launcher, compare and a live view follow a job: an observer's socket on the coordinator's ipc address."""

import time
from collections.abc import Iterator
from types import TracebackType

import zmq

from nalb.events import AnyEvent
from nalb.protocol import messages as m


def arriving(socket: "zmq.Socket[bytes]", for_s: float) -> Iterator[list[bytes]]:
    """The frames of each message that arrives within the next `for_s` seconds."""
    end_s = time.monotonic() + for_s
    while (left_s := end_s - time.monotonic()) > 0:
        if socket.poll(max(1, int(left_s * 1000))):
            yield socket.recv_multipart()


class Observer:
    """Sees every event; may set the configured rates and, in a held job, ask for iterations. One thread only."""

    def __init__(self, address: str):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.connect(address)
        self.send(m.Observe(m.VERSION))

    def __enter__(self) -> "Observer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()

    def send(self, message: m.Message) -> None:
        """Ask for something."""
        self._socket.send(m.encode(message))

    def events(self, for_s: float) -> Iterator[AnyEvent]:
        """The events that arrive within the next `for_s` seconds."""
        for (frame,) in arriving(self._socket, for_s):
            message = m.decode_at_client(frame)
            if isinstance(message, m.Told):
                yield message.event
