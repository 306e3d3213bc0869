"""A process's end of the control plane: one thread with two DEALER sockets and a limit on the coordinator's silence.

The thread sends the process's samples every heartbeat and hands over messages that arrive. It ends the process with one line
when the coordinator sends Abort or falls silent, because the main thread may be stuck inside ps-lite, where nothing can be
raised. Other threads talk to it through queues, by `send`, `note`, `close` and `wait_for`; only the thread touches sockets and
state.

All messages use the first connection. When it breaks, libzmq connects anew, and the lost messages are sent again
(conversations.py). But TCP repeats lost packets ever more rarely: after an outage of 4 s it may be silent for 7 s. So a second
connection carries signs of life alone. libzmq's heartbeats break it when the link is lost, and libzmq connects anew until the
link is back. If the first connection is silent for as long as a process may be, while the second is not, the first is made anew.
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
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.settings import Settings
from nalb.transport.conversations import Connection, ReplacedError, bound
from nalb.transport.curvezmq import secure_client
from nalb.transport.keys import NodeKeys, own_keys
from nalb.transport.tcp_info import Ways

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in `typing`

T = TypeVar("T", bound=wire.Message)
C = TypeVar("C", bound=wire.Message)
SIGNS = 6  # signs of life on the second connection within the allowed silence; fewer where heartbeats are rare
TTL_MOST_MS = 6_553_500  # ZeroMQ sends this time as tenths of seconds in 16 bits
# A report waits up to this many heartbeats beyond its time for the coordinator's Alive, and then answers it: waking the thread
# costs as much as a report.
UNASKED = 0.5


class Drained(NamedTuple):
    """New samples of one iteration, at most ROWS_MOST."""

    rows: list[wire.SampleRow]
    drops: int = 0  # samples that were lost so far
    iteration: int = -1  # -1: not known


Drain = Callable[[], Drained]


class Noted(TypedDict, total=False):
    """The state of this process that other threads note for its reports."""

    exchanging: int  # the iteration whose sums are under way; -1: none
    computed: int  # the last iteration whose gradients are complete
    calls: int  # the script's calls so far
    ready: int  # the script's calls up to the last one whose arrays are computed; MXNet tells of direct ones
    summed: int  # likewise, whose sums are back
    by_gloo: int  # the script's collectives that are gloo's alone, so far
    is_ordered: bool  # the order of these and of `calls` is alike on all ranks that make the same calls
    ways: Ways  # the connections to other nodes


class _End(NamedTuple):
    """The thread's order to end. The thread does not read the answer to its last word, so no answer changes the exit code."""

    last_word: wire.Message | None


