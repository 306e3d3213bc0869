"""`python -P -m nalb.plane.agent FD`: the process beside a training process that pushes, sums and answers for its rank.

FD is a socket to the training process (orders.py). One loop waits for everything: orders, slices, sums, and what threads of the
control plane hand over. It never waits for one thing alone. So a training process that computes for an hour, or holds its
interpreter's lock, keeps nobody from its agent's sums, and signs of life come from the agent.

The agent ends with its training process, which it watches by a pidfd: a forked child of that may hold the socket open. After Leave
it stays until all ranks have left, for they may still need its answers.
"""

import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import zmq

from nalb.errors import InputError, NalbError, PeerError, one_line
from nalb.failures import Cause, Failure, Phase, carried
from nalb.plane import orders
from nalb.plane.exchange import AgentExchange, SiteRanks
from nalb.plane.links import AgentLinks
from nalb.plane.memory import Segments
from nalb.plane.orders import FromAgent, FromTraining
from nalb.plane.pushing import Cut, SliceProgress
from nalb.plane.rendezvous import END, told_agents
from nalb.planning.slices import Tensor, build_layout, wire_dtype
from nalb.process import last_words
from nalb.process.exhaustion import raise_file_limit
from nalb.process.last_words import die
from nalb.process.own_program import own_argv
from nalb.process.proc import stopped_at
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.services.exchange.worker_protocol import WorkerProtocol
from nalb.settings import Settings, for_agents
from nalb.transport.client import Client
from nalb.transport.curvezmq import knock
from nalb.transport.keys import own_keys
from nalb.transport.reachability import Reachability, reach_kept

HEARD = (m.Setup, m.Plan, m.Finish, m.CallAgreed, wire.Farewell, m.Measure)
ORDERS_AT_ONCE = 64
CHECK_S = 0.5  # between looks at the training process
LAST_WORD_S = 1.0  # that a training process may take to read why its agent ends
# Freed memory stays with the process: sums of slices come and go, and fresh pages cost as much as the sums (mallopt(3)).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, KEPT_BYTES = -1, -3, (1 << 30, 32 << 20)


class _Joined(NamedTuple):
    """The control plane has welcomed this agent."""

    client: Client
    welcome: wire.Welcome


