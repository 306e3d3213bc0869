"""The iterations of a job's exchange, from the registration of tensors to the last report of each. No sockets, no clock.

    REGISTER  until every worker has registered its tensors          -> Setup
    READY     between iterations; a held job waits here for RunBlock
    PREPARE   until the new slots that the plan needs exist
    RUN       plan sent, and the next one too where nothing can change it or waiting for it would cost more; until every worker is
              Done with all its iterations
    COLLECT   until servers have reported all that they timed

A registration may come again at any time outside RUN's traffic; it begins a new layout version.
"""

from collections import deque
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from nalb.errors import InputError
from nalb.events import IdleEvent, PlanEvent
from nalb.failures import Cause, Failure, Phase
from nalb.planning.nodes import Floats
from nalb.protocol.observers import Outgoing
from nalb.protocol.participant import Process
from nalb.protocol.wire import Message, Report, RunBlock
from nalb.schemes import Scheme, find_scheme
from nalb.services.exchange import messages as m
from nalb.services.exchange.books import IterationBooks
from nalb.services.exchange.decision import PlanOptions
from nalb.services.exchange.passing import PassingBytes
from nalb.services.exchange.plan_events import explain_plan, layout_event
from nalb.services.exchange.planner import Planned
from nalb.services.exchange.sums import check_sums
from nalb.settings import Settings

COLLECT_S = 1.0  # a plan waits no longer for servers' reports, and the links are then measured less well


