"""The coordinator's mind: messages in, messages out, no sockets, no clock. `now_s` is always an argument.

    GATHER    until every worker and server has said Hello          -> Welcome to all
    REGISTER  until every worker has said what it pushes             -> Setup
    READY     between iterations; a held job waits here for RunBlock
    PREPARE   until the new slots that the plan needs exist
    RUN       plan sent, and the next one too where nothing can change it; until every worker is Done with all its iterations
    COLLECT   until servers have told all that they timed
    OVER      aborted or ended

Batch sizes run beside this, iteration by iteration of their own (batching.py), and so do tokens (tokens.py). Where MXNet runs
alone, servers take no part and nothing is registered: REGISTER is then the whole job.
A registration may come again at any time outside RUN's traffic; it begins a new layout version.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from statistics import mean
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from nalb.batching.joint_control import LinkKnowledge
from nalb.batching.speed import Predictor
from nalb.errors import InputError
from nalb.events import AbortEvent, IdleEvent, IterationEvent, PlanEvent, ReadyEvent, StateEvent, TokensEvent
from nalb.failures import Cause, Failure, Phase, carried, render
from nalb.measurement.estimators import ESTIMATORS, Estimator
from nalb.planning.granularity import Granularity
from nalb.planning.slices import NUM_PROBE
from nalb.protocol import messages as m
from nalb.protocol.batch_admission import BatchAdmission
from nalb.protocol.members import Members
from nalb.protocol.observers import Measured, Observers, Outgoing
from nalb.protocol.participant import Process, disagreement, left_behind
from nalb.protocol.planner import PlanDecision, Planner
from nalb.protocol.sample_collector import SampleCollector
from nalb.protocol.sums import find_wrong_sum
from nalb.protocol.token_admission import TokenAdmission
from nalb.protocol.tokens import Rates
from nalb.schemes import SCHEMES, Scheme
from nalb.settings import Settings

RECORDED = 200  # iterations of a training, of which every message is told
COLLECT_S = 1.0  # a plan waits no longer for what servers have still to tell: they are measured less well then


class SlicingOptions(NamedTuple):
    """How tensors become slices, where it is not the same for all jobs."""

    alpha_bytes: float
    fixed_slice_bytes: float | None = None  # in place of what alpha gives
    num_probe: int = NUM_PROBE  # probe slices per server


class Coordinator:
    """One job's state. Outgoing messages collect in `outbox`; the shell sends and clears them."""

    def __init__(
        self,
        settings: Settings,
        now_s: float,
        predictor: Callable[[int], Predictor] | None = None,
        schemes: Mapping[str, Scheme] = SCHEMES,
        estimators: Mapping[str, Callable[[int], Estimator]] = ESTIMATORS,
    ):
        """schemes, estimators: by the names that settings and observers use."""
        self._settings, self._schemes, self._estimators = settings, schemes, estimators
        self._started_s = self._last_alive_s = now_s
        self.phase = "GATHER"
        self.outbox: deque[Outgoing] = deque()
        self.verdict: Failure | None = None  # why the job was aborted
        self._members = Members(settings, now_s)
        self._running = 0  # workers that have not yet reported this iteration done
        self._observers = Observers(self.outbox, settings.scheme, settings.hold)
        self._tell = self._observers.tell
        self.events = self._observers.events  # not yet written by the shell
        self._planner: Planner | None = None
        self._nodes: list[str] = []
        self.rejected: Counter[str] = Counter()
        self._collector = SampleCollector(self._members, self.rejected, self._tell)
        self._registration, self._layout_version, self._iteration = -1, -1, -1
        self._tensors: list[m.TensorSpec] = []
        self._granularity = Granularity(settings.alpha_bytes)
        self._cut = SlicingOptions(self._granularity.alpha_bytes)
        self._measuring = False
        self._plan: m.Plan | None = None
        self._ahead: m.Plan | None = None  # the next one, where workers have it already
        # Orders that are not yet carried out: worker, iteration, layout version.
        self._preparing: set[tuple[bytes, int, int]] = set()
        self._collecting: set[bytes] = set()  # servers that have not yet told all of the iteration
        self._collect_by_s = now_s
        self._released_s = self._moved_s = now_s  # when the last plan went out, and when anything was last under way
        self._admission = BatchAdmission(settings, predictor, self._network)
        self._tokens = TokenAdmission(settings)

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
            self._members.silent(self.phase, self._iteration, now_s)
            or self._members.lingering(now_s)
            or (self._members.stuck(self._iteration, self._moved_s) if self.phase == "RUN" else None)
            or self._admission.check_joined(self._members.workers, now_s)
            or self._tokens.check_joined(self._members.workers, now_s)
        ):
            self.abort(why, now_s)
        if self.phase == "RUN":
            self._collector.forget(self._iteration, self._settings.silence_s)
        self._end_collecting(now_s)

    def abort(self, failure: Failure, now_s: float) -> None:
        """End the job everywhere. A failure that does not say when came in the job's present phase."""
        if self.phase == "OVER":
            return
        if not failure.has_moment:
            phase, iteration = self._moment()
            failure = replace(failure, phase=phase, iteration=iteration)
        failure = carried(self._tokens.with_token(failure, self._members.workers))
        self.phase, self.verdict = "OVER", failure
        for process in self._members:
            self._send(process, m.Abort(failure))
        self._tell(AbortEvent(at_s=now_s, reason=render(failure), failure=failure))

    def accuse(self, identity: bytes, detail: str, now_s: float) -> None:
        """Someone has said what cannot be understood. If it is one of the job's, the job would wait for what is lost."""
        if (process := self._members.get(identity)) is not None:
            self.abort(process.failure(Cause.PROTOCOL, detail), now_s)

    def _moment(self) -> tuple[Phase | None, int | None]:
        """What the job as a whole is about."""
        if self.phase in ("RUN", "COLLECT"):
            return None, self._iteration
        early = {"GATHER": Phase.START, "REGISTER": Phase.INIT}
        return (early[self.phase], None) if self.phase in early else (Phase.PLAN, self._iteration + 1)

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
        if self._settings.is_stock and isinstance(message, m.Register | m.SlotsReady | m.Done | m.Collected | m.Sums):
            return True
        is_servers = isinstance(message, m.Goodbye | m.Collected)
        return self.phase == "GATHER" or (process.hello.role == "server" and not is_servers)

    def _welcome(self, now_s: float) -> None:
        self._nodes = self._members.nodes()
        index = {name: i for i, name in enumerate(self._nodes)}
        self._collector.node_of_peer = {p.hello.ps_id: index[p.hello.node] for p in self._members}
        if not self._settings.is_stock:
            self._planner = self._new_planner()
            self._configure(now_s)
            if self.phase == "OVER":
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
                ),
            )
        self.phase = "REGISTER"
        servers = [p.hello.node for p in sorted(self._members.servers, key=lambda p: p.hello.ps_id)]
        self._tell(ReadyEvent(at_s=now_s, nodes=self._nodes, servers=servers))

    def _new_planner(self) -> Planner:
        planner = Planner(
            self._nodes,
            workers={p.hello.node for p in self._members.workers},
            servers={p.hello.node: p.rank for p in self._members.servers},
            new_estimator=self._estimators[self._settings.estimator],
            inflight_bytes=self._settings.inflight_bytes,
            schemes=self._schemes,
        )
        planner.may_leave_routing = not self._settings.verify_sums
        return planner

    def _configure(self, now_s: float) -> None:
        if self._planner is None or self._observers.configured is None:
            return
        try:
            self._planner.configure(self._observers.configured)
        except InputError as error:
            self.abort(Failure(cause=Cause.REFUSED, detail=str(error)), now_s)

    # ---- running

    def _from_process(self, process: Process, message: m.FromNode, now_s: float) -> None:
        if isinstance(message, m.Report):
            self._report(process, message, now_s)
        elif isinstance(message, m.Register):
            self._register(process, message, now_s)
        elif isinstance(message, m.SlotsReady):
            self._preparing.discard((process.identity, message.iteration, message.layout_version))
            if self.phase == "PREPARE" and not self._preparing:
                self._release(now_s)
        elif isinstance(message, m.Sums):
            if message.iteration == self._iteration:
                process.sums = message
        elif isinstance(message, m.Done):
            self._done(process, message, now_s)
        elif isinstance(message, m.Collected):
            if message.iteration == self._iteration:
                self._collected(process, now_s)
        elif isinstance(message, m.JoinBatching | m.Computed):
            self._batch(process, message, now_s)
        elif isinstance(message, m.JoinTokens | m.TokenRequest):
            self._deal_tokens(process, message, now_s)
        elif isinstance(message, m.Goodbye):
            if process.hello.role == "worker" and (
                why := self._admission.leave(process) or self._tokens.leave(process)
            ):
                self.abort(why, now_s)
            if self._members.leave(process, now_s):
                for worker in self._members.workers:
                    self._send(worker, m.Farewell())
            self._collected(process, now_s)
        elif isinstance(message, m.Failed):
            self.abort(replace(message.failure, role=process.hello.role, node=process.hello.node), now_s)

    # ---- batch sizes

    def _batch(self, process: Process, message: m.JoinBatching | m.Computed, now_s: float) -> None:
        if why := self._admission.take(process, message, now_s):
            self.abort(why, now_s)
        elif manager := self._admission.manager:
            for sizes in manager.outbox:
                for worker in self._members.workers:
                    self._send(worker, sizes)
            names = [worker.hello.node for worker in sorted(self._members.workers, key=lambda worker: worker.rank)]
            for event in manager.events:
                self._tell(replace(event, at_s=now_s, workers=names))
            manager.outbox.clear()
            manager.events.clear()

    def _deal_tokens(self, process: Process, message: m.JoinTokens | m.TokenRequest, now_s: float) -> None:
        if why := self._tokens.take(process, message, self._link_rates, now_s):
            self.abort(why, now_s)
            return
        dealer, worker_of_rank = self._tokens.dealer, self._members.worker_of_rank
        assert dealer is not None
        for rank, answer in dealer.outbox:
            self._send(worker_of_rank[rank], answer)
        for event in dealer.events:
            if isinstance(event, TokensEvent) and not self._is_recorded(event.iteration):
                event = replace(event, rows=UNSET)
            self._tell(replace(event, workers=[worker_of_rank[k].hello.node for k in sorted(worker_of_rank)]))
        dealer.outbox.clear()
        dealer.events.clear()

    def _network(self) -> LinkKnowledge | None:
        """For joint plans."""
        rank_of_node = {worker.hello.node: worker.rank for worker in self._members.workers}
        return self._planner.network(rank_of_node) if self._planner else None

    def _link_rates(self) -> Rates | None:
        """For tokens: bytes per second out of and into each worker, by rank."""
        network = self._network()
        if network is None:
            return None
        place_of_rank = dict(
            zip(network.ranks, [i for i, node in enumerate(network.nodes) if node.is_worker], strict=True)
        )
        places = [place_of_rank[rank] for rank in sorted(place_of_rank)]
        return network.capacities.up[places].tolist(), network.capacities.down[places].tolist()

    # ---- what processes report

    def _report(self, process: Process, report: m.Report, now_s: float) -> None:
        process.note(report, self._iteration, now_s)
        self._moved_s = now_s if report.samples or report.queued_bytes else self._moved_s
        self._collector.take(process, report, self._released_s if self.phase in ("RUN", "COLLECT") else None, now_s)
        if why := left_behind(process, self._members.left):
            self.abort(why, now_s)

    def _register(self, process: Process, message: m.Register, now_s: float) -> None:
        if message.number <= process.registration:
            return
        process.registration, process.tensors = message.number, message.tensors
        if any(p.tensors is None for p in self._members.workers):
            return
        if why := disagreement(process, self._members.workers):
            self.abort(why, now_s)
            return
        if self.phase == "COLLECT":
            self._complete(now_s)
            if self.phase == "OVER":  # a sum of it is wrong
                return
        for worker in self._members.workers:
            worker.tensors = None
            worker.early.clear()
        self._iteration = max(self._iteration, self._granted)  # their numbers are used up, and nobody will run them
        self._plan = self._ahead = None
        self._tensors, self._registration = message.tensors, message.number
        if block := self._observers.block:
            self._cut = self._cut_of(block)
        try:
            self._begin_layout(now_s)
        except InputError as error:
            detail = f"the registered tensors cannot be planned: {error}"
            self.abort(Failure(cause=Cause.REFUSED, detail=detail), now_s)
            return
        self.phase = "READY"
        self._next(now_s)

    def _begin_layout(self, now_s: float) -> None:
        """Tell every worker how to cut the registered tensors."""
        assert self._planner is not None
        self._layout_version += 1
        digest = self._planner.register(self._tensors, *self._cut)
        for worker in self._members.workers:
            self._send(
                worker,
                m.Setup(
                    self._registration,
                    self._layout_version,
                    len(self._nodes),
                    self._settings.num_servers,
                    *self._cut,
                    digest,
                    self._iteration + 1,
                ),
            )
        self._tell(self._planner.layout_event(now_s, self._iteration + 1, *self._cut))

    def _next(self, now_s: float) -> None:
        """Plan the next iteration, or wait for an observer to ask for one."""
        if self.phase != "READY":
            return
        if self._iteration < self._granted:
            assert self._plan is not None
            if self._iteration == self._plan.until:
                self._plan, self._ahead = self._ahead, None
            self._begin_iteration(now_s)
            return
        block = self._observers.block
        if block is None:
            if self._observers.is_ending:
                for worker in self._members.workers:
                    self._send(worker, m.Finish())
            else:
                self._tell(IdleEvent(at_s=now_s))
            return
        number = self._iteration + 1
        try:
            decision = self._decide(number, block, now_s)
        except InputError as error:
            self.abort(Failure(cause=Cause.REFUSED, detail=f"cannot be planned: {error}"), now_s)
            return
        self._plan = decision.plan
        for identity, slots in self._slot_orders(decision.new_slots).items():
            self._preparing.add((identity, number, self._layout_version))
            self.outbox.append((identity, m.PrepareSlots(number, self._layout_version, slots)))
        if self._preparing:  # perhaps by an order of the registration before, whose slots this plan may use
            self.phase = "PREPARE"
        else:
            self._release(now_s)

    def _decide(self, number: int, block: m.RunBlock, now_s: float) -> PlanDecision:
        assert self._planner is not None
        if self._observers.begin() and block.inflight_bytes is not None:
            self._planner.inflight_bytes = block.inflight_bytes
        if (wanted := self._cut_of(block)) != self._cut:  # another block's, or what was measured asks for it
            self._cut = wanted
            self._begin_layout(now_s)
        if self._admission.manager is not None:
            self._planner.joint_shares = self._admission.manager.plan_shares()
        self._planner.round_trip_s = self._members.round_trip_s
        return self._planner.decide(number, self._layout_version, block.scheme, block.forecasts, self._observers.left)

    def _slot_orders(self, slots: list[m.NewSlots]) -> dict[bytes, list[m.NewSlots]]:
        """Who creates which slots: its own node's worker over loopback, where there is one, else the lowest-ranked worker."""
        node_of_rank = {server.rank: server.hello.node for server in self._members.servers}
        maker_of_node = {worker.hello.node: worker.identity for worker in self._members.workers}
        lowest = min(self._members.workers, key=lambda worker: worker.hello.ps_id).identity
        orders: dict[bytes, list[m.NewSlots]] = {}
        for slot in slots:
            orders.setdefault(maker_of_node.get(node_of_rank[slot.server], lowest), []).append(slot)
        return orders

    def _cut_of(self, block: m.RunBlock) -> SlicingOptions:
        scheme = self._schemes.get(block.scheme)  # an unknown one is refused where it is to decide
        size_bytes = block.slice_bytes or (scheme.fixed_slice_bytes if scheme else None)
        return SlicingOptions(
            block.alpha_bytes or self._granularity.alpha_bytes, size_bytes, NUM_PROBE if block.probes else 0
        )

    def _release(self, now_s: float) -> None:
        assert self._plan is not None
        if self._plan.measure != self._measuring or self._iteration < 0:
            self._measuring = self._plan.measure
            for server in self._members.servers:
                self._send(server, m.Measure(self._plan.measure))
        self._send_plan(self._plan)
        self._begin_iteration(now_s)

    def _begin_iteration(self, now_s: float) -> None:
        """The present plan's. Where it was sent ahead, workers may have done it already."""
        self._iteration += 1
        self._released_s = self._moved_s = now_s
        self.phase = "RUN"
        for process in self._members:
            process.done, process.sums = process.early.popleft() if process.early else None, None
            process.cpu_before_s = process.cpu_s
            process.reports, process.covers = [], 0
        self._running = sum(worker.done is None for worker in self._members.workers)
        self._tell_plan(now_s)
        self._send_ahead()
        if self._running == 0:
            self._collect_from_servers(now_s)

    @property
    def _granted(self) -> int:
        """The last iteration that workers have the plan of; -1: they have none."""
        last = self._ahead or self._plan
        return -1 if last is None else last.until

    def _send_ahead(self) -> None:
        """Send the next plan as well, where nothing that this one's iterations show can change it: then nobody waits for it."""
        assert self._planner is not None
        block, number = self._observers.block, self._granted + 1
        left = self._observers.left - (number - self._iteration)
        if (
            block is None
            or left <= 0
            or self._ahead is not None
            or self._settings.verify_sums
            or self._cut_of(block) != self._cut
        ):
            return
        if self._planner.is_settled(block.scheme, block.forecasts):
            decision = self._planner.decide(number, self._layout_version, block.scheme, block.forecasts, left)
            assert not decision.new_slots, "the same shares of the same layout need no other slots"
            self._ahead = decision.plan
            self._send_plan(decision.plan)

    def _send_plan(self, plan: m.Plan) -> None:
        for worker in self._members.workers:
            self._send(worker, plan)

    def _tell_plan(self, now_s: float) -> None:
        """The iteration's."""
        assert self._planner is not None
        assert self._plan is not None
        event = PlanEvent(
            at_s=now_s,
            iteration=self._iteration,
            scheme=self._observers.label,
            inflight_bytes=self._plan.inflight_bytes,
            server_of_slice=self._plan.server_of_slice if self._is_recorded(self._iteration) else None,
        )
        self._tell(self._planner.explain_plan(event))

    def _done(self, process: Process, message: m.Done, now_s: float) -> None:
        if message.iteration <= process.finished:
            return  # a repetition
        if process.done is not None and process.finished + 1 == message.iteration <= self._granted:
            process.early.append(message)
            process.finished = message.iteration
            return
        if self.phase != "RUN" or message.iteration != self._iteration:
            detail = f"reported iteration {message.iteration} done while {self._iteration} runs ({self.phase})"
            self.abort(process.failure(Cause.PROTOCOL, f"{detail}: please report this"), now_s)
            return
        self._running -= process.done is None
        process.done, process.finished = message, message.iteration
        if self._running == 0:
            self._collect_from_servers(now_s)

    def _collect_from_servers(self, now_s: float) -> None:
        """Every worker is done. Servers report every heartbeat; a plan made without the rest would rest on the next iteration's."""
        assert self._plan is not None
        asked = [one for one in self._members.servers if self._plan.measure and one.left_after is None]
        self.phase, self._collect_by_s = "COLLECT", now_s + COLLECT_S
        self._collecting = {server.identity for server in asked}
        order = m.Collect(self._iteration)  # one object: encoded once
        for server in asked:
            self._send(server, order)
        self._end_collecting(now_s)

    def _collected(self, server: Process, now_s: float) -> None:
        """It has told all, or has left."""
        self._collecting.discard(server.identity)
        self._end_collecting(now_s)

    def _end_collecting(self, now_s: float) -> None:
        """Go on, once all have told what they had to, or have had their time."""
        if self.phase == "COLLECT" and (not self._collecting or now_s > self._collect_by_s):
            self._complete(now_s)
            self._next(now_s)

    def _complete(self, now_s: float) -> None:
        """The iteration's books are closed; READY for the next, unless the job is over."""
        assert self._planner is not None
        assert self._plan is not None
        if self._settings.verify_sums and (wrong := self._wrong_sum(self._planner, self._plan)):
            self.abort(wrong, now_s)
            return
        done = {w.hello.node: w.done for w in self._members.workers if w.done}
        samples = self._collector.samples(self._planner.most_bytes, now_s)
        took_s = max(d.communication_s for d in done.values())
        iteration_s = mean(
            d.iteration_s for d in done.values()
        )  # the longest would count in two what one waits for another
        if self._cut.fixed_slice_bytes is None:
            layout, servers = self._planner.layout, self._settings.num_servers
            load_bytes = self._planner.mean_load_bytes
            self._granularity.observe(load_bytes, took_s, layout.model_bytes, len(self._nodes), servers)
        if self._plan.measure:
            self._planner.compute_spread_s = self._collector.compute_spread_s()
            work = self._members.work(self._nodes)
            self._planner.observe(samples, took_s, self._collector.exposed_s(), work, iteration_s)
            first_s = float(samples["start_s"].min()) if len(samples) else 0.0
            if self._is_recorded(self._iteration):
                self.events.append(Measured(first_s, self._iteration, samples))
        ended_s = now_s
        finished_s = self._collector.aligned("finished_s")
        if not self._plan.measure:
            ended_s = min(now_s, max(finished_s.values(), default=now_s))  # workers may have told of it later
            self._planner.note_unmeasured(iteration_s)
            for server in self._members.servers:
                server.cpu_s = math.nan  # nobody asked: what it told last is of before
        event = IterationEvent(
            at_s=ended_s,
            iteration=self._iteration,
            scheme=self._observers.label,
            communication_s={node: d.communication_s for node, d in done.items()},
            iteration_s={node: d.iteration_s for node, d in done.items()},
            plan_wait_s={node: d.plan_wait_s for node, d in done.items()},
            started_s=self._collector.aligned("started_s"),
            computed_s=self._collector.aligned("computed_s"),
            finished_s=finished_s,
            samples=len(samples),
            drops=sum(p.drops for p in self._members),
            rejected=dict(self.rejected),
        )
        self._tell(self._planner.explain_iteration(event, samples))
        self._observers.count(now_s)
        self.phase = "READY"

    def _is_recorded(self, iteration: int) -> bool:
        """Whether events tell every message of it: of a training, which may last weeks, ever fewer."""
        step = 10 ** max(0, len(str(iteration)) - 2)
        return self._settings.hold or iteration < RECORDED or iteration % step == 0

    def _wrong_sum(self, planner: Planner, plan: m.Plan) -> Failure | None:
        """What find_wrong_sum says; plans of MXNet's own have no slices to check."""
        if not plan.server_of_slice:
            return None
        told = {worker.hello.node: worker.sums for worker in self._members.workers if worker.sums is not None}
        silent = [worker for worker in self._members.workers if worker.sums is None]
        if silent:
            detail = "does not verify sums, others do: set NALB_VERIFY_SUMS=1 for every process, or for none"
            return silent[0].failure(Cause.UNEQUAL, detail)
        node_of_rank = {server.rank: server.hello.node for server in self._members.servers}
        wrong = find_wrong_sum(planner.layout, plan, told, node_of_rank.__getitem__)
        return wrong.failure if wrong else None

    # ---- observers

    def _from_observer(self, identity: bytes, message: m.FromObserver, now_s: float) -> None:
        present = StateEvent(at_s=now_s, phase=self.phase, nodes=list(self._nodes))
        self._observers.receive(identity, message, present)
        if isinstance(message, m.Configured):
            self._configure(now_s)
        elif isinstance(message, m.RunBlock | m.EndJob):
            self._next(now_s)

    def _send(self, process: Process, message: m.Message) -> None:
        self.outbox.append((process.identity, message))