class Training:
    """The socket to the training process. What it does not take at once waits here, in order."""

    def __init__(self, one: socket.socket):
        self.socket = one
        self.waiting: deque[bytes] = deque()
        self._packet = bytearray(orders.PACKET_MOST)
        credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid = int.from_bytes(credentials[:4], sys.byteorder)
        seconds, rest = divmod(LAST_WORD_S, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(int(seconds), int(rest * 1e6)))

    def tell(self, order: FromAgent) -> None:
        """Send an order without waiting."""
        self.waiting.append(orders.encode(order))
        if len(self.waiting) == 1:
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it is taken."""
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):  # the pidfd tells of its end
            while self.waiting:
                self.socket.send(self.waiting[0], socket.MSG_DONTWAIT)
                self.waiting.popleft()

    def say_last(self, failure: Failure) -> bool:
        """Tell why the agent ends, from any thread; whether that was taken."""
        with suppress(OSError):
            return self.socket.send(orders.encode(orders.Ended(carried(failure)))) > 0
        return False

    def read(self) -> tuple[FromTraining, int | None] | None:
        """The next order, and the descriptor that came with it; None where none is there. Raises EOFError, DecodeError."""
        room = socket.CMSG_SPACE(4)
        try:
            size, control, _, _ = self.socket.recvmsg_into(
                [self._packet], room, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except ConnectionResetError:
            size, control = 0, []
        if not size:
            raise EOFError
        descriptor = int.from_bytes(control[0][2][:4], sys.byteorder) if control else None
        return orders.decode_at_agent(memoryview(self._packet)[:size]), descriptor


class Agent:
    """Serves one training process."""

    def __init__(self, training: Training):
        self._training = training
        self._start: orders.Start | None = None
        self._settings: Settings | None = None
        self._links: AgentLinks | None = None
        self._client: Client | None = None
        self._reach: Reachability | None = None
        self._exchange: AgentExchange | None = None
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._segments = Segments()
        self._protocol = WorkerProtocol()
        self._held: deque[FromTraining] = deque()  # orders that wait for an iteration's beginning or end
        self._tensors: list[m.TensorSpec] = []  # of the registration that comes or holds
        self._are_whole = False
        self._is_registered = False  # and no BreakOff since
        self._cut: Cut | None = None
        self._plan: m.Plan | None = None  # of the iteration that comes or is under way
        self._progress: SliceProgress | None = None  # of the iteration under way
        self._routes_told = -1  # the last iteration that the training process knows the route of
        self._begun = self._computed = 0  # its tensors; whose elements are all there
        self._started_s = self._computed_s = self._last_end_s = 0.0
        self._cpu_before_s = 0.0
        self._is_leaving = self._has_left = False
        self._checked_s = self._stopped_s = (
            0.0  # when the training process was last looked at, and since when it is stopped
        )
        self._stopped_ticks: int | None = None  # its CPU time where it is
        self._inbox: list[wire.Message] = []  # for WorkerProtocol
        self._news: queue.SimpleQueue[wire.Message | _Joined] = queue.SimpleQueue()  # of the client's thread
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._act: dict[Any, Callable[[], None]] = {}
        self._take: dict[type, Callable[[Any], None]] = {
            orders.Start: self._begin,
            orders.Peers: self._meet,
            orders.Announce: self._announce,
            orders.Register: self._register,
            orders.Sum: self._sum,
            orders.Ready: self._ready,
            orders.BreakOff: self._break_off,
            orders.RingDone: self._ring_done,
            orders.Leave: self._leave,
        }

    def run(self) -> None:
        """Serve until all ranks have left."""
        self._watch(self._training.socket.fileno(), self._read_orders)
        self._watch(self._bell, self._hear)
        try:
            self._watch(os.pidfd_open(self._training.pid), self._training_ended)
        except ProcessLookupError:
            self._training_ended()
        while not self._has_left:
            for one, _ in self._poller.poll(int(1000 * CHECK_S)):
                if act := self._act.get(one):  # an earlier one may have ended this one's watch
                    act()
            if self._exchange is not None:
                self._go_on()
            if self._training.waiting:
                self._training.flush()
            self._watch_writing()
            self._check_training()

    def _watch(self, one: Any, act: Callable[[], None]) -> None:
        self._act[one] = act
        self._poller.register(one, zmq.POLLIN)

    def _unwatch(self, one: Any) -> None:
        if self._act.pop(one, None) is not None:
            self._poller.unregister(one)

    def _watch_writing(self) -> None:
        """Wait for room in the training process's socket while orders wait for it."""
        one = self._training.socket.fileno()
        if one in self._act:
            self._poller.modify(one, zmq.POLLIN | (zmq.POLLOUT if self._training.waiting else 0))

    # ---- the end

    def fail(self, failure: Failure) -> NoReturn:
        """End this process, and with it the job."""
        if self._client is not None:
            self._client.fail(failure)
        die(failure)

    def _failure(self, cause: Cause, detail: str) -> Failure:
        phase = None if self._client is not None else Phase.START
        iteration = None
        if self._progress is not None:
            phase, iteration = Phase.EXCHANGE, self._protocol.iteration
        node = None if self._start is None else self._start.node
        return Failure(cause=cause, detail=detail, role="agent", node=node, phase=phase, iteration=iteration)

    def _check_training(self) -> None:
        """Fail where a signal has stopped the training process: the agent's signs of life go on, so all others would wait."""
        now_s = time.monotonic()
        if self._settings is None or self._is_leaving or now_s - self._checked_s < CHECK_S:
            return
        self._checked_s, ticks = now_s, stopped_at(self._training.pid)
        if ticks is None or ticks != self._stopped_ticks:
            self._stopped_ticks, self._stopped_s = ticks, now_s
        elif now_s - self._stopped_s > self._settings.silence_s:
            detail = (
                f"has a training process (pid {self._training.pid}) that a signal has stopped: let it go on, or end it"
            )
            self.fail(self._failure(Cause.STOPPED, detail))

    def _training_ended(self) -> None:
        if self._is_leaving:
            for one in [one for one, act in self._act.items() if act == self._training_ended]:
                self._unwatch(one)
            return
        detail = (
            f"lost its training process (pid {self._training.pid}), which ended without leaving the job: see its output"
        )
        self.fail(self._failure(Cause.ENDED, detail))

    def _leave(self, order: orders.Leave) -> None:
        self._is_leaving = True
        if order.failure is not None:
            self.fail(order.failure)
        if self._client is None:
            self._has_left = True
            return
        assert self._reach is not None
        self._reach.close()
        self._client.send(wire.Goodbye())

    def _part(self) -> None:
        """All ranks have left."""
        assert self._client is not None
        assert self._links is not None
        self._client.close()
        self._links.close()
        if (process := self._coordinator) is not None:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(END)
                process.stdin.close()
            process.wait()
        self._has_left = True

    # ---- joining the job

    def _begin(self, order: orders.Start) -> None:
        self._start = order
        settings = self._settings_at("tcp://0.0.0.0:0")
        told = told_agents(os.environ, order.size)
        self._links = AgentLinks(order.address, told[order.rank][1] if told else 0, own_keys(settings))
        if not order.starts_coordinator:
            self._training.tell(orders.Listening(self._links.address))
            return
        argv = own_argv("nalb.plane.coordinator", f"{order.address}:0", str(order.size), order.node)
        process = self._coordinator = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        self._watch(process.stdout.fileno(), self._coordinator_listens)

    def _coordinator_listens(self) -> None:
        assert self._coordinator is not None
        assert self._coordinator.stdout is not None
        assert self._start is not None
        assert self._links is not None
        self._unwatch(self._coordinator.stdout.fileno())
        port = os.read(self._coordinator.stdout.fileno(), 16).decode().strip()
        if not port:
            self.fail(self._failure(Cause.COORDINATOR, "has no coordinator, which failed at its start: see its error"))
        self._training.tell(orders.Listening(self._links.address, f"{self._start.address}:{port}"))

    def _settings_at(self, endpoint: str) -> Settings:
        assert self._start is not None
        return for_agents(os.environ, node=self._start.node, endpoint=endpoint, size=self._start.size, role="agent")

    def _meet(self, order: orders.Peers) -> None:
        assert self._start is not None
        assert self._links is not None
        hosts = frozenset(one.removeprefix("tcp://").rpartition(":")[0] for one in order.addresses)
        settings = self._settings_at(f"tcp://{order.coordinator}")
        if settings.addresses is None:
            settings = replace(settings, addresses=hosts)
        self._settings = settings
        self._links.connect(self._start.rank, order.addresses)
        threading.Thread(target=self._join, args=(settings, self._start.rank), name="nalb-join", daemon=True).start()

    def _join(self, settings: Settings, rank: int) -> None:
        """On a thread: come to the coordinator, and wait for all others."""
        try:
            with reach_kept(settings):
                if (keys := own_keys(settings)) is not None:
                    knock(keys, settings.endpoint, settings.startup_s)
                hello = wire.Hello(wire.VERSION, "agent", settings.node, rank, os.getpid())
                client = Client(settings.endpoint, hello, self._drain, settings.silence_s, settings.startup_s, keys)
                for kind in HEARD:
                    client.on(kind, self._put)
                welcome = client.wait_for(wire.Welcome)
            self._put(_Joined(client, welcome))
        except Exception as error:
            die(
                Failure(
                    cause=Cause.PROCESS, detail=one_line(error), role="agent", node=settings.node, phase=Phase.START
                )
            )

    def _drain(self) -> tuple[list[wire.SampleRow], int]:
        """On the client's thread: rows for a report."""
        assert self._links is not None
        rows = self._links.rows
        kept: list[wire.SampleRow] = []
        while rows and len(kept) < wire.ROWS_MOST:
            kept.append(wire.SampleRow(*rows.popleft()))
        return kept, 0

    def _put(self, news: wire.Message | _Joined) -> None:
        self._news.put(news)
        os.eventfd_write(self._bell, 1)

    def _hear(self) -> None:
        """Take in what threads have handed over."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while not self._news.empty():
            news = self._news.get()
            if isinstance(news, _Joined):
                self._joined(news)
            elif isinstance(news, m.CallAgreed):
                self._training.tell(orders.Agreed(news.number))
            elif isinstance(news, wire.Farewell):
                self._part()
                return
            elif not isinstance(news, m.Measure):  # its own plan says the same
                self._inbox.append(news)
                if self._plan is not None:
                    self._tell_routes(self._plan)

    def _joined(self, news: _Joined) -> None:
        assert self._start is not None
        assert self._settings is not None
        assert self._links is not None
        client = self._client = news.client
        self._reach = Reachability(self._settings, client.fail, lambda ways: client.note(ways=ways))
        ranks = SiteRanks.of(self._start.rank, self._start.size, news.welcome.levels)
        settings, links = self._settings, self._links
        exchange = self._exchange = AgentExchange(links, ranks, self._tell_summed, settings.verify_sums)
        self._watch(links.server, lambda: links.read_pushes(exchange))
        for rank, peer in links.peers.items():
            self._watch(peer.socket, links.reader_of_answers(rank, exchange))
        self._training.tell(orders.Joined())

    # ---- orders

    def _read_orders(self) -> None:
        for _ in range(ORDERS_AT_ONCE):
            try:
                read = self._training.read()
            except EOFError:
                self._unwatch(self._training.socket.fileno())
                self._training_ended()
                return
            if read is None:
                break
            order, descriptor = read
            if not isinstance(order, orders.Segment):
                self._held.append(order)
            elif order.size_bytes and descriptor is not None:
                self._segments.take(order.number, order.size_bytes, descriptor)
            else:
                self._segments.give_up(order.number)
        if self._exchange is None:
            self._obey()

    def _obey(self) -> None:
        """Carry out orders, up to the first that must wait."""
        self._choose()
        while self._held and not self._must_wait(self._held[0]):
            order = self._held.popleft()
            self._take[type(order)](order)
            self._choose()

    def _must_wait(self, order: FromTraining) -> bool:
        """Whether an order waits: all for the job, the next iteration for its plan and for the end of the one under way."""
        if self._client is None:
            return not isinstance(order, orders.Start | orders.Peers | orders.Leave)
        if isinstance(order, orders.Sum):
            return self._plan is None if self._progress is None else order.tensor == 0
        if isinstance(order, orders.RingDone):
            return self._plan is None and self._is_registered
        return self._progress is not None and isinstance(order, orders.Register)

    def _go_on(self) -> None:
        """Carry out what can be carried out, push what may leave, and end the iteration where it is complete."""
        exchange = self._exchange
        assert exchange is not None
        while True:
            self._obey()
            if exchange.push() and not self._started_s:
                self._started_s = time.monotonic()
            if self._progress is None or not self._progress.is_complete or self._begun < self._progress.tensors:
                return
            self._end_iteration()

    def _announce(self, order: orders.Announce) -> None:
        assert self._client is not None
        self._client.send(order.call)
        self._client.note(calls=order.call.number + 1)

    def _register(self, order: orders.Register) -> None:
        assert self._client is not None
        assert self._settings is not None
        self._tensors = [*([] if self._are_whole else self._tensors), *order.tensors]
        self._are_whole = order.is_whole
        if not order.is_whole:
            return
        registration = self._protocol.register(self._tensors, self._settings.precision)
        m.require_fit(registration)
        self._client.send(registration)
        self._is_registered, self._cut = True, None

    def _sum(self, order: orders.Sum) -> None:
        assert self._client is not None
        assert self._exchange is not None
        assert self._cut is not None
        if self._progress is None:
            plan, iteration = self._plan, self._protocol.iteration
            if plan is None or plan.routes_itself:
                raise PeerError("sums by the plane what goes by the ring")
            self._progress = self._exchange.begin(iteration, plan, self._cut)
            self._begun, self._computed, self._started_s = 0, 0, 0.0
            self._cpu_before_s = time.process_time()
            self._client.note(exchanging=iteration)
        if order.tensor != self._begun:
            raise PeerError(f"sums tensor {order.tensor}, where {self._begun} comes next")
        self._begun += 1
        elements, dtype = self._cut.elements[order.tensor], self._cut.dtype[order.tensor]
        self._exchange.add_tensor(self._segments.tensor(order.segment, order.offset_bytes, elements, dtype))
        self._client.note(calls=order.calls)

    def _ready(self, order: orders.Ready) -> None:
        if self._progress is None or order.tensor >= self._begun:
            raise PeerError(f"has elements of tensor {order.tensor}, which it does not sum yet")
        self._progress.make_ready(order.tensor, order.elements)
        if order.elements == self._cut_now.elements[order.tensor]:
            self._computed += 1
            self._note_computed()

    def _note_computed(self) -> None:
        assert self._progress is not None
        assert self._client is not None
        if self._computed == self._progress.tensors:
            self._computed_s = time.monotonic()
            self._client.note(computed=self._protocol.iteration)

    def _break_off(self, order: orders.BreakOff | None = None) -> None:
        del order
        self._is_registered = False
        if self._progress is None:
            self._plan = None
            return
        if self._progress.tensors > self._begun:
            self._progress.tensors = self._begun
            self._note_computed()

    def _ring_done(self, order: orders.RingDone) -> None:
        assert self._client is not None
        self._client.note(calls=order.calls)
        if not self._is_registered:  # it was broken off
            return
        plan, iteration = self._plan, self._protocol.iteration
        if plan is None or not plan.routes_itself or order.iteration != iteration:
            raise PeerError(f"has summed iteration {order.iteration} by the ring, where {iteration} comes next")
        self._client.note(computed=iteration)
        self._report_done(order.started_s, order.computed_s, order.finished_s, None)

    # ---- iterations

    @property
    def _cut_now(self) -> Cut:
        assert self._cut is not None
        return self._cut

    def _choose(self) -> None:
        """Obey the coordinator's next message, where no iteration comes or is under way."""
        while self._plan is None and self._is_registered:
            message = self._protocol.choose(self._inbox)
            if isinstance(message, m.Setup):
                self._cut = self._cut_by(message)
                self._last_end_s = self._last_end_s or time.monotonic()
            elif isinstance(message, m.Plan):
                self._plan = message
                self._tell_routes(message)
            elif message is not None:  # Finish
                self._training.tell(orders.Finish())
                self._is_registered = False
            else:
                return

    def _tell_routes(self, plan: m.Plan) -> None:
        """Tell the training process this plan's route, and at once that of a plan which was sent ahead."""
        ahead = [one for one in self._inbox if isinstance(one, m.Plan) and one.layout_version == plan.layout_version]
        for one in sorted([plan, *ahead], key=lambda one: one.iteration):
            if one.iteration > self._routes_told:
                registration = self._protocol.registration
                self._training.tell(orders.Route(registration, one.iteration, one.until, one.routes_itself))
                self._routes_told = one.until

    def _cut_by(self, setup: m.Setup) -> Cut:
        """The slices that the coordinator expects. Raises InputError where they differ."""
        layout = build_layout(
            [
                Tensor(one.name, one.elements, wire_dtype(one.dtype, setup.precision), one.group)
                for one in self._tensors
            ],
            num_nodes=setup.num_nodes,
            num_servers=setup.num_servers,
            alpha_bytes=setup.alpha_bytes,
            fixed_slice_bytes=setup.fixed_slice_bytes,
            num_probe=setup.num_probe,
        )
        if layout.digest() != setup.digest:
            raise InputError(
                "this agent cuts the tensors differently from the coordinator: install the same nalb everywhere"
            )
        return Cut(layout, setup.precision)

    def _tell_summed(self, tensor: int, elements: int) -> None:
        self._training.tell(orders.Summed(tensor, elements))

    def _end_iteration(self) -> None:
        assert self._exchange is not None
        assert self._client is not None
        end_s, cpu_s = time.monotonic(), time.process_time() - self._cpu_before_s
        self._progress = None
        if (sums := self._exchange.end()) is not None:
            m.require_fit(sums)
            self._client.send(sums)
        self._report_done(self._started_s or end_s, self._computed_s, end_s, cpu_s)

    def _report_done(self, started_s: float, computed_s: float, end_s: float, cpu_s: float | None) -> None:
        assert self._client is not None
        assert self._plan is not None
        self._client.note(exchanging=-1)
        iteration, took_s = self._protocol.iteration, end_s - self._last_end_s
        done = m.Done(iteration, end_s - started_s, took_s, 0.0, started_s, end_s, computed_s, cpu_s)
        self._client.send(done, waits=iteration < self._plan.until)
        self._last_end_s, self._plan = end_s, None


def _timeval(seconds: int, microseconds: int) -> bytes:
    return seconds.to_bytes(8, sys.byteorder) + microseconds.to_bytes(8, sys.byteorder)


def _keep_freed_memory() -> None:
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # another libc than GNU's
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES[0])
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES[1])


def main() -> int:
    """Run the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the training process gets it too, and leaves
    training = Training(socket.socket(fileno=int(sys.argv[1])))
    last_words.hand_to(training.say_last)
    raise_file_limit()
    _keep_freed_memory()
    agent = Agent(training)
    try:
        agent.run()
    except NalbError as error:
        agent.fail(agent._failure(Cause.PROCESS, str(error)))
    except Exception as error:
        agent.fail(agent._failure(Cause.PROCESS, f"failed: {one_line(error)}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
