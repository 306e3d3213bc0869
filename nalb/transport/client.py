"""A process's end of the control plane: one thread, two DEALER sockets, one limit of silence.

The thread sends the process's samples every heartbeat, hands arriving messages over, and ends the process with one line
when the coordinator says Abort or falls silent: the main thread may be stuck inside ps-lite, where nothing can be raised.
Other threads talk to it through queues, by `send`, `note`, `close` and `wait_for`; sockets and state are touched by the thread
alone.

All messages use one connection. Where it breaks, libzmq connects anew, and what was on it is sent again (conversations.py).
But TCP repeats what a link has lost ever more rarely: after an outage of 4 s it may be silent for 7. So a second connection
carries signs of life alone. libzmq's heartbeats break it where the link is lost, and libzmq connects anew until the link is
back. Where the first connection is silent for as long as a process may be, while the second one is not, the first one is made
anew.
"""

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypedDict, TypeVar, cast

import zmq

from nalb.errors import PeerError
from nalb.failures import Cause, Failure, Phase, carried
from nalb.process.available_cores import Cores
from nalb.process.last_words import die
from nalb.protocol import messages as m
from nalb.transport.conversations import Connection, bound
from nalb.transport.curvezmq import secure_client
from nalb.transport.keys import NodeKeys
from nalb.transport.tcp_info import Ways

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in `typing`

T = TypeVar("T", bound=m.Message)
C = TypeVar("C", bound=m.Message)
Drain = Callable[[], tuple[list[m.SampleRow], int]]  # at most ROWS_MOST
SIGNS = 6  # of life on the second connection, within the silence that is allowed; fewer where heartbeats are rare
TTL_MOST_MS = 6_553_500  # ZeroMQ sends it as tenths of seconds in 16 bits
# Heartbeats that a report waits beyond its time for the coordinator's Alive, which it answers: to wake costs as much as to report.
UNASKED = 0.5


class Noted(TypedDict, total=False):
    """What other threads tell of this process, for its reports."""

    exchanging: int  # the iteration whose sums are under way; -1: none
    computed: int  # the last iteration whose gradients are complete
    calls: int  # of the script, so far
    ready: int  # of these, up to the last direct one whose arrays are computed
    summed: int  # up to the last direct one whose sums are back
    ways: Ways  # to other nodes


class _End(NamedTuple):
    """The last that the thread is told. What answers it is not heard, and so cannot change this process's own exit code."""

    last_word: m.Message | None


