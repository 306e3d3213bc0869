"""A job in which every message is a choice: the real coordinator, each worker's real `WorkerProtocol`, and servers that only sum.

A `World` holds who has sent what to whom and not yet been heard. `moves` are all that may happen next: a message arrives (in
order, or whichever of its channel), arrives and stays on its way to arrive again, a worker goes on, or a connection is reset, after
which the real `Session` of both ends makes good for what it carried. `play` does one and checks the laws:

    all plans of an iteration are equal, and no worker is sent two
    all iterations before a plan's are finished by every worker when it goes out, or all before the last plan's where that is not
    measured, or all have registered anew
    a slot is created once, before anyone pushes to it; what it sums is one slice of one iteration, once from every worker
    an abort reaches every process
    where nothing more can happen, every worker has left in order

Slots are created, pushed to and summed as ps-lite does: the first push of a key creates it, and a sum is answered when as many
pushes have come as there are workers, whoever they are from.
"""

import io
import pickle
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from kvstore_patch.keys.plane import PS_LITE
from nalb.failures import Cause, Failure, render
from nalb.feedback.routing import Routing
from nalb.measurement.samples import ClockAlignment
from nalb.planning.distribution import Distribution
from nalb.planning.slices import Layout
from nalb.protocol import wire
from nalb.protocol.members import Members
from nalb.protocol.observers import Observers
from nalb.protocol.participant import Process
from nalb.protocol.session import Envelope, Session
from nalb.schemes import Scheme
from nalb.services import composition
from nalb.services.exchange import messages as m
from nalb.services.exchange.books import IterationBooks
from nalb.services.exchange.links import Links
from nalb.services.exchange.planner import Planner
from nalb.services.exchange.progress import JobProgress, ProcessProgress
from nalb.services.exchange.sample_collector import SampleCollector
from nalb.services.exchange.slicing import Slicing
from nalb.services.exchange.worker_protocol import WorkerProtocol
from nalb.services.joining import Joining
from nalb.settings import Settings

Move = tuple[str, str, int]  # what, whose, which message of the channel
OnItsWay = tuple[
    Envelope | None, wire.Message | None
]  # without envelope where connections last; without message: a mere sign
PROTOCOL = 3  # of pickle: later ones do not number what is remembered, which hides what an Unpickler knows already
Reducer = Callable[[object], object]
REGISTER, ITERATE, LEAVE = "register", "iterate", "leave"


_interned: list[object] = []  # what never changes, each value once: a world's copies and keys have its number
_number_of_id: dict[int, int] = {}
_number_of_value: dict[object, int] = {}


def _value(constant: object) -> object:
    if isinstance(constant, Layout):
        return constant.digest()
    return (
        repr(constant)
        if isinstance(constant, Settings | Distribution | Scheme)
        else (type(constant), msgspec.msgpack.encode(constant))
    )


def _number(constant: object) -> int:
    number = _number_of_id.get(id(constant))
    if number is None:
        number = _number_of_value.setdefault(_value(constant), len(_interned))
        _interned.append(constant)  # also a second one of its value: its id must not become another's
        _number_of_id[id(constant)] = number
    return number


class _Names(pickle.Unpickler):
    """Keeps the classes and functions that a pickled world names."""

    def __init__(self, pickled: bytes):
        super().__init__(io.BytesIO(pickled))
        self.found: dict[str, object] = {}

    def find_class(self, module: str, name: str) -> object:
        return self.found.setdefault(f"{module}.{name}", super().find_class(module, name))


