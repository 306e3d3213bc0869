"""The coordinator of one job: messages in, messages out, no sockets, no clock. `now_s` is always an argument.

It gathers the processes, watches that they live, and ends the job for all. All else is done by the job's services (service.py):

    GATHER    until every worker and server has said Hello          -> Welcome to all
    then the phases of the service that has some, else REGISTER
    OVER      aborted or ended

Where MXNet runs alone, servers take no part and no service has phases: REGISTER is then the whole job.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from nalb.events import AbortEvent, ReadyEvent, StateEvent
from nalb.failures import Cause, Failure, Moment, Phase, carried, render
from nalb.protocol import wire
from nalb.protocol.members import Members
from nalb.protocol.observers import Observers, Outgoing
from nalb.protocol.participant import Process, crossed, left_behind
from nalb.protocol.service import Service
from nalb.settings import Settings


class Coordinator:
    """One job's state. Outgoing messages collect in `outbox`; the shell sends and clears them."""

    def __init__(
        self,
        settings: Settings,
        now_s: float,
        compose: Callable[[Members, Observers], Sequence[Service]],
        job: str = "",
    ):
        """compose: makes the job's services. Of two that can say the moment or the phase of the job, the first does.

        job: a name that no other job has.
        """
        self._settings, self._job = settings, job
        self.outbox: deque[Outgoing] = deque()
        self.members = Members(settings, now_s)
        self.observers = Observers(self.outbox, settings.scheme, settings.hold, settings.label)
        self.events = self.observers.events  # not yet written by the shell
        self.services = compose(self.members, self.observers)
        self._takers: dict[type[wire.Message], list[Service]] = {wire.Report: []}
        for service in self.services:
            for kind in service.takes:
                self._takers.setdefault(kind, []).append(service)
        self._from_servers = {wire.Report, wire.Failed, wire.Goodbye}
        self._from_servers.update(*(service.from_servers for service in self.services))
        self._started_s = self._last_alive_s = now_s
        self._nodes: list[str] = []
        self._is_gathered = False
        self.verdict: Failure | None = None  # why the job was aborted

    @property
    def phase(self) -> str:
        """GATHER, OVER, or the phase of a service."""
        if self.verdict is not None:
            return "OVER"
        return self._service_phase if self._is_gathered else "GATHER"

    @property
    def have_all_left(self) -> bool:
        """Whether every process has come and left."""
        return self.members.have_left

    @property
    def _service_phase(self) -> str:
        return next((service.phase for service in self.services if service.phase), "REGISTER")

    @property
    def rejected(self) -> Counter[str]:
        """How many messages and samples were not believed, by reason."""
        return self.members.rejected

    def name_of(self, identity: bytes) -> str | None:
        """The name for people of the process that speaks, if it has said Hello."""
        process = self.members.get(identity)
        return process.name if process else None

    # ---- inputs

    def receive(self, identity: bytes, message: wire.Message, now_s: float, key_node: str | None = None) -> None:
        """Take one message in. key_node: the node whose key the sender has, where the job is encrypted."""
        if self.phase == "OVER":
            return
        if isinstance(message, wire.Still):
            if self.members.note_still(message, key_node, now_s):  # else it may be of a job whose coordinator has ended
                self.outbox.append((identity, wire.Alive()))
            return
        process = self.members.get(identity)
        if self._is_gathered and process is None and isinstance(message, wire.Hello):
            self._turn_away(identity, message)
            return
        if key_node is not None:
            if why := self.members.false_name(identity, message, key_node):
                self.abort(why, now_s)
                return
            if process is None and not isinstance(message, wire.Hello):
                self.rejected["message before hello"] += 1
                return
        if isinstance(message, wire.FromObserver):
            self._from_observer(identity, message, now_s)
        elif isinstance(message, wire.Hello):
            self._hello(identity, message, now_s)
        elif process is None:
            self.rejected["message before hello"] += 1
        else:
            process.last_heard_s = process.last_direct_s = now_s
            if self._is_out_of_place(process, type(message)):
                self.rejected["message out of place"] += 1
            else:
                self._end_if(self._taken(process, message, now_s), now_s, isinstance(message, wire.Failed))

    def overslept(self, by_s: float, now_s: float) -> None:
        """Take in that the coordinator's process has read nothing for so long: what waits is not read yet, and nobody was silent.

        Nothing was read later than now: a message that was read meanwhile is no older than that.
        """
        self._started_s = min(now_s, self._started_s + by_s)
        self.members.overslept(by_s, now_s)
        for service in self.services:
            service.overslept(by_s, now_s)

    def tick(self, now_s: float) -> None:
        """Keep the deadlines; call it at least every heartbeat."""
        if self.phase == "OVER":
            return
        if now_s - self._last_alive_s >= self._settings.heartbeat_s:
            self._last_alive_s = now_s
            for process in self.members:
                self._send(process, wire.Alive())
        if not self._is_gathered:
            is_late = now_s - self._started_s > self._settings.startup_s
            self._end_if(self.members.missing() if is_late else None, now_s)
            return
        why = self.members.silent(self._moment_of, now_s) or self.members.lingering(now_s)
        self._end_if(why or self._ask(lambda one: one.tick(now_s)), now_s)

    def abort(self, failure: Failure, now_s: float, is_own: bool = False) -> None:
        """End the job everywhere. A failure that does not say when it came gets the job's moment. is_own: see Service.explain."""
        if self.phase == "OVER":
            return
        for service in self.services:
            failure = service.explain(failure, is_own)
        if not failure.has_moment:
            phase, iteration = self.moment
            failure = replace(failure, phase=phase, iteration=iteration)
        failure = carried(failure)
        self.verdict = failure
        for process in self.members:
            self._send(process, wire.Abort(failure))
        self.observers.tell(AbortEvent(at_s=now_s, reason=render(failure), failure=failure))

    def accuse(self, identity: bytes, detail: str, now_s: float) -> None:
        """End the job if one of its processes has sent what cannot be understood: the job would wait for what is lost."""
        if (process := self.members.get(identity)) is not None:
            self.abort(process.failure(Cause.PROTOCOL, detail), now_s)

    @property
    def moment(self) -> Moment:
        """The phase and iteration of the job as a whole."""
        return self._moment_of(None) if self._is_gathered else (Phase.START, None)

    def _moment_of(self, process: Process | None) -> Moment:
        moments = (service.moment(process) for service in self.services)
        return next((moment for moment in moments if moment is not None), (Phase.INIT, None))

    # ---- gathering

    def _hello(self, identity: bytes, hello: wire.Hello, now_s: float) -> None:
        if (known := self.members.get(identity)) is not None and known.hello == hello:
            return
        if why := self.members.admit(identity, hello, now_s):
            self.abort(why, now_s)
        elif self.members.are_all_here:
            self._welcome(now_s)

    def _turn_away(self, identity: bytes, hello: wire.Hello) -> None:
        """Tell a process that comes once all have met that it cannot take part. The job goes on."""
        self.rejected["hello after all have met"] += 1
        detail = "came to a job whose processes have all met: give each job a root port of its own, and restart a job as a whole"
        late = Failure(cause=Cause.IDENTITY, detail=detail, role=hello.role, node=hello.node, phase=Phase.START)
        self.outbox.append((identity, wire.Abort(late)))

    def _is_out_of_place(self, process: Process, kind: type[wire.Message]) -> bool:
        """Whether a message comes before all are there, is for a service that the job lacks, or only workers may send it."""
        if kind in (wire.Report, wire.Failed):
            return False
        is_known = kind is wire.Goodbye or kind in self._takers
        return not (self._is_gathered and is_known) or (not process.is_worker and kind not in self._from_servers)

    def _welcome(self, now_s: float) -> None:
        self._nodes = self.members.nodes()
        if why := self._ask(lambda one: one.begin(self._nodes, now_s)):
            self.abort(why, now_s)
            return
        settings = self._settings
        for process in self.members:
            process.last_heard_s = process.last_direct_s = now_s
            welcome = wire.Welcome(
                wire.VERSION,
                self._job,
                self._nodes,
                settings.heartbeat_s,
                settings.silence_s,
                settings.num_servers,
                self._levels(),
            )
            self._send(process, welcome)
        self._is_gathered = True
        servers = [p.hello.node for p in sorted(self.members.servers, key=lambda p: p.rank) if p.sums_for_all]
        sites = None if settings.is_stock else settings.sites_of(self._nodes)
        by_node = UNSET if sites is None else dict(zip(self._nodes, sites.name_of_node, strict=True))
        self.observers.tell(
            ReadyEvent(at_s=now_s, nodes=self._nodes, servers=servers, has_agents=settings.has_agents, sites=by_node)
        )

    def _levels(self) -> wire.Levels | None:
        """The levels of a job by sites; None where sums have one level."""
        sites = self._settings.sites_of(self._nodes)
        if sites is None or self._settings.is_stock:
            return None
        within = {p.hello.node: p.rank for p in self.members.servers if p.sums_within_site}
        for_all = {p.hello.node: p.rank for p in self.members.servers if p.sums_for_all}
        return wire.Levels(
            list(sites.of_node),
            [for_all[node] for node in self._nodes],
            [within.get(node, -1) for node in self._nodes],
        )

    # ---- running

    def _taken(self, process: Process, message: wire.Message, now_s: float) -> Failure | None:
        """Why the job must end after this message, if so."""
        if isinstance(message, wire.Failed):
            return replace(message.failure, role=process.role_of(message.failure), node=process.hello.node)
        if isinstance(message, wire.Goodbye):
            return self._leave(process, now_s)
        if isinstance(message, wire.Report):
            process.note(message, now_s)
            workers, still_s = self.members.workers, self._settings.silence_s
            if why := left_behind(process, self.members.left) or crossed(process, workers, now_s, still_s):
                return why
        return self._ask(lambda one: one.take(process, message, now_s), self._takers[type(message)])

    def _leave(self, process: Process, now_s: float) -> Failure | None:
        """A process ends in good order."""
        may_all_go = self.members.leave(process, now_s)
        if why := self._ask(lambda one: one.leave(process, now_s)):
            return why
        if may_all_go:
            for worker in self.members.workers:
                self._send(worker, wire.Farewell())
        return None

    def _ask(
        self, question: Callable[[Service], Failure | None], services: Iterable[Service] | None = None
    ) -> Failure | None:
        """Ask services one after the other, all where none are named, until one says why the job must end; send what they say."""
        for service in self.services if services is None else services:
            why = question(service)
            self.outbox.extend(service.outbox)
            for event in service.events:
                self.observers.tell(event)
            service.outbox.clear()
            service.events.clear()
            if why:
                return why
        return None

    def _end_if(self, why: Failure | None, now_s: float, is_own: bool = False) -> None:
        if why:
            self.abort(why, now_s, is_own)

    # ---- observers

    def forget_observer(self, identity: bytes) -> None:
        """The connection to an observer is gone."""
        self.observers.forget(identity)

    def _from_observer(self, identity: bytes, message: wire.FromObserver, now_s: float) -> None:
        present = StateEvent(at_s=now_s, phase=self.phase, nodes=list(self._nodes))
        self.observers.receive(identity, message, present)
        self._end_if(self._ask(lambda one: one.obey(message, now_s)), now_s)

    def _send(self, process: Process, message: wire.Message) -> None:
        self.outbox.append((process.identity, message))