class Client:
    """Connects a process to the coordinator and sends its signs of life. Methods may be called from any thread."""

    def __init__(
        self,
        endpoint: str,
        hello: wire.Hello,
        drain: Drain,
        silence_s: float,
        startup_s: float,
        keys: NodeKeys | None = None,
    ):
        """`drain` is called on the client's thread and must not block. `keys` is None in a job without encryption."""
        self._endpoint, self._hello, self._drain = endpoint, hello, drain
        self._silence_s, self._startup_s, self._heartbeat_s = silence_s, startup_s, 0.1
        self._keys, self._cores = keys, Cores()
        self._outbox: queue.SimpleQueue[wire.Message | Noted | _End] = queue.SimpleQueue()
        self._noted: Noted = {
            "exchanging": -1, "computed": -1, "calls": 0, "ready": 0, "summed": 0, "by_gloo": 0,
            "is_ordered": True, "ways": Ways(),
        }  # fmt: skip
        self._arrived = threading.Condition()
        self._inbox: list[wire.Message] = []
        self._handlers: dict[type[wire.Message], Callable[[wire.Message], None]] = {}
        self._welcome: wire.Welcome | None = None
        self._next_report_s = 0.0
        self._context = zmq.Context()
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_out.bind("inproc://wake")
        self._wake_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="nalb-control", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, settings: Settings, hello: wire.Hello, drain: Drain) -> "Client":
        """Connect as the process's settings say, with its node's keys where the job has them."""
        keys = own_keys(settings)
        return cls(settings.endpoint, hello, drain, settings.silence_s, settings.startup_s, keys)

    def send(self, message: wire.Message, waits: bool = False) -> None:
        """Queue a message; any thread may call this. waits: the thread is not woken; the message may wait for the next report."""
        self._outbox.put(_cut_to_size(message))
        if not waits:
            self._wake()

    def note(self, **news: "Unpack[Noted]") -> None:
        """Set values for the next report; any thread may call this."""
        self._outbox.put(news)

    def on(self, kind: type[T], handler: Callable[[T], None]) -> None:
        """Give all further messages of this kind to `handler`, not to the inbox; it runs on the client's thread and must not block.

        The messages of this kind that are in the inbox already go to it at once, in their order.
        """
        handle = cast(Callable[[wire.Message], None], handler)
        with self._arrived:
            self._handlers[kind] = handle
            early = [message for message in self._inbox if isinstance(message, kind)]
            self._inbox = [message for message in self._inbox if not isinstance(message, kind)]
            for message in early:
                handle(message)

    def wait_for(self, kind: type[T], matches: Callable[[T], bool] = lambda _: True) -> T:
        """Block until a matching message is in the inbox, and take it. If the coordinator falls silent, the process ends."""

        def choose(inbox: list[wire.Message]) -> wire.Message | None:
            found = (i for i, message in enumerate(inbox) if isinstance(message, kind) and matches(message))
            index = next(found, None)
            return None if index is None else inbox.pop(index)

        return cast(T, self.wait_until(choose))

    def wait_until(self, choose: Callable[[list[wire.Message]], C | None]) -> C:
        """Block until `choose` takes a message out of the inbox, and return that message."""
        with self._arrived:
            while (chosen := choose(self._inbox)) is None:
                self._arrived.wait(timeout=1.0)
            return chosen

    def failure(self, cause: Cause, detail: str, phase: Phase | None = None, iteration: int | None = None) -> Failure:
        """Make a Failure of this process from its cause, a text for people, and the phase and iteration."""
        role, node = self._hello.role, self._hello.node
        return Failure(cause=cause, detail=detail, role=role, node=node, phase=phase, iteration=iteration)

    def fail(self, failure: Failure, exit_code: int = PeerError.exit_code) -> NoReturn:
        """End this process, and also the job if the failure reaches the coordinator."""
        self.close(wire.Failed(failure))
        die(failure, exit_code)

    def close(self, last_word: wire.Message | None = None) -> None:
        """Send the last word, if there is one, and end the thread."""
        self._outbox.put(_End(None if last_word is None else _cut_to_size(last_word)))
        self._wake()
        self._thread.join(timeout=5.0)
        with self._wake_lock:
            self._wake_out.close(linger=0)
        if not self._thread.is_alive():
            self._context.term()  # returns when the last word has left, or its LINGER is over

    def _wake(self) -> None:
        """Wake the thread, without blocking: a thread that has ended, or has wake-ups unread, needs no other."""
        with self._wake_lock, suppress(zmq.Again):
            if not self._wake_out.closed:
                self._wake_out.send(b"", zmq.NOBLOCK)

    # ---- the thread

    def _run(self) -> None:
        try:
            self._loop()
        except ReplacedError as error:
            die(self.failure(Cause.NO_COORDINATOR, f"cannot go on: {error}"))
        except PeerError as error:
            die(self.failure(Cause.PROTOCOL, f"cannot go on: {error}"))
        except Exception as error:  # without its control plane the job would hang
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
        last_heard_s = signed_s = now_s = time.monotonic()
        self._next_report_s = last_heard_s + self._heartbeat_s
        while True:
            due_s = max(self._next_report_s, now_s)
            timeout_ms = max(0.0, due_s - time.monotonic()) * 1000
            ready = dict(poller.poll(int(timeout_ms)))
            now_s = time.monotonic()
            if (overslept_s := now_s - due_s) > self._heartbeat_s:  # stopped, or without a CPU
                last_heard_s += overslept_s
                direct.overslept(overslept_s)
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
                        direct.confirm()  # the coordinator stays until it knows that Farewell has come
                        break
                    message = message.last_word
                if isinstance(message, m.Done | m.Collected | wire.Goodbye):  # the samples go before these messages
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
                with suppress(zmq.Again):  # the second connection is broken, and libzmq connects anew
                    life.send(wire.encode(wire.Still(identity)), zmq.NOBLOCK)
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
                longer = "NALB_DEADLINE_S" if self._welcome else "NALB_STARTUP_S"
                detail = (
                    f"has heard nothing from the coordinator at {self._endpoint} for {limit_s:g} s: is its process alive and its "
                    f"port reachable? If its machine is overloaded, raise {longer}"
                )
                die(self.failure(Cause.NO_COORDINATOR, detail, *moment))
            if now_s - direct.heard_s > self._silence_s:
                poller.unregister(direct.socket)
                direct.make_anew(now_s)
                poller.register(direct.socket, zmq.POLLIN)

    @property
    def _sign_s(self) -> float:
        """Seconds between signs of life on the second connection; libzmq breaks it after this time without an answer."""
        return max(self._silence_s / SIGNS, 2 * self._heartbeat_s)

    def _connect_directly(self, identity: str) -> "zmq.Socket[bytes]":
        options: dict[zmq.SocketOption, int | bytes] = {zmq.LINGER: 2000, zmq.IDENTITY: identity.encode()}
        return self._connect(options)

    def _connect_for_life(self) -> "zmq.Socket[bytes]":
        sign_ms = int(self._sign_s * 1000)
        # a round trip is shorter than HEARTBEAT_TIMEOUT, or the connection could not last; a handshake takes several
        waits = dict.fromkeys((zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TIMEOUT, zmq.CONNECT_TIMEOUT), sign_ms // 2)
        waits[zmq.HANDSHAKE_IVL] = sign_ms
        ttl_ms = min(SIGNS * sign_ms, TTL_MOST_MS)  # after this silence the coordinator's end closes too
        return self._connect(waits | {zmq.HEARTBEAT_TTL: ttl_ms, zmq.IMMEDIATE: 1, zmq.LINGER: 0})

    def _connect(self, options: Mapping[zmq.SocketOption, int | bytes]) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, 0)  # sends never block, so that the thread can check its limits
        for option, value in options.items():
            socket.setsockopt(option, value)
        bound(socket, self._silence_s)
        if self._keys is not None:
            secure_client(socket, self._keys, self._endpoint)
        socket.connect(self._endpoint)
        return socket

    def _report(self, now_s: float) -> wire.Report:
        rows, drops, iteration = self._drain() if self._welcome else Drained([])
        used_s, cores = time.process_time(), self._cores.now()
        now, ways = self._noted, self._noted["ways"]
        return wire.Report(
            now_s, now["exchanging"], rows, drops, now["calls"], now["computed"], *ways[:3], used_s, cores,
            ready=now["ready"], summed=now["summed"], resent=ways.resent, by_gloo=now["by_gloo"],
            iteration=iteration, is_ordered=now["is_ordered"],
        )  # fmt: skip

    def _handle(self, message: wire.Message) -> None:
        if isinstance(message, wire.Alive):
            self._next_report_s -= self._heartbeat_s
            return
        if isinstance(message, wire.Abort):
            die(message.failure)
        if isinstance(message, m.Collect):
            self.send(m.Collected(message.iteration))
            return
        if isinstance(message, wire.Welcome):
            if message.version != wire.VERSION:
                raise PeerError(
                    f"the coordinator speaks version {message.version}, this process {wire.VERSION}: install one nalb"
                )
            self._welcome = message
            self._heartbeat_s, self._silence_s = message.heartbeat_s, message.silence_s
        with self._arrived:
            if handler := self._handlers.get(type(message)):
                handler(message)
                return
            self._inbox.append(message)
            self._arrived.notify_all()


def _cut_to_size(message: wire.Message) -> wire.Message:
    """The message, with the text of a failure cut to a size that can be sent: MXNet's errors may have a long trace."""
    return wire.Failed(carried(message.failure)) if isinstance(message, wire.Failed) else message