class Copier:
    """Copies and compares worlds. What takes longest, to look up classes and functions by their names, it does once for all."""

    def __init__(self, first: "World"):
        names = _Names(_pickled(first, _REDUCERS, {}))
        names.load()
        known, buffer = list(names.found.values()), io.BytesIO()
        self._pickler = pickle.Pickler(buffer, PROTOCOL)
        self._pickler.dump(known)
        self._unpickler = pickle.Unpickler(io.BytesIO(buffer.getvalue()))
        self._unpickler.load()
        self._numbers = {id(one): (number, one) for number, one in enumerate(known)}

    def frozen(self, world: "World") -> bytes:
        """`thawed` makes of it, any number of times, an equal world that shares nothing that changes."""
        return _pickled(world, _REDUCERS, self._pickler.memo)

    def thawed(self, frozen: bytes) -> "World":
        """The world that was frozen, a new one each time."""
        unpickler = pickle.Unpickler(io.BytesIO(frozen))
        unpickler.memo = self._unpickler.memo
        world = unpickler.load()
        assert isinstance(world, World)
        return world

    def key(self, world: "World") -> bytes:
        """Equal for equal worlds; by value, so what is shared does not show."""
        return _pickled(world, _REDUCERS | _shared_reducers(), self._numbers, fast=True)


def _pickled(world: "World", reducers: dict[type, Reducer], memo: Any, fast: bool = False) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, PROTOCOL)
    pickler.memo, pickler.dispatch_table, pickler.fast = memo, reducers, fast
    pickler.dump(world)
    return buffer.getvalue()


def _shared_reducers() -> dict[type, Reducer]:
    """For a key: what several parts of a coordinator share is written once, and then by its number in the order of coming.

    Which process's clock was aligned first makes no difference to what follows.
    """
    numbers: dict[int, int] = {}

    def reduced(shared: object) -> object:
        if id(shared) in numbers:
            return _interned_at, (-numbers[id(shared)],)
        numbers[id(shared)] = len(numbers) + 1
        return shared.__reduce_ex__(PROTOCOL)

    def reduced_clock(clock: object) -> object:
        return ClockAlignment, tuple(sorted(of_process.items()) for of_process in vars(clock).values())

    return {**dict.fromkeys(_SHARED, reduced), ClockAlignment: reduced_clock}


def _interned_at(number: int) -> object:
    return _interned[number]


_REDUCERS = {
    kind: lambda constant: (_interned_at, (_number(constant),))
    for kind in (
        Layout,
        Settings,
        Distribution,
        Scheme,
        Envelope,
        *wire.FROM_PROCESSES,
        *wire.FROM_OBSERVERS,
        *wire.TO_PROCESSES,
        *wire.TO_OBSERVERS,
        *(kind for service in composition.SERVICES for kind in (*service.takes, *service.sends)),
    )
}
_SHARED = (
    Members,
    Process,
    Observers,
    Links,
    Planner,
    Joining,
    JobProgress,
    ProcessProgress,
    Slicing,
    SampleCollector,
    IterationBooks,
)
_SHARED += composition.SERVICES


class Broken(AssertionError):
    """A law of the protocol does not hold."""


def law(holds: bool, text: str) -> None:
    """Assert that survives -O."""
    if not holds:
        raise Broken(text)


@dataclass
class Worker:
    """What a worker's script and store do: `program` are its steps, `doing` what it waits for."""

    program: list[tuple[str, list[m.TensorSpec] | None]]
    step: int = 0
    doing: str = ""  # '', 'setup', 'sums', 'farewell', 'gone'
    protocol: WorkerProtocol = field(default_factory=WorkerProtocol)
    inbox: list[wire.Message] = field(default_factory=list)
    plan: m.Plan | None = None
    answered: int = 0  # slices of the plan that are back
    finished: int = -1
    executed: list[int] = field(default_factory=list)


