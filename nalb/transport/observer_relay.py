"""Serves a job's observers in the launcher, where the coordinator's own socket is on another machine, or no coordinator runs.

The launcher's observers then connect to the relay as they would to the coordinator. It tells them each event and hands their
messages on. It also appends each event to the run's file, which the coordinator does where it runs on this machine. The moments of
a coordinator's events are put on this machine's clock: failures are told by the launcher, and another machine may coordinate a
restart. They are late by the time that the first event, a StateEvent of that moment, was on the way.

On the coordinator's machine a Carrier has the other end. Between the two, frames travel in lines of text.
"""

import base64
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import zmq

from nalb.errors import MachineError
from nalb.events import AnyEvent, FailureEvent, MissedEvent, ReadyEvent, StateEvent, encode_line, shifted
from nalb.process.line_file import LineFile
from nalb.protocol import wire
from nalb.services import composition
from nalb.transport.observer import Observer
from nalb.transport.observer_door import ObserverDoor

LAST_WORDS_MS = 500  # the time that the last events may take to leave
TURN_S = 0.05  # the longest time between two looks at the observers' socket
PART_BYTES = (
    2048  # of a frame in a line: in base64, with what is around it, it is below PIPE_BUF, 4096, which no write tears
)
LAST_S = 3.0  # the longest wait for the last frames to leave
# The launcher appends the failure by itself; the other events are for observers alone.
NOT_FILED = (FailureEvent, MissedEvent, StateEvent)


class Relay:
    """The observers' socket of the launcher. `relay` and `tell` may be called from any thread, all else from one thread only."""

    def __init__(self, address: str, samples: Path, processes: int):
        """Bind `address`. samples: the run's file of events; processes: how many the job has. Raises InputError, OSError."""
        # events that the launcher tells, and frames with the time of their arrival
        self._arrived: queue.SimpleQueue[AnyEvent | tuple[bytes, float]] = queue.SimpleQueue()
        self._offset_s: float | None = None  # from the coordinator's clock to ours; None: no event has come
        self._hand_on: Callable[[bytes], None] = lambda _: None
        self._observers: dict[bytes, None] = {}
        self._state = StateEvent(at_s=time.monotonic(), phase="GATHER", nodes=[])
        self._samples = samples
        with ExitStack() as stack:
            socket = stack.enter_context(stack.enter_context(zmq.Context()).socket(zmq.ROUTER))
            socket.setsockopt(zmq.LINGER, LAST_WORDS_MS)
            self._door = ObserverDoor(socket, address, processes)
            self._file = stack.enter_context(LineFile(samples))
            self._stack = stack.pop_all()

    def __enter__(self) -> "Relay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            for _ in self.last_events():
                pass

    def connect(self, hand_on: Callable[[bytes], None]) -> None:
        """Hand the observers' messages on by this function; before that nobody takes them."""
        self._hand_on = hand_on

    def relay(self, frame: bytes) -> None:
        """Hand a message of the coordinator on to its observers."""
        self._arrived.put((frame, time.monotonic()))

    def tell(self, event: AnyEvent) -> None:
        """Take an event that the launcher itself has seen."""
        self._arrived.put(event)

    def send(self, message: wire.FromObserver) -> None:
        """Send the coordinator an observer's message."""
        self._hand_on(wire.encode(message))

    def events(self, for_s: float) -> Iterator[AnyEvent]:
        """Yield the events of the next `for_s` seconds; with 0 those that have arrived. Raises MachineError for a full disk."""
        end_s = time.monotonic() + for_s
        while True:
            self._serve()
            try:
                arrived = self._arrived.get(timeout=max(0.0, min(TURN_S, end_s - time.monotonic())))
            except queue.Empty:
                if time.monotonic() >= end_s:
                    return
                continue
            event = self._event_of(*arrived) if isinstance(arrived, tuple) else arrived
            if event is not None:
                self._tell(wire.Told(event))
                yield event

    def last_events(self) -> Iterator[AnyEvent]:
        """Yield the events left once the job's processes have ended."""
        return self.events(0.0)

    def _event_of(self, frame: bytes, arrived_s: float) -> AnyEvent | None:
        """The coordinator's event, on this machine's clock; None for a message that is no event."""
        message = composition.decode_at_client(frame)
        if not isinstance(message, wire.Told):
            return None
        if self._offset_s is None:
            self._offset_s = arrived_s - message.event.at_s
        return shifted(message.event, self._offset_s)

    def _serve(self) -> None:
        """Greet new observers with the job's state, and hand on what observers say."""
        for identity, *rest in self._door.arrived():
            if identity not in self._observers:
                self._observers[identity] = None
                state = wire.Told(self._state)
                self._door.tell(identity, state, zmq.Frame(wire.encode(state)))
            for frame in rest:
                self._hand_on(frame)
        self._door.catch_up(time.monotonic())

    def _tell(self, told: wire.Told) -> None:
        event = told.event
        if isinstance(event, StateEvent):
            self._state = event
            return
        if isinstance(event, ReadyEvent):
            self._state = StateEvent(at_s=event.at_s, phase="REGISTER", nodes=event.nodes)
        frame = zmq.Frame(wire.encode(told))
        for identity in list(self._observers):
            if not self._door.tell(identity, told, frame):
                del self._observers[identity]
        if not isinstance(event, NOT_FILED):
            try:
                self._file.append(encode_line(event))
            except OSError as error:
                raise MachineError(f"{self._samples}: {error.strerror}: make room or choose another --out") from None


class Carrier:
    """Carries frames between the coordinator's socket for observers and the launcher, during the with block.

    A thread does it, since a write to a launcher that is gone may block for ever, while the agent has to notice that it is gone.
    """

    def __init__(self, address: str, write: Callable[[bytes, bool], None]):
        """write: writes a part of a frame to the launcher, and whether it is the frame's last part."""
        self._address, self._write, self._rest = address, write, b""
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._carry, name="observers", daemon=True)

    def __enter__(self) -> "Carrier":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the last frames leave."""
        self._is_over.set()
        self._thread.join(LAST_S)

    def feed(self, data: bytes) -> None:
        """Take what the launcher wrote: each line that is not empty has a frame."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in filter(None, lines):
            self._orders.put(base64.b64decode(line))

    def _carry(self) -> None:
        with Observer(self._address) as observer:
            while not self._is_over.is_set():
                while not self._orders.empty():
                    observer.send_frame(self._orders.get())
                for frame in observer.frames(TURN_S):
                    self._pass_on(frame)
            for frame in observer.last_frames():
                self._pass_on(frame)

    def _pass_on(self, frame: bytes) -> None:
        parts = [frame[begin : begin + PART_BYTES] for begin in range(0, len(frame), PART_BYTES)]
        for number, part in enumerate(parts, 1):
            self._write(part, number == len(parts))