class Client:
    """Connects to the coordinator and keeps the promise of liveness."""

    def __init__(
        self,
        endpoint: str,
        hello: m.Hello,
        drain: Drain,
        silence_s: float,
        startup_s: float,
        keys: NodeKeys | None = None,
    ):
        """drain is called on the client's thread and must not block."""
        self._endpoint, self._hello, self._drain = endpoint, hello, drain
        self._silence_s, self._startup_s, self._heartbeat_s = silence_s, startup_s, 0.1
        self._keys, self._cores = keys, Cores()
        self._outbox: queue.SimpleQueue[m.Message | Noted | _End] = queue.SimpleQueue()
        self._noted: Noted = {
            "exchanging": -1, "computed": -1, "calls": 0, "ready": 0, "summed": 0, "ways": Ways(),
        }  # fmt: skip
        self._arrived = threading.Condition()
        self._inbox: list[m.Message] = []
        self._handlers: dict[type[m.Message], Callable[[m.Message], None]] = {}
        self._welcome: m.Welcome | None = None
        self._next_report_s = 0.0
        self._context = zmq.Context()
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_out.bind("inproc://wake")
        self._wake_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="nalb-control", daemon=True)
        self._thread.start()

    def send(self, message: m.Message, waits: bool = False) -> None:
        """Queue a message; any thread. waits: it goes with the next sign of life, or with what is sent before that."""
        self._outbox.put(_cut_to_size(message))
        if not waits:
            self._wake()

    def note(self, **news: "Unpack[Noted]") -> None:
        """Let the next report tell it; any thread."""
        self._outbox.put(news)

    def on(self, kind: type[T], handler: Callable[[T], None]) -> None:
        """From now on such messages go to `handler` in place of the inbox, on the client's thread, which it must not block.

        Those that have come already go there at once, in their order.
        """
        handle = cast(Callable[[m.Message], None], handler)
        with self._arrived:
            self._handlers[kind] = handle
            early = [message for message in self._inbox if isinstance(message, kind)]
            self._inbox = [message for message in self._inbox if not isinstance(message, kind)]
            for message in early:
                handle(message)

    def wait_for(self, kind: type[T], matches: Callable[[T], bool] = lambda _: True) -> T:
        """Block until such a message is there, and take it. The thread ends the process when the coordinator is silent."""

        def choose(inbox: list[m.Message]) -> m.Message | None:
            found = (i for i, message in enumerate(inbox) if isinstance(message, kind) and matches(message))
            index = next(found, None)
            return None if index is None else inbox.pop(index)

        return cast(T, self.wait_until(choose))

    def wait_until(self, choose: Callable[[list[m.Message]], C | None]) -> C:
        """Block until `choose` takes a message out of the inbox, and return that."""
        with self._arrived:
            while (chosen := choose(self._inbox)) is None:
                self._arrived.wait(timeout=1.0)
            return chosen

    def failure(self, cause: Cause, detail: str, phase: Phase | None = None, iteration: int | None = None) -> Failure:
        """A failure of this process."""
        role, node = self._hello.role, self._hello.node
        return Failure(cause=cause, detail=detail, role=role, node=node, phase=phase, iteration=iteration)

    def fail(self, failure: Failure, exit_code: int = PeerError.exit_code) -> NoReturn:
        """End this process, and the job, if the coordinator can be told."""
        self.close(m.Failed(failure))
        die(failure, exit_code)

    def close(self, last_word: m.Message | None = None) -> None:
        """Say the last word, if there is one left to say, and end the thread."""
        self._outbox.put(_End(None if last_word is None else _cut_to_size(last_word)))
        self._wake()
        self._thread.join(timeout=5.0)
        with self._wake_lock:
            self._wake_out.close(linger=0)
        if not self._thread.is_alive():
            self._context.term()  # when the last word is on its way, or its LINGER is over

    def _wake(self) -> None:
        """Never blocks: a thread that has ended, or that is behind with its wake-ups, needs no other."""
        with self._wake_lock, suppress(zmq.Again):
            if not self._wake_out.closed:
                self._wake_out.send(b"", zmq.NOBLOCK)

    # ---- the thread

    def _run(self) -> None:
        try:
            self._loop()
        except PeerError as error:
            die(self.failure(Cause.PROTOCOL, f"cannot go on: {error}"))
        except Exception as error:  # the control plane is broken: without it the job would hang
            die(self.failure(Cause.PROCESS, f"has lost its control plane: {type(error).__name__}: {error}"))

    def _loop(self) -> None:
        identity = f"{self._hello.role}-{self._hello.node}-{os.getpid()}"
        direct = Connection(lambda: self._connect_directly(identity))
        life: zmq.Socket[bytes] | None = None  # the second connection
        wake = self._context.socket(zmq.PAIR)
        wake.connect("inproc://wake")
        poller = zmq.Poller()
        poller.register(direct.socket, zmq.POLLIN)
        poller.register(wake, zmq.POLLIN)
        direct.say(self._hello)
        last_heard_s = signed_s = time.monotonic()
        self._next_report_s = last_heard_s + self._heartbeat_s
        while True:
            timeout_ms = max(0.0, self._next_report_s - time.monotonic()) * 1000
            ready = dict(poller.poll(int(timeout_ms)))
            now_s = time.monotonic()
            if wake in ready:
                wake.recv()
            report_due = now_s >= self._next_report_s
            urgent = is_over = False
            while not is_over and not self._outbox.empty():
                message = self._outbox.get()
                if isinstance(message, dict):
                    self._noted.update(message)
                    continue
                if isinstance(message, _End):
                    is_over = True
                    if message.last_word is None:
                        break
                    message = message.last_word
                if isinstance(message, m.Done | m.Collected | m.Goodbye):  # its samples first
                    report = self._report(now_s)
                    if report.samples or not isinstance(message, m.Done):
                        direct.say(report)
                        urgent = True
                direct.say(message)
            if report_due or urgent:
                if not urgent:
                    report = self._report(now_s)
                    direct.say(report, is_kept=bool(report.samples))
                self._next_report_s = now_s + (1 + UNASKED) * self._heartbeat_s
            if is_over:
                direct.socket.close()
                wake.close()
                if life is not None:
                    life.close()
                return
            if life is not None and life in ready:
                life.recv()
                last_heard_s = now_s
            if life is not None and report_due and now_s - signed_s >= self._sign_s:
                with suppress(zmq.Again):  # libzmq still connects anew
                    life.send(m.encode(m.Still(identity)), zmq.NOBLOCK)
                    signed_s = now_s
            if direct.socket in ready:
                for arrived in direct.hear(now_s):
                    self._handle(arrived)
                last_heard_s = max(last_heard_s, direct.heard_s)
            if self._welcome and life is None:
                life = self._connect_for_life()
                poller.register(life, zmq.POLLIN)
            limit_s = self._silence_s if self._welcome else self._startup_s
            if now_s - last_heard_s > limit_s:
                moment: tuple[Phase | None, int | None] = (Phase.START, None)
                if self._welcome:
                    exchanging = self._noted["exchanging"]
                    moment = (Phase.EXCHANGE, exchanging) if exchanging >= 0 else (None, None)
                detail = (
                    f"has heard nothing from the coordinator at {self._endpoint} for {limit_s:g} s: is the scheduler's process "
                    "alive and its port reachable?"
                )
                die(self.failure(Cause.NO_COORDINATOR, detail, *moment))
            if now_s - direct.heard_s > self._silence_s:
                poller.unregister(direct.socket)
                direct.make_anew(now_s)
                poller.register(direct.socket, zmq.POLLIN)

    @property
    def _sign_s(self) -> float:
        """Between signs of life on the second connection; as long without an answer breaks it."""
        return max(self._silence_s / SIGNS, 2 * self._heartbeat_s)

    def _connect_directly(self, identity: str) -> "zmq.Socket[bytes]":
        options: dict[zmq.SocketOption, int | bytes] = {zmq.LINGER: 2000, zmq.IDENTITY: identity.encode()}
        return self._connect(options)

    def _connect_for_life(self) -> "zmq.Socket[bytes]":
        sign_ms = int(self._sign_s * 1000)
        waits = dict.fromkeys((zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT), sign_ms // 2)
        waits |= dict.fromkeys((zmq.CONNECT_TIMEOUT, zmq.HANDSHAKE_IVL), sign_ms)
        ttl_ms = min(SIGNS * sign_ms, TTL_MOST_MS)  # then the coordinator's end goes too
        return self._connect(waits | {zmq.HEARTBEAT_TTL: ttl_ms, zmq.IMMEDIATE: 1, zmq.LINGER: 0})

    def _connect(self, options: Mapping[zmq.SocketOption, int | bytes]) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, 0)  # while nobody takes anything, the thread must still see that time is over
        for option, value in options.items():
            socket.setsockopt(option, value)
        bound(socket, self._silence_s)
        if self._keys is not None:
            secure_client(socket, self._keys, self._endpoint)
        socket.connect(self._endpoint)
        return socket

    def _report(self, now_s: float) -> m.Report:
        rows, drops = self._drain() if self._welcome else ([], 0)
        used_s, cores = time.process_time(), self._cores.now()
        now, ways = self._noted, self._noted["ways"]
        return m.Report(
            now_s, now["exchanging"], rows, drops, now["calls"], now["computed"], *ways, used_s, cores,
            ready=now["ready"], summed=now["summed"],
        )  # fmt: skip

    def _handle(self, message: m.FromCoordinator) -> None:
        if isinstance(message, m.Alive):
            self._next_report_s -= self._heartbeat_s
            return
        if isinstance(message, m.Abort):
            die(message.failure)
        if isinstance(message, m.Collect):
            self.send(m.Collected(message.iteration))
            return
        if isinstance(message, m.Welcome):
            if message.version != m.VERSION:
                raise PeerError(
                    f"the coordinator speaks version {message.version}, this process {m.VERSION}: install one nalb"
                )
            self._welcome = message
            self._heartbeat_s, self._silence_s = message.heartbeat_s, message.silence_s
        with self._arrived:
            if handler := self._handlers.get(type(message)):
                handler(message)
                return
            self._inbox.append(message)
            self._arrived.notify_all()


def _cut_to_size(message: m.Message) -> m.Message:
    """MXNet's errors may carry a long trace."""
    return m.Failed(carried(message.failure)) if isinstance(message, m.Failed) else message