class World:
    """One state of one job."""

    def __init__(
        self,
        settings: Settings,
        program: Sequence[tuple[str, list[m.TensorSpec] | None]],
        orders: Sequence[wire.FromObserver] = (),
        *,
        overtakings: int = 0,  # how often a message may arrive before one sent earlier
        repeats: int = 0,  # how many may arrive twice
        failures: int = 0,  # how many workers may say that they fail
        reports: bool = False,  # whether workers also report, as they do
        resets: int = 0,  # how often a connection may break with what it carries
        took_s: float = 1.0,  # an iteration, first push to last pull
        new_routing: Callable[[], Routing] = Routing,  # of the coordinator
    ):
        self.coordinator = composition.new_coordinator(settings, 0.0, new_routing=new_routing, plane=PS_LITE)
        self.overtakings, self.repeats, self.failures, self.reports = overtakings, repeats, failures, reports
        self.took_s, self.resets = took_s, resets
        self.workers = {f"w{i}": Worker(list(program)) for i in range(settings.num_workers)}
        ids = [(f"s{i}", "server", i) for i in range(settings.num_servers)]
        ids += [(f"w{i}", "worker", i) for i in range(settings.num_workers)]
        self.peers = [name for name, _, _ in ids]
        # of each process: its own end of the session, and the coordinator's
        self.sessions = {name: (Session[wire.Message](), Session[wire.Message]()) for name in self.peers if resets}
        self.upward: dict[str, list[OnItsWay]] = {name: [] for name in self.peers}
        self.downward: dict[str, list[OnItsWay]] = {name: [] for name in self.peers}
        for name, role, rank in ids:
            self.say("up", name, wire.Hello(wire.VERSION, role, "n" + name[1:], rank, rank))
        self.upward["observer"] = [(None, order) for order in orders]
        self.welcomed: set[str] = set()
        self.slots: dict[tuple[int, int], list[tuple[str, int, int]]] = {}  # pushes not yet answered
        self.plans: dict[int, m.Plan] = {}
        self.aborted = ""

    # ---- what may happen

    def moves(self) -> list[Move]:
        """All that may happen next."""
        if self.aborted:
            return []
        found = []
        for name in self.upward:
            for kind, channel in (("up", self.upward[name]), ("down", self.downward.get(name, []))):
                for index in range(len(channel) if self.overtakings else min(1, len(channel))):
                    found.append((kind, name, index))
                    if self.repeats:
                        found.append((kind + "-again", name, index))
        if self.resets:
            found += [("reset", name, 0) for name in self.peers if self.upward[name] or self.downward[name]]
        found += [("step", name, 0) for name in self.workers if self.can_step(name)]
        if self.failures:
            found += [("fail", name, 0) for name in self.welcomed if name in self.workers]
        return found

    def play(self, move: Move) -> None:
        """Let one thing happen."""
        what, name, index = move
        if what == "fail":
            self.failures -= 1
            self.upward[name].insert(0, (None, wire.Failed(Failure(cause=Cause.SCRIPT, detail="its disk is full"))))
        elif what == "reset":
            self.resets -= 1
            for kind in (
                "up",
                "down",
            ):  # what was under way is lost; then both ends give a sign, as they do again and again
                self.channel(kind, name)[:] = [(self.end(kind, name).sign(), None)]
        elif what == "step":
            self.go_on(name)
        else:
            kind, _, again = what.partition("-")
            channel = self.channel(kind, name)
            envelope, message = channel[index] if again else channel.pop(index)
            self.repeats -= bool(again)
            self.overtakings -= index > 0
            if (envelope is None or self.is_next(kind, name, envelope)) and message is not None:
                (self.hear_up if kind == "up" else self.hear_down)(name, message)

    def channel(self, kind: str, name: str) -> list[OnItsWay]:
        """What is on its way up from, or down to, a process."""
        return (self.upward if kind == "up" else self.downward)[name]

    def end(self, kind: str, name: str) -> Session[wire.Message]:
        """The end of the session that sends that way."""
        return self.sessions[name][kind == "down"]

    def say(self, kind: str, name: str, message: wire.Message) -> None:
        """Send a message, that way."""
        envelope = self.end(kind, name).keep(message) if self.sessions else None
        self.channel(kind, name).append((envelope, message))

    def is_next(self, kind: str, name: str, envelope: Envelope) -> bool:
        """An envelope arrives: as in conversations.py."""
        back = "down" if kind == "up" else "up"
        session = self.end(back, name)
        is_next = session.accept(envelope)
        self.channel(back, name).extend(session.again(envelope))
        if session.misses and not envelope.is_kept:
            self.channel(back, name).append((session.sign(), None))
        return is_next

    def hear_up(self, name: str, message: wire.Message) -> None:
        """The coordinator takes a message in; its answers are on their way."""
        self.coordinator.receive(name.encode(), message, 0.0)
        self.coordinator.events.clear()
        while self.coordinator.outbox:
            identity, answer = self.coordinator.outbox.popleft()
            self.check_sent(identity.decode(), answer)
            if not isinstance(answer, m.Measure | wire.Told):  # they change nothing here
                self.say("down", identity.decode(), answer)
        if self.coordinator.phase == "OVER":
            self.aborted = "?" if self.coordinator.verdict is None else render(self.coordinator.verdict)
            known = {process.identity.decode() for process in self.coordinator.members}
            told = {peer for peer, sent in self.downward.items() if any(isinstance(x, wire.Abort) for _, x in sent)}
            law(told == known, f"an abort reaches {told}, not {known}")

    def check_sent(self, name: str, message: wire.Message) -> None:
        """The laws of what the coordinator says."""
        if not isinstance(message, m.Plan):
            return
        for iteration in range(message.iteration, message.until + 1):
            first = self.plans.setdefault(iteration, message)
            law(first == message, f"two plans of iteration {iteration}")
        under_way = [sent for _, sent in self.downward[name]]
        law(bool(self.sessions) or message not in under_way, f"{name} is sent plan {message.iteration} twice")
        before = self.plans.get(message.iteration - 1)
        needed = message.iteration - 1
        if before and not (message.measure or before.measure):
            needed = before.iteration - 1
        if needed in self.plans and self.plans[needed].layout_version == message.layout_version:
            late = [one for one, worker in self.workers.items() if worker.finished < needed]
            law(not late, f"plan {message.iteration} is out before {late} have finished {needed}")

    def hear_down(self, name: str, message: wire.Message) -> None:
        """A process takes a message in, as Client does: slots are made at once, all else waits for the worker."""
        if isinstance(message, wire.Welcome):
            self.welcomed.add(name)
        if isinstance(message, m.Collect):
            self.send(name, -1, m.Collected(message.iteration))
        if name not in self.workers:
            return
        worker = self.workers[name]
        if isinstance(message, m.PrepareSlots):
            if worker.protocol.is_new_order(message):
                for new in message.slots:
                    for slot in range(new.first, new.first + new.count):
                        law((new.server, slot) not in self.slots, f"{name} creates slot {slot} of {new.server} again")
                        self.slots[new.server, slot] = []
                self.say("up", name, m.SlotsReady(message.iteration, message.layout_version))
        elif isinstance(message, m.Setup | m.Plan | m.Finish | wire.Farewell):
            worker.inbox.append(message)

    # ---- a worker

    def can_step(self, name: str) -> bool:
        """Whether the worker's script would go on."""
        worker = self.workers[name]
        if name not in self.welcomed or worker.doing == "gone":
            return False
        if worker.doing == "farewell":
            return any(isinstance(x, wire.Farewell) for x in worker.inbox)
        if worker.doing == "sums":
            assert worker.plan is not None
            return worker.answered == len(worker.plan.server_of_slice)
        what = worker.program[worker.step][0]
        if worker.doing == "setup" or what == ITERATE:
            return replace(worker.protocol).choose(list(worker.inbox)) is not None
        # the unplanned sums before a registration need all workers
        return what == LEAVE or all(one.step >= worker.step for one in self.workers.values())

    def go_on(self, name: str) -> None:
        """As exchange.py and session.py do."""
        worker = self.workers[name]
        if worker.doing == "farewell":
            worker.doing = "gone"
            return
        if worker.doing == "sums":
            assert worker.plan is not None
            iteration = worker.finished = worker.protocol.iteration
            worker.doing = ""
            worker.step += 1
            self.send(name, iteration, m.Done(iteration, self.took_s, 1.0, 0.0, 0.0, 1.0))
            return
        what, tensors = worker.program[worker.step]
        if worker.doing == "" and what == REGISTER:
            self.say("up", name, worker.protocol.register(tensors))
            worker.doing = "setup"
        elif worker.doing == "" and what == LEAVE:
            self.send(name, -1, wire.Goodbye())
            worker.doing = "farewell"
        else:
            self.obey(name, worker, worker.protocol.choose(worker.inbox))

    def send(self, name: str, exchanging: int, message: wire.Message) -> None:
        """As Client does: what it has seen so far goes first."""
        if self.reports:
            self.say("up", name, wire.Report(0.0, exchanging, [], 0))
        self.say("up", name, message)

    def obey(self, name: str, worker: Worker, message: m.Setup | m.Plan | m.Finish | None) -> None:
        """A Setup answers a registration or cuts anew; a plan is carried out."""
        if isinstance(message, m.Setup):
            if worker.doing == "setup":
                worker.doing = ""
                worker.step += 1
        elif isinstance(message, m.Finish):
            worker.step = len(worker.program) - 1
        else:
            assert isinstance(message, m.Plan)
            iteration = worker.protocol.iteration
            law(message == self.plans.get(iteration), f"a plan nobody sent for iteration {iteration}")
            worker.plan, worker.doing, worker.answered = message, "sums", 0
            worker.executed.append(iteration)
            for index, place in enumerate(zip(message.server_of_slice, message.slot_of_slice, strict=True)):
                law(place in self.slots, f"{name} pushes to slot {place} before it exists")
                self.push(place, (name, iteration, index))

    def push(self, place: tuple[int, int], push: tuple[str, int, int]) -> None:
        """A server: adds up, and answers when as many have come as there are workers."""
        pushes = self.slots[place]
        insort(pushes, push)  # their order makes no difference to what follows
        if len(pushes) == len(self.workers):
            law(len({(iteration, index) for _, iteration, index in pushes}) == 1, f"slot {place} sums {pushes}")
            law({name for name, _, _ in pushes} == set(self.workers), f"slot {place} sums {pushes}")
            for name, _, _ in pushes:
                self.workers[name].answered += 1
            self.slots[place] = []

    def check_end(self, may_abort: bool) -> None:
        """Where nothing more can happen."""
        if self.aborted:
            law(may_abort, f"aborted: {self.aborted}")
            return
        stuck = {name: (one.step, one.doing) for name, one in self.workers.items() if one.doing != "gone"}
        law(not stuck, f"nothing more can happen, and {stuck} in phase {self.coordinator.phase}")
        executed = {tuple(one.executed) for one in self.workers.values()}
        law(len(executed) == 1, f"workers summed different iterations: {executed}")


