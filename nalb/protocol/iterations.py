"""The iterations of a job's exchange: what is registered, which plan holds, and when all is told of one. No sockets, no clock.

    REGISTER  until every worker has said what it pushes             -> Setup
    READY     between iterations; a held job waits here for RunBlock
    PREPARE   until the new slots that the plan needs exist
    RUN       plan sent, and the next one too where nothing can change it; until every worker is Done with all its iterations
    COLLECT   until servers have told all that they timed

A registration may come again at any time outside RUN's traffic; it begins a new layout version.
"""

import math
from collections import Counter, deque
from collections.abc import Mapping
from statistics import mean
from typing import NamedTuple

from nalb.errors import InputError
from nalb.events import IdleEvent, IterationEvent, PlanEvent
from nalb.failures import Cause, Failure, Phase
from nalb.measurement.shared_uplinks import SharedUplink
from nalb.options import DEFAULT_PRECISION
from nalb.planning.granularity import Granularity
from nalb.planning.nodes import Floats
from nalb.planning.slices import NUM_PROBE, Layout
from nalb.protocol import messages as m
from nalb.protocol.batch_admission import BatchAdmission
from nalb.protocol.decision import PlanOptions
from nalb.protocol.knowledge import FinishedIteration
from nalb.protocol.members import Members
from nalb.protocol.observers import Measured, Observers, Outgoing
from nalb.protocol.participant import Process, disagreement
from nalb.protocol.passing import PassingBytes
from nalb.protocol.plan_events import explain_iteration, explain_plan, layout_event, shared_uplink_event
from nalb.protocol.planner import Planned, Planner
from nalb.protocol.sample_collector import SampleCollector
from nalb.protocol.sums import find_wrong_sum
from nalb.schemes import Scheme, find_scheme
from nalb.settings import Settings

RECORDED = 200  # iterations of a training, of which every message is told
COLLECT_S = 1.0  # a plan waits no longer for what servers have still to tell: they are measured less well then


class SlicingOptions(NamedTuple):
    """How tensors become slices, where it is not the same for all jobs."""

    alpha_bytes: float
    fixed_slice_bytes: float | None = None  # in place of what alpha gives
    num_probe: int = NUM_PROBE  # probe slices per server
    precision: str = DEFAULT_PRECISION  # as what float32 values travel