class Iterations:
    """The state of a job's iterations. Methods that return a Failure say why the job must end; None: it goes on."""

    def __init__(
        self,
        settings: Settings,
        books: IterationBooks,
        schemes: Mapping[str, Scheme],
        joint_shares: Callable[[], Floats | None],
        direct_s: Callable[[int, float], float],
        outbox: deque[Outgoing],
        now_s: float,
    ):
        """joint_shares: see PlanOptions. direct_s: see CallAgreement.last_iteration_s.

        Messages go to `outbox`, and what observers are told to the books' events.
        """
        self._settings, self._books, self._schemes = settings, books, schemes
        self._joint_shares, self._direct_s = joint_shares, direct_s
        self._outbox, self._events = outbox, books.events
        self._members, self._observers, self._progress = books.members, books.observers, books.progress
        self._collector, self._planner, self._slicing = books.collector, books.planner, books.slicing
        self._nodes = books.planner.nodes.names
        self.phase = "REGISTER"
        self.number = -1  # of the iteration under way, or the last one
        self._passing = PassingBytes(len(self._nodes))
        self._inflight_bytes = settings.inflight_bytes  # None: the planner chooses
        self._running = 0  # workers that have not yet reported this iteration done
        self._registration, self._layout_version = -1, -1
        self._tensors: list[m.TensorSpec] = []
        self._measuring = False
        self._considered = -1  # the last iteration under which precisions were chosen
        self._plan: Planned | None = None
        self._ahead: Planned | None = None  # the next one, where workers have it already
        # Orders that are not yet carried out: worker, iteration, layout version.
        self._preparing: set[tuple[bytes, int, int]] = set()
        self._collecting: set[bytes] = set()  # servers that have not yet told all of the iteration
        self._collect_by_s = now_s
        self._released_s = now_s  # when the last plan went out
        self._moved_s = now_s  # when anything was last under way between nodes

    # ---- what processes say

    def report(self, process: Process, report: Report, now_s: float) -> None:
        """Take in samples, and what a report says of traffic."""
        one = self._progress.of(process)
        one.note(report, self.number)
        self._moved_s = now_s if report.samples or report.queued_bytes else self._moved_s
        has_plan = self.phase in ("RUN", "COLLECT") and report.iteration <= self._granted
        self._collector.collect(one, report, self._released_s if has_plan else None, self.number, now_s)

    def register(self, process: Process, message: m.Register, now_s: float) -> Failure | None:
        """A worker says what it pushes from now on."""
        one, workers = self._progress.of(process), self._progress.workers
        if message.number <= one.registration:
            return None
        if message.precision != (precision := self._settings.precision):
            return one.process.failure(
                Cause.UNEQUAL,
                f"sends float32 as {message.precision}, the coordinator was told {precision}: give all the same NALB_PRECISION",
            )
        one.registration, one.tensors = message.number, message.tensors
        if any(worker.tensors is None for worker in workers):
            return None
        if why := self._progress.disagreement(one):
            return why
        if self.phase == "COLLECT" and (why := self._complete(now_s)):
            return why
        for worker in workers:
            worker.tensors = None
            worker.early.clear()
        self.number = max(self.number, self._granted)  # their numbers are used up, and nobody will run them
        self._plan = self._ahead = None
        self._passing = PassingBytes(len(self._nodes))  # a broadcast may come first, as in a new job
        self._tensors, self._registration = message.tensors, message.number
        if block := self._observers.block:
            self._slicing.change(block)
        try:
            self._begin_layout(now_s)
        except InputError as error:
            return Failure(cause=Cause.REFUSED, detail=f"the registered tensors cannot be planned: {error}")
        self._planner.note_direct(self._direct_s(sum(tensor.elements for tensor in self._tensors), now_s))
        self.phase = "READY"
        return self.go_on(now_s)

    def slots_ready(self, process: Process, message: m.SlotsReady, now_s: float) -> Failure | None:
        """A worker has carried out an order to make slots."""
        self._preparing.discard((process.identity, message.iteration, message.layout_version))
        return self._release(now_s) if self.phase == "PREPARE" and not self._preparing else None

    def done(self, process: Process, message: m.Done, now_s: float) -> Failure | None:
        """A worker has its sums."""
        self._collector.align(process, message.finished_s, now_s)
        one = self._progress.of(process)
        if message.iteration <= one.finished:
            return None  # a repetition
        if one.done is not None and one.finished + 1 == message.iteration <= self._granted:
            one.early.append(message)
            one.finished = message.iteration
            return None
        if self.phase != "RUN" or message.iteration != self.number:
            detail = f"reported iteration {message.iteration} done while {self.number} runs ({self.phase})"
            return process.failure(Cause.PROTOCOL, f"{detail}: please report this")
        self._running -= one.done is None
        one.done, one.finished = message, message.iteration
        return self._collect_from_servers(now_s) if self._running == 0 else None

    def sums(self, process: Process, message: m.Sums) -> None:
        """A worker says the numbers of its slices, for `--verify-sums`."""
        if message.iteration == self.number:
            self._progress.of(process).sums = message

    def collected(self, server: Process, now_s: float) -> Failure | None:
        """A server has reported all of the iteration, or has left."""
        self._collecting.discard(server.identity)
        return self._end_collecting(now_s)

    # ---- what time and observers ask for

    def tick(self, now_s: float) -> Failure | None:
        """Keep the deadline of servers, and drop reports of sums without a plan."""
        if self.phase == "RUN":
            self._collector.forget(self.number, self._settings.silence_s)
            if self._considered < self.number:  # while nobody waits for a plan
                self._considered = self.number
                self._planner.consider_precisions()
        return self._end_collecting(now_s)

    def overslept(self, by_s: float, now_s: float) -> None:
        """Take in that the coordinator's process has read nothing for so long: what moved meanwhile is not known yet."""
        self._moved_s = min(now_s, self._moved_s + by_s)

    def stuck(self) -> Failure | None:
        """Why sums of this iteration, or of a direct call, will never come, if so."""
        is_running = self.phase == "RUN"
        waiting = (self._progress.exchanging(self.number) if is_running else []) or self._progress.lacking
        since_s = max([self._moved_s, *(max(worker.computed_s, worker.ready_s) for worker in waiting)])
        at = (Phase.EXCHANGE, self.number) if is_running else (None, None)
        return self._members.stuck(waiting, since_s, *at)

    def configure(self) -> Failure | None:
        """Take over the configured rates, if an observer has told them."""
        if self._observers.configured is None:
            return None
        try:
            self._planner.knowledge.note_configured(self._observers.configured)
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
                self._events.append(IdleEvent(at_s=now_s))
            return None
        number = self.number + 1
        try:
            self._plan = self._planned(number, block, now_s)
        except InputError as error:
            return _not_planned(number, error)
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
        self._layout_version += 1
        layout = self._planner.register(self._tensors, *self._slicing.present)
        for worker in self._members.workers:
            self._send(
                worker,
                m.Setup(
                    self._registration,
                    self._layout_version,
                    len(self._nodes),
                    len(self._planner.nodes.rank_of_node),
                    *self._slicing.present,
                    layout.digest(),
                    self.number + 1,
                ),
            )
        self._events.append(layout_event(layout, now_s, self.number + 1, *self._slicing.present))

    def _planned(self, number: int, block: RunBlock, now_s: float) -> Planned:
        """Make the next plan of a block."""
        if self._observers.begin():
            self._planner.begin_block()
            if block.inflight_bytes is not None:
                self._inflight_bytes = block.inflight_bytes
        self._slicing.precision = self._planner.precisions.wanted.precisions.answers
        if self._slicing.change(block):  # it is another block, or what was measured asks for it
            self._begin_layout(now_s)
        return self._make_plan(number, self._options(block, self._joint_shares()), self._observers.left)

    def _make_plan(self, number: int, options: PlanOptions, most: int, is_early: bool = False) -> Planned:
        """Plan by what is known now, the delay included. The numbers are as for `Planner.plan`."""
        self._planner.knowledge.note_delay(self._members.round_trip_s, self._members.is_bbr)
        planned = self._planner.plan(number, self._layout_version, options, most, is_early)
        self._passing.note(planned.decision.plan, self._planner.layout.whole_part)
        return planned

    def _options(self, block: RunBlock, joint_shares: Floats | None = None) -> PlanOptions:
        """The options of a block's plans. Raises InputError for an unknown scheme."""
        return PlanOptions(
            find_scheme(block.scheme, self._schemes), block.forecasts, self._inflight_bytes, joint_shares
        )

    def _slot_orders(self, slots: list[m.NewSlots]) -> dict[bytes, list[m.NewSlots]]:
        """The slots that each worker creates: those of its own node's server. The lowest-ranked worker creates the rest."""
        node_of_rank = {server.rank: server.hello.node for server in self._members.servers}
        maker_of_node = {worker.hello.node: worker.identity for worker in self._members.workers}
        lowest = min(self._members.workers, key=lambda worker: worker.rank).identity
        orders: dict[bytes, list[m.NewSlots]] = {}
        for slot in slots:
            orders.setdefault(maker_of_node.get(node_of_rank[slot.server], lowest), []).append(slot)
        return orders

    # ---- one iteration

    def _release(self, now_s: float) -> Failure | None:
        assert self._plan is not None
        is_measured = self._plan.decision.is_measured
        if is_measured != self._measuring or self.number < 0:
            self._measuring = is_measured
            for server in self._members.servers:
                self._send(server, m.Measure(is_measured))
        self._send_plan(self._plan)
        return self._begin_iteration(now_s)

    def _begin_iteration(self, now_s: float) -> Failure | None:
        """Begin the next iteration of the present plan. If the plan was sent ahead, workers may have done it already."""
        self.number += 1
        self._released_s = self._moved_s = now_s
        self.phase = "RUN"
        for one in self._progress:
            one.begin()
        self._running = sum(worker.done is None for worker in self._progress.workers)
        self._tell_plan(now_s)
        if why := self._send_ahead():
            return why
        return self._collect_from_servers(now_s) if self._running == 0 else None

    @property
    def _granted(self) -> int:
        """The last iteration that workers have the plan of; -1: they have none."""
        last = self._ahead or self._plan
        return -1 if last is None else last.message.until

    def _send_ahead(self) -> Failure | None:
        """Send the next plan as well, so that nobody waits for it.

        If nothing in this plan's iterations can change it, or if waiting costs more than what they may change.
        """
        block, number = self._observers.block, self._granted + 1
        left = self._observers.left - (number - self.number)
        if (
            block is None
            or left <= 0
            or self._ahead is not None
            or self._settings.verify_sums
            or self._slicing.wanted(block) != self._slicing.present
        ):
            return None
        options = self._options(block)
        is_early = self._planner.should_plan_early(options)
        if is_early or self._planner.is_settled(options):
            try:
                self._ahead = self._make_plan(number, options, left, is_early)
            except InputError as error:
                return _not_planned(number, error)
            assert not self._ahead.new_slots, (
                "agents have no slots, and the same shares of the same layout need no others"
            )
            self._send_plan(self._ahead)
        return None

    def _send_plan(self, plan: Planned) -> None:
        message = plan.message
        if plan.windows:
            window_of = dict(zip(self._nodes, plan.windows, strict=True))
            by_rank = [window_of[worker.hello.node] for _, worker in sorted(self._members.worker_of_rank.items())]
            message = replace(message, inflight_bytes=by_rank)
        for worker in self._members.workers:  # one object: encoded once
            self._send(worker, message)

    def _tell_plan(self, now_s: float) -> None:
        """Tell observers of the iteration's plan."""
        assert self._plan is not None
        message = self._plan.message
        event = PlanEvent(
            at_s=now_s,
            iteration=self.number,
            scheme=self._observers.label,
            inflight_bytes=list(self._plan.windows) or 0,
            server_of_slice=self._places_of(message) if self._observers.is_recorded(self.number) else None,
        )
        self._events.append(explain_plan(event, self._plan.decision, self._nodes))

    def _places_of(self, message: m.Plan) -> list[int]:
        """Each slice's server, as its place among those that sum for all: by sites, servers of sites have ranks between theirs."""
        ranks = sorted(self._planner.nodes.rank_of_node.values())
        place_of_rank = {rank: place for place, rank in enumerate(ranks)}
        return [place_of_rank[rank] for rank in message.server_of_slice]

    def _collect_from_servers(self, now_s: float) -> Failure | None:
        """Every worker is done: ask servers for what they have not reported, which would otherwise count in the next iteration.

        A server that is a worker too, an agent, has reported all: it is done only when all sums are there, its own ones too.
        """
        assert self._plan is not None
        alone = [one for one in self._members.servers if not one.is_worker and not one.has_left]
        asked = alone if self._plan.decision.is_measured else []
        self.phase, self._collect_by_s = "COLLECT", now_s + COLLECT_S
        self._collecting = {server.identity for server in asked}
        order = m.Collect(self.number)  # one object: encoded once
        for server in asked:
            self._send(server, order)
        return self._end_collecting(now_s)

    def _end_collecting(self, now_s: float) -> Failure | None:
        """Go on once all servers have reported, or their time is over."""
        if self.phase == "COLLECT" and (not self._collecting or now_s > self._collect_by_s):
            return self._complete(now_s) or self.go_on(now_s)
        return None

    def _complete(self, now_s: float) -> Failure | None:
        """Close the books of the iteration, unless it was broken off; READY for the next one, unless the job is over."""
        assert self._plan is not None
        layout = self._planner.layout
        node_of_rank = {server.rank: server.hello.node for server in self._members.servers}
        if self._settings.verify_sums and (why := check_sums(layout, self._plan.message, self._progress, node_of_rank)):
            return why
        if all(
            worker.done is None or worker.done.is_whole for worker in self._progress.workers
        ):  # else its times tell nothing
            self._books.close(self.number, self._plan, self._passing.most, now_s)
        self.phase = "READY"
        return None

    def _send(self, process: Process, message: Message) -> None:
        self._outbox.append((process.identity, message))


def _not_planned(number: int, error: InputError) -> Failure:
    """The failure of a job whose plan of this iteration cannot be made."""
    return Failure(cause=Cause.REFUSED, detail=f"cannot be planned: {error}", phase=Phase.PLAN, iteration=number)