def explore(world: World, may_abort: bool = False) -> tuple[int, int]:
    """Every world that can follow, each once; (how many, how many of them ends). Broken says which moves led there."""
    copier = Copier(world)
    seen = {hash(copier.key(world))}
    queue: deque[tuple[World, tuple[Move, ...]]] = deque([(world, ())])
    ends = 0
    while queue:
        here, path = queue.pop()
        moves, frozen = here.moves(), copier.frozen(here)
        if not moves:
            ends += 1
            try:
                here.check_end(may_abort)
            except Broken as broken:
                raise Broken(f"{broken}, after {path}") from None
        for move in moves:
            after = copier.thawed(frozen)
            try:
                after.play(move)
            except Broken as broken:
                raise Broken(f"{broken}, after {(*path, move)}") from None
            key = hash(copier.key(after))
            if key not in seen:
                seen.add(key)
                queue.append((after, (*path, move)))
    return len(seen), ends


def wander(world: World, seed: int, may_abort: bool = False) -> World:
    """One of the ways to an end, drawn by lot."""
    generator = np.random.default_rng(seed)
    while moves := world.moves():
        world.play(moves[int(generator.integers(len(moves)))])
    world.check_end(may_abort)
    return world


def to_gathered(world: World) -> World:
    """Up to where every process is welcomed, without repeats: the exploration can begin there."""
    for kind in ("up", "down"):
        for name in world.peers:
            world.play((kind, name, 0))
    return world