class Iterations:
    """Methods that return a Failure say why the job must end; None: it goes on."""

    def __init__(
        self,
        settings: Settings,
        members: Members,
        observers: Observers,
        admission: BatchAdmission,
        schemes: Mapping[str, Scheme],
        outbox: deque[Outgoing],
        now_s: float,
    ):
        """admission: for what joint plans decide together with batch sizes. Messages go to `outbox`."""
        self._settings, self._members, self._observers = settings, members, observers
        self._admission, self._schemes, self._outbox = admission, schemes, outbox
        self._tell, self._events = observers.tell, observers.events
        self.phase = "REGISTER"
        self.number = -1  # of the iteration under way, or the last one
        self.rejected: Counter[str] = Counter()
        self._collector = SampleCollector(members, self.rejected, self._tell)
        self.planner: Planner | None = None
        self._nodes: list[str] = []
        self._passing = PassingBytes(0)
        self._inflight_bytes = settings.inflight_bytes  # None: the planner chooses
        self._running = 0  # workers that have not yet reported this iteration done
        self._registration, self._layout_version = -1, -1
        self._tensors: list[m.TensorSpec] = []
        self._granularity = Granularity(settings.alpha_bytes)
        self._cut = SlicingOptions(self._granularity.alpha_bytes, precision=settings.precision)
        self._measuring = False
        self._plan: Planned | None = None
        self._ahead: Planned | None = None  # the next one, where workers have it already
        # Orders that are not yet carried out: worker, iteration, layout version.
        self._preparing: set[tuple[bytes, int, int]] = set()
        self._collecting: set[bytes] = set()  # servers that have not yet told all of the iteration
        self._collect_by_s = now_s
        self._released_s = now_s  # when the last plan went out
        self.moved_s = now_s  # when anything was last under way between nodes

    def begin(self, planner: Planner | None, nodes: list[str]) -> None:
        """All processes are there. planner: None where MXNet runs alone. nodes: in planning order."""
        self.planner, self._nodes, self._passing = planner, nodes, PassingBytes(len(nodes))
        self._collector.begin(nodes)

    # ---- what processes say

    def report(self, process: Process, report: m.Report, now_s: float) -> None:
        """Samples, and how far the process is."""
        process.note(report, self.number, now_s)
        self.moved_s = now_s if report.samples or report.queued_bytes else self.moved_s
        self._collector.take(process, report, self._released_s if self.phase in ("RUN", "COLLECT") else None, now_s)

    def register(self, process: Process, message: m.Register, now_s: float) -> Failure | None:
        """What the worker pushes from now on."""
        if message.number <= process.registration:
            return None
        if message.precision != self._settings.precision:
            return process.failure(
                Cause.UNEQUAL,
                f"sends float32 as {message.precision}, the coordinator was told {self._settings.precision}: give all the same "
                "NALB_PRECISION",
            )
        process.registration, process.tensors = message.number, message.tensors
        if any(p.tensors is None for p in self._members.workers):
            return None
        if why := disagreement(process, self._members.workers):
            return why
        if self.phase == "COLLECT" and (why := self._complete(now_s)):
            return why
        for worker in self._members.workers:
            worker.tensors = None
            worker.early.clear()
        self.number = max(self.number, self._granted)  # their numbers are used up, and nobody will run them
        self._plan = self._ahead = None
        self._tensors, self._registration = message.tensors, message.number
        if block := self._observers.block:
            self._cut = self._cut_of(block)
        try:
            self._begin_layout(now_s)
        except InputError as error:
            return Failure(cause=Cause.REFUSED, detail=f"the registered tensors cannot be planned: {error}")
        self.phase = "READY"
        return self.go_on(now_s)

    def slots_ready(self, process: Process, message: m.SlotsReady, now_s: float) -> Failure | None:
        """An order to make slots is carried out."""
        self._preparing.discard((process.identity, message.iteration, message.layout_version))
        return self._release(now_s) if self.phase == "PREPARE" and not self._preparing else None

    def done(self, process: Process, message: m.Done, now_s: float) -> Failure | None:
        """A worker has its sums."""
        if message.iteration <= process.finished:
            return None  # a repetition
        if process.done is not None and process.finished + 1 == message.iteration <= self._granted:
            process.early.append(message)
            process.finished = message.iteration
            return None
        if self.phase != "RUN" or message.iteration != self.number:
            detail = f"reported iteration {message.iteration} done while {self.number} runs ({self.phase})"
            return process.failure(Cause.PROTOCOL, f"{detail}: please report this")
        self._running -= process.done is None
        process.done, process.finished = message, message.iteration
        return self._collect_from_servers(now_s) if self._running == 0 else None

    def collected(self, server: Process, now_s: float) -> Failure | None:
        """The server has told all, or has left."""
        self._collecting.discard(server.identity)
        return self._end_collecting(now_s)

    # ---- what time and observers ask for

    def tick(self, now_s: float) -> Failure | None:
        """Keep the deadlines."""
        if self.phase == "RUN":
            self._collector.forget(self.number, self._settings.silence_s)
        return self._end_collecting(now_s)

    def stuck(self) -> Failure | None:
        """Why the iteration under way will never end, if so."""
        waiting = self._members.exchanging(self.number) if self.phase == "RUN" else []
        since_s = max([self.moved_s, *(worker.computed_s for worker in waiting)])
        return self._members.stuck(waiting, since_s, Phase.EXCHANGE, self.number)

    def configure(self) -> Failure | None:
        """Take over the configured rates, if an observer has told them."""
        if self.planner is None or self._observers.configured is None:
            return None
        try:
            self.planner.knowledge.note_configured(self._observers.configured)
        except InputError as error:
            return Failure(cause=Cause.REFUSED, detail=str(error))
        return None

    def go_on(self, now_s: float) -> Failure | None:
        """Plan the next iteration, or wait for an observer to ask for one."""
        if self.phase != "READY":
            return None
        if self.number < self._granted:
            assert self._plan is not None
            if self.number == self._plan.message.until:
                self._plan, self._ahead = self._ahead, None
            return self._begin_iteration(now_s)
        block = self._observers.block
        if block is None:
            if self._observers.is_ending:
                for worker in self._members.workers:
                    self._send(worker, m.Finish())
            else:
                self._tell(IdleEvent(at_s=now_s))
            return None
        number = self.number + 1
        try:
            self._plan = self._planned(number, block, now_s)
        except InputError as error:
            return Failure(cause=Cause.REFUSED, detail=f"cannot be planned: {error}")
        for identity, slots in self._slot_orders(self._plan.new_slots).items():
            self._preparing.add((identity, number, self._layout_version))
            self._outbox.append((identity, m.PrepareSlots(number, self._layout_version, slots)))
        if self._preparing:  # perhaps by an order of the registration before, whose slots this plan may use
            self.phase = "PREPARE"
            return None
        return self._release(now_s)

    # ---- the layout

    def _begin_layout(self, now_s: float) -> None:
        """Tell every worker how to cut the registered tensors."""
        assert self.planner is not None
        self._layout_version += 1
        layout = self.planner.register(self._tensors, *self._cut)
        for worker in self._members.workers:
            self._send(
                worker,
                m.Setup(
                    self._registration,
                    self._layout_version,
                    len(self._nodes),
                    len(self.planner.nodes.rank_of_node),
                    *self._cut[:-1],
                    layout.digest(),
                    self.number + 1,
                    self._cut.precision,
                ),
            )
        self._tell(layout_event(layout, now_s, self.number + 1, *self._cut[:-1]))

    def _planned(self, number: int, block: m.RunBlock, now_s: float) -> Planned:
        """The block's next plan."""
        assert self.planner is not None
        if self._observers.begin() and block.inflight_bytes is not None:
            self._inflight_bytes = block.inflight_bytes
        if (wanted := self._cut_of(block)) != self._cut:  # another block's, or what was measured asks for it
            self._cut = wanted
            self._begin_layout(now_s)
        self.planner.knowledge.note_delay(self._members.round_trip_s, self._members.is_bbr)
        joint_shares = None if self._admission.manager is None else self._admission.manager.plan_shares()
        options = self._options(block, joint_shares)
        planned = self.planner.plan(number, self._layout_version, options, self._observers.left)
        self._passing.note(planned.decision.plan)
        return planned

    def _options(self, block: m.RunBlock, joint_shares: Floats | None = None) -> PlanOptions:
        """What the block asks of its plans. InputError for an unknown scheme."""
        return PlanOptions(
            find_scheme(block.scheme, self._schemes), block.forecasts, self._inflight_bytes, joint_shares
        )

    def _slot_orders(self, slots: list[m.NewSlots]) -> dict[bytes, list[m.NewSlots]]:
        """Who creates which slots: its own node's worker over loopback, where there is one, else the lowest-ranked worker."""
        node_of_rank = {server.rank: server.hello.node for server in self._members.servers}
        maker_of_node = {worker.hello.node: worker.identity for worker in self._members.workers}
        lowest = min(self._members.workers, key=lambda worker: worker.rank).identity
        orders: dict[bytes, list[m.NewSlots]] = {}
        for slot in slots:
            orders.setdefault(maker_of_node.get(node_of_rank[slot.server], lowest), []).append(slot)
        return orders

    def _cut_of(self, block: m.RunBlock) -> SlicingOptions:
        scheme = self._schemes.get(block.scheme)  # an unknown one is refused where it is to decide
        size_bytes = block.slice_bytes or (scheme.fixed_slice_bytes if scheme else None)
        return SlicingOptions(
            block.alpha_bytes or self._granularity.alpha_bytes,
            size_bytes,
            NUM_PROBE if block.probes else 0,
            block.precision or self._settings.precision,
        )

    # ---- one iteration

    def _release(self, now_s: float) -> Failure | None:
        assert self._plan is not None
        is_measured = self._plan.decision.is_measured
        if is_measured != self._measuring or self.number < 0:
            self._measuring = is_measured
            for server in self._members.servers:
                self._send(server, m.Measure(is_measured))
        self._send_plan(self._plan.message)
        return self._begin_iteration(now_s)

    def _begin_iteration(self, now_s: float) -> Failure | None:
        """The present plan's. Where it was sent ahead, workers may have done it already."""
        self.number += 1
        self._released_s = self.moved_s = now_s
        self.phase = "RUN"
        for process in self._members:
            process.done, process.sums = process.early.popleft() if process.early else None, None
            process.cpu_before_s = process.cpu_s
            process.reports, process.covers = [], 0
        self._running = sum(worker.done is None for worker in self._members.workers)
        self._tell_plan(now_s)
        self._send_ahead()
        return self._collect_from_servers(now_s) if self._running == 0 else None

    @property
    def _granted(self) -> int:
        """The last iteration that workers have the plan of; -1: they have none."""
        last = self._ahead or self._plan
        return -1 if last is None else last.message.until

    def _send_ahead(self) -> None:
        """Send the next plan as well, where nothing that this one's iterations show can change it: then nobody waits for it."""
        assert self.planner is not None
        block, number = self._observers.block, self._granted + 1
        left = self._observers.left - (number - self.number)
        if (
            block is None
            or left <= 0
            or self._ahead is not None
            or self._settings.verify_sums
            or self._cut_of(block) != self._cut
        ):
            return
        options = self._options(block)
        if self.planner.is_settled(options):
            self._ahead = self.planner.plan(number, self._layout_version, options, left)
            assert not self._ahead.new_slots, "the same shares of the same layout need no other slots"
            self._passing.note(self._ahead.decision.plan)
            self._send_plan(self._ahead.message)

    def _send_plan(self, plan: m.Plan) -> None:
        for worker in self._members.workers:
            self._send(worker, plan)

    def _tell_plan(self, now_s: float) -> None:
        """The iteration's."""
        assert self._plan is not None
        message = self._plan.message
        event = PlanEvent(
            at_s=now_s,
            iteration=self.number,
            scheme=self._observers.label,
            inflight_bytes=message.inflight_bytes,
            server_of_slice=message.server_of_slice if self.is_recorded(self.number) else None,
        )
        self._tell(explain_plan(event, self._plan.decision, self._nodes))

    def _collect_from_servers(self, now_s: float) -> Failure | None:
        """Every worker is done. Servers report every heartbeat; a plan made without the rest would rest on the next iteration's."""
        assert self._plan is not None
        asked = [one for one in self._members.servers if self._plan.decision.is_measured and one.left_after is None]
        self.phase, self._collect_by_s = "COLLECT", now_s + COLLECT_S
        self._collecting = {server.identity for server in asked}
        order = m.Collect(self.number)  # one object: encoded once
        for server in asked:
            self._send(server, order)
        return self._end_collecting(now_s)

    def _end_collecting(self, now_s: float) -> Failure | None:
        """Go on, once all servers have told what they had to, or have had their time."""
        if self.phase == "COLLECT" and (not self._collecting or now_s > self._collect_by_s):
            return self._complete(now_s) or self.go_on(now_s)
        return None

    def _complete(self, now_s: float) -> Failure | None:
        """The iteration's books are closed; READY for the next, unless the job is over."""
        assert self.planner is not None
        assert self._plan is not None
        decision, layout = self._plan.decision, self.planner.layout
        if self._settings.verify_sums and (wrong := self._wrong_sum(layout, self._plan.message)):
            return wrong
        done = {w.hello.node: w.done for w in self._members.workers if w.done}
        samples = self._collector.samples(self._passing.most, now_s)
        took_s = max(d.communication_s for d in done.values())
        iteration_s = mean(
            d.iteration_s for d in done.values()
        )  # the longest would count in two what one waits for another
        if self._cut.fixed_slice_bytes is None:
            nodes, plan = self.planner.nodes, decision.plan
            load_bytes = 0.0 if plan is None else float(plan.load_bytes(nodes.nodes).mean())
            servers = len(nodes.rank_of_node)
            self._granularity.observe(load_bytes, took_s, layout.model_bytes, len(self._nodes), servers)
        shared_uplinks: list[SharedUplink] = []
        if decision.is_measured:
            collector, work = self._collector, self._members.work(self._nodes)
            exposed_s, spread_s = collector.exposed_s(), collector.compute_spread_s()
            finished = FinishedIteration(samples, took_s, exposed_s, spread_s, work, iteration_s)
            shared_uplinks = self.planner.judge(finished)
            first_s = float(samples["start_s"].min()) if len(samples) else 0.0
            if self.is_recorded(self.number):
                self._events.append(Measured(first_s, self.number, samples))
        ended_s = now_s
        finished_s = self._collector.aligned("finished_s")
        if not decision.is_measured:
            ended_s = min(now_s, max(finished_s.values(), default=now_s))  # workers may have told of it later
            self.planner.note_unmeasured(iteration_s)
            for server in self._members.servers:
                server.cpu_s = math.nan  # nobody asked: what it told last is of before
        event = IterationEvent(
            at_s=ended_s,
            iteration=self.number,
            scheme=self._observers.label,
            communication_s={node: d.communication_s for node, d in done.items()},
            iteration_s={node: d.iteration_s for node, d in done.items()},
            plan_wait_s={node: d.plan_wait_s for node, d in done.items()},
            started_s=self._collector.aligned("started_s"),
            computed_s=self._collector.aligned("computed_s"),
            finished_s=finished_s,
            samples=len(samples),
            slots=self.planner.slot_count,
            drops=sum(p.drops for p in self._members),
            rejected=dict(self.rejected),
        )
        self._tell(explain_iteration(event, decision, self.planner.knowledge.now, layout.model_bytes, samples))
        for found in shared_uplinks:
            self._tell(shared_uplink_event(ended_s, self.number, self._nodes, found))
        self._observers.count(now_s)
        self.phase = "READY"
        return None

    def is_recorded(self, iteration: int) -> bool:
        """Whether events tell every message of it: of a training, which may last weeks, ever fewer."""
        step = 10 ** max(0, len(str(iteration)) - 2)
        return self._settings.hold or iteration < RECORDED or iteration % step == 0

    def _wrong_sum(self, layout: Layout, plan: m.Plan) -> Failure | None:
        """What find_wrong_sum says; plans of MXNet's own have no slices to check."""
        if not plan.server_of_slice:
            return None
        told = {worker.hello.node: worker.sums for worker in self._members.workers if worker.sums is not None}
        silent = [worker for worker in self._members.workers if worker.sums is None]
        if silent:
            detail = "does not verify sums, others do: set NALB_VERIFY_SUMS=1 for every process, or for none"
            return silent[0].failure(Cause.UNEQUAL, detail)
        node_of_rank = {server.rank: server.hello.node for server in self._members.servers}
        wrong = find_wrong_sum(layout, plan, told, node_of_rank.__getitem__)
        return wrong.failure if wrong else None

    def _send(self, process: Process, message: m.Message) -> None:
        self._outbox.append((process.identity, message))
