"""The coordinator's mind: messages in, messages out, no sockets, no clock. `now_s` is always an argument.

    GATHER    until every worker and server has said Hello          -> Welcome to all
    then the phases of iterations.py
    OVER      aborted or ended

Batch sizes run beside this, iteration by iteration of their own (batching.py), and so do tokens (tokens.py). Where MXNet runs
alone, servers take no part and nothing is registered: REGISTER is then the whole job.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from nalb.batching.joint_control import LinkKnowledge
from nalb.batching.speed import Predictor
from nalb.events import AbortEvent, ReadyEvent, StateEvent, TokensEvent
from nalb.failures import Cause, Failure, Moment, Phase, carried, render
from nalb.feedback.routing import Routing
from nalb.measurement.estimators import ESTIMATORS, Estimator
from nalb.protocol import messages as m
from nalb.protocol.batch_admission import BatchAdmission
from nalb.protocol.calls import CallAgreement
from nalb.protocol.iterations import Iterations
from nalb.protocol.job_nodes import JobNodes
from nalb.protocol.members import Members
from nalb.protocol.observers import Observers, Outgoing
from nalb.protocol.participant import Process, left_behind
from nalb.protocol.planes import PS_LITE, Plane
from nalb.protocol.planner import Planner, new_planner
from nalb.protocol.token_admission import TokenAdmission
from nalb.protocol.tokens import Rates
from nalb.schemes import SCHEMES, Scheme
from nalb.settings import Settings


class Coordinator:
    """One job's state. Outgoing messages collect in `outbox`; the shell sends and clears them."""

    def __init__(
        self,
        settings: Settings,
        now_s: float,
        predictor: Callable[[int], Predictor] | None = None,
        schemes: Mapping[str, Scheme] = SCHEMES,
        estimators: Mapping[str, Callable[[int], Estimator]] = ESTIMATORS,
        new_routing: Callable[[], Routing] | None = Routing,
        plane: Plane = PS_LITE,
    ):
        """schemes, estimators: by the names that settings and observers use.

        new_routing: makes what decides when iterations are left to the data plane's own routing; None: never.
        """
        self._settings, self._estimators, self._new_routing, self._plane = settings, estimators, new_routing, plane
        self._started_s = self._last_alive_s = now_s
        self._is_gathered = False
        self.outbox: deque[Outgoing] = deque()
        self.verdict: Failure | None = None  # why the job was aborted
        self._members = Members(settings, now_s)
        self._observers = Observers(self.outbox, settings.scheme, settings.hold, settings.label)
        self._tell = self._observers.tell
        self.events = self._observers.events  # not yet written by the shell
        self._nodes: list[str] = []
        self._admission = BatchAdmission(settings, predictor, self._network)
        self._iterations = Iterations(
            settings, self._members, self._observers, self._admission, schemes, self.outbox, now_s
        )
        self._tokens = TokenAdmission(settings)
        self._calls = CallAgreement(self._members, self.outbox)

    @property
    def phase(self) -> str:
        """GATHER, OVER, or that of the iterations."""
        if self.verdict is not None:
            return "OVER"
        return self._iterations.phase if self._is_gathered else "GATHER"

    @property
    def have_all_left(self) -> bool:
        """Whether every process has come and left."""
        return self._members.have_left

    @property
    def rejected(self) -> Counter[str]:
        """How many messages and samples were not believed, by reason."""
        return self._iterations.rejected

    def name_of(self, identity: bytes) -> str | None:
        """What people call the process that speaks, if it has said Hello."""
        process = self._members.get(identity)
        return process.name if process else None

    # ---- inputs

    def receive(
        self, identity: bytes, message: m.FromNode | m.FromObserver, now_s: float, key_node: str | None = None
    ) -> None:
        """Take one message in. key_node: the node whose key the sender has, where the job is encrypted."""
        if self.phase == "OVER":
            return
        if isinstance(message, m.Still):
            self._members.note_still(message, key_node, now_s)
            self.outbox.append((identity, m.Alive()))
            return
        process = self._members.get(identity)
        if key_node is not None:
            if why := self._members.false_name(identity, message, key_node):
                self.abort(why, now_s)
                return
            if process is None and not isinstance(message, m.Hello):
                self.rejected["message before hello"] += 1
                return
        if isinstance(message, m.FromObserver):
            self._from_observer(identity, message, now_s)
        elif isinstance(message, m.Hello):
            self._hello(identity, message, now_s)
        elif process is None:
            self.rejected["message before hello"] += 1
        else:
            process.last_heard_s = process.last_direct_s = now_s
            if self._is_out_of_place(process, message):
                self.rejected["message out of place"] += 1
            else:
                self._from_process(process, message, now_s)

    def tick(self, now_s: float) -> None:
        """Keep the deadlines; call it at least every heartbeat."""
        if self.phase == "OVER":
            return
        if now_s - self._last_alive_s >= self._settings.heartbeat_s:
            self._last_alive_s = now_s
            for process in self._members:
                self._send(process, m.Alive())
        if self.phase == "GATHER":
            if now_s - self._started_s > self._settings.startup_s:
                self.abort(self._members.missing(), now_s)
            return
        if why := (
            self._members.silent(self.phase, self._iterations.number, now_s)
            or self._members.lingering(now_s)
            or self._iterations.stuck()
            or self._stuck_call()
            or self._admission.check_joined(self._members.workers, now_s)
            or self._tokens.check_joined(self._members.workers, now_s)
            or self._iterations.tick(now_s)
        ):
            self.abort(why, now_s)

    def abort(self, failure: Failure, now_s: float, is_own: bool = False) -> None:
        """End the job everywhere. A failure that does not say when came in the job's present phase. is_own: see TokenAdmission."""
        if self.phase == "OVER":
            return
        failure = self._tokens.with_token(failure, self._members.workers, is_own)
        if not failure.has_moment:
            phase, iteration = self.moment
            failure = replace(failure, phase=phase, iteration=iteration)
        failure = carried(failure)
        self.verdict = failure
        for process in self._members:
            self._send(process, m.Abort(failure))
        self._tell(AbortEvent(at_s=now_s, reason=render(failure), failure=failure))

    def accuse(self, identity: bytes, detail: str, now_s: float) -> None:
        """Someone has said what cannot be understood. If it is one of the job's, the job would wait for what is lost."""
        if (process := self._members.get(identity)) is not None:
            self.abort(process.failure(Cause.PROTOCOL, detail), now_s)

    @property
    def moment(self) -> Moment:
        """What the job as a whole is about; iterations are the tokens' where workers compute tokens."""
        if (dealer := self._tokens.dealer) is not None and (iteration := dealer.iteration_of(None)) is not None:
            return None, iteration
        if self.phase in ("RUN", "COLLECT"):
            return None, self._iterations.number
        early = {"GATHER": Phase.START, "REGISTER": Phase.INIT}
        return (early[self.phase], None) if self.phase in early else (Phase.PLAN, self._iterations.number + 1)

    # ---- gathering

    def _hello(self, identity: bytes, hello: m.Hello, now_s: float) -> None:
        if (known := self._members.get(identity)) is not None and known.hello == hello:
            return
        if why := self._members.admit(identity, hello, now_s):
            self.abort(why, now_s)
        elif self._members.are_all_here:
            self._welcome(now_s)

    def _is_out_of_place(self, process: Process, message: m.FromNode) -> bool:
        """Said before all are there, by a server where only workers speak, or of plans where MXNet runs alone."""
        if isinstance(message, m.Report | m.Failed):
            return False
        of_store = m.Called | m.Register | m.SlotsReady | m.Done | m.Collected | m.Sums
        if self._settings.is_stock and isinstance(message, of_store):
            return True
        is_servers = isinstance(message, m.Goodbye | m.Collected)
        return self.phase == "GATHER" or (not process.is_worker and not is_servers)

    def _welcome(self, now_s: float) -> None:
        self._nodes = self._members.nodes()
        self._iterations.begin(None if self._settings.is_stock else self._new_planner(), self._nodes)
        if why := self._iterations.configure():
            self.abort(why, now_s)
            return
        for process in self._members:
            process.last_heard_s = process.last_direct_s = now_s
            self._send(
                process,
                m.Welcome(
                    m.VERSION,
                    self._nodes,
                    self._settings.heartbeat_s,
                    self._settings.silence_s,
                    self._settings.num_servers,
                    self._levels(),
                ),
            )
        self._is_gathered = True
        servers = [p.hello.node for p in sorted(self._members.servers, key=lambda p: p.rank) if p.sums_for_all]
        self._tell(ReadyEvent(at_s=now_s, nodes=self._nodes, servers=servers))

    def _levels(self) -> m.Levels | None:
        """Who sums where, in a job by sites."""
        sites = self._settings.sites_of(self._nodes)
        if sites is None or self._settings.is_stock:
            return None
        within = {p.hello.node: p.rank for p in self._members.servers if p.sums_within_site}
        for_all = {p.hello.node: p.rank for p in self._members.servers if p.sums_for_all}
        return m.Levels(
            list(sites.of_node),
            [for_all[node] for node in self._nodes],
            [within.get(node, -1) for node in self._nodes],
        )

    def _new_planner(self) -> Planner:
        nodes = JobNodes.of(
            self._nodes,
            workers={p.hello.node for p in self._members.workers},
            servers={p.hello.node: p.rank for p in self._members.servers if p.sums_for_all},
            sites=self._settings.sites_of(self._nodes),
            site_servers={p.hello.node: p.rank for p in self._members.servers if p.sums_within_site},
        )
        checks_slices = self._settings.verify_sums  # which only plans have
        routing = None if checks_slices or self._new_routing is None else self._new_routing()
        return new_planner(nodes, self._estimators[self._settings.estimator], routing, plane=self._plane)

    # ---- running

    def _from_process(self, process: Process, message: m.FromNode, now_s: float) -> None:
        if why := self._taken(process, message, now_s):
            self.abort(why, now_s, isinstance(message, m.Failed))

    def _taken(self, process: Process, message: m.FromNode, now_s: float) -> Failure | None:
        """Why the job must end after this message, if so."""
        iterations = self._iterations
        if isinstance(message, m.Report):
            iterations.report(process, message, now_s)
            return left_behind(process, self._members.left) or self._calls.reported(process)
        if isinstance(message, m.Called):
            return self._calls.announced(process, message)
        if isinstance(message, m.Register):
            late = self._admission.registers(process) or self._tokens.registers(process)
            return late or iterations.register(process, message, now_s)
        if isinstance(message, m.SlotsReady):
            return iterations.slots_ready(process, message, now_s)
        if isinstance(message, m.Sums):
            if message.iteration == iterations.number:
                process.sums = message
        elif isinstance(message, m.Done):
            return iterations.done(process, message, now_s)
        elif isinstance(message, m.Collected):
            return iterations.collected(process, now_s) if message.iteration == iterations.number else None
        elif isinstance(message, m.JoinBatching | m.Computed):
            return self._batch(process, message, now_s)
        elif isinstance(message, m.JoinTokens | m.TokenRequest):
            return self._deal_tokens(process, message, now_s)
        elif isinstance(message, m.Goodbye):
            return self._leave(process, now_s)
        elif isinstance(message, m.Failed):
            return replace(message.failure, role=process.hello.role, node=process.hello.node)
        return None

    def _stuck_call(self) -> Failure | None:
        """Why a direct call's sums will never come, if so."""
        waiting = self._calls.under_way
        since_s = max([self._iterations.moved_s, *(worker.ready_s for worker in waiting)])
        return self._members.stuck(waiting, since_s)

    def _leave(self, process: Process, now_s: float) -> Failure | None:
        """A process ends in good order."""
        if process.is_worker and (why := self._admission.leave(process) or self._tokens.leave(process)):
            return why
        if self._members.leave(process, now_s):
            for worker in self._members.workers:
                self._send(worker, m.Farewell())
        return self._iterations.collected(process, now_s)

    # ---- batch sizes

    def _batch(self, process: Process, message: m.JoinBatching | m.Computed, now_s: float) -> Failure | None:
        if why := self._admission.take(process, message, now_s):
            return why
        if manager := self._admission.manager:
            for sizes in manager.outbox:
                for worker in self._members.workers:
                    self._send(worker, sizes)
            names = [worker.hello.node for worker in sorted(self._members.workers, key=lambda worker: worker.rank)]
            for event in manager.events:
                self._tell(replace(event, at_s=now_s, workers=names))
            manager.outbox.clear()
            manager.events.clear()
        return None

    def _deal_tokens(self, process: Process, message: m.JoinTokens | m.TokenRequest, now_s: float) -> Failure | None:
        if why := self._tokens.take(process, message, self._link_rates, now_s):
            return why
        dealer, worker_of_rank = self._tokens.dealer, self._members.worker_of_rank
        assert dealer is not None
        for rank, answer in dealer.outbox:
            self._send(worker_of_rank[rank], answer)
        for event in dealer.events:
            if isinstance(event, TokensEvent) and not self._iterations.is_recorded(event.iteration):
                event = replace(event, rows=UNSET)
            self._tell(replace(event, workers=[worker_of_rank[k].hello.node for k in sorted(worker_of_rank)]))
        dealer.outbox.clear()
        dealer.events.clear()
        return None

    def _network(self) -> LinkKnowledge | None:
        """For joint plans."""
        rank_of_node = {worker.hello.node: worker.rank for worker in self._members.workers}
        planner = self._iterations.planner
        return planner.link_knowledge(rank_of_node) if planner else None

    def _link_rates(self) -> Rates | None:
        """For tokens: bytes per second out of and into each worker, by rank."""
        network = self._network()
        if network is None:
            return None
        place_of_rank = dict(
            zip(network.ranks, [i for i, node in enumerate(network.nodes) if node.is_worker], strict=True)
        )
        places = [place_of_rank[rank] for rank in sorted(place_of_rank)]
        rates = network.capacities.rates
        if network.capacities.uplinks is not None:  # outputs and gradients of tokens go from machine to machine
            rates = np.minimum(rates, network.capacities.uplinks.parts())
        return rates[0, places].tolist(), rates[1, places].tolist()

    # ---- observers

    def forget_observer(self, identity: bytes) -> None:
        """The connection to an observer is gone."""
        self._observers.forget(identity)

    def _from_observer(self, identity: bytes, message: m.FromObserver, now_s: float) -> None:
        present = StateEvent(at_s=now_s, phase=self.phase, nodes=list(self._nodes))
        self._observers.receive(identity, message, present)
        why = None
        if isinstance(message, m.Configured):
            why = self._iterations.configure()
        elif isinstance(message, m.RunBlock | m.EndJob):
            why = self._iterations.go_on(now_s)
        if why:
            self.abort(why, now_s)

    def _send(self, process: Process, message: m.Message) -> None:
        self.outbox.append((process.identity, message))
