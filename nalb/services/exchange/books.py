"""Closes the books of a complete iteration: learns from it, and tells observers of it. Pure."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median_low

from nalb.events import AnyEvent, IterationEvent
from nalb.measurement.samples import Floats, Samples
from nalb.measurement.shared_uplinks import SharedUplink
from nalb.protocol.members import Members
from nalb.protocol.observers import Measured, Observers
from nalb.services.exchange.decision import Decision
from nalb.services.exchange.knowledge import FinishedIteration
from nalb.services.exchange.plan_events import explain_iteration, shared_uplink_event
from nalb.services.exchange.planner import Planned, Planner
from nalb.services.exchange.progress import JobProgress
from nalb.services.exchange.sample_collector import SampleCollector
from nalb.services.exchange.slicing import Slicing


@dataclass(frozen=True)
class IterationBooks:
    """What an iteration's books are made from, and where their events go."""

    members: Members
    observers: Observers
    progress: JobProgress
    collector: SampleCollector
    planner: Planner
    slicing: Slicing
    events: list[AnyEvent | Measured]

    def close(self, iteration: int, planned: Planned, most_bytes: Callable[[int], Floats], now_s: float) -> None:
        """Every worker is done with the iteration, and servers have reported. most_bytes: see `collect`."""
        decision, samples = planned.decision, self.collector.samples(most_bytes, now_s)
        done = {one.node: one.done for one in self.progress.workers if one.done}
        took_s = max(one.communication_s for one in done.values())
        iteration_s = mean(one.iteration_s for one in done.values())  # the maximum counts waiting twice
        self._learn_granularity(decision, took_s)
        finished_s = self.collector.aligned("finished_s")
        shared_uplinks: list[SharedUplink] = []
        ended_s = now_s
        if decision.is_measured:
            shared_uplinks = self._judge(iteration, planned, samples, took_s, iteration_s)
        else:
            ended_s = min(now_s, max(finished_s.values()))  # workers may have told of it later
            self.planner.note_unmeasured(iteration_s)
            for server in self.progress.servers:
                server.cpu_s = math.nan  # nobody asked servers, so the last value is from before the iteration
        event = IterationEvent(
            at_s=ended_s,
            iteration=iteration,
            scheme=self.observers.label,
            communication_s={node: one.communication_s for node, one in done.items()},
            iteration_s={node: one.iteration_s for node, one in done.items()},
            plan_wait_s={node: one.plan_wait_s for node, one in done.items()},
            started_s=self.collector.aligned("started_s"),
            computed_s=self.collector.aligned("computed_s"),
            finished_s=finished_s,
            samples=len(samples),
            slots=self.planner.slot_count,
            drops=sum(process.drops for process in self.members),
            rejected=dict(self.members.rejected),
            queued_bytes=self.progress.by_node(lambda one: one.queued_bytes),
            resent=self.progress.by_node(lambda one: max(0, one.resent - one.resent_before)),
        )
        known, layout, chosen = self.planner.knowledge.now, self.planner.layout, self.planner.chosen
        self.events.append(explain_iteration(event, decision, known, layout, samples, chosen))
        names = self.planner.nodes.names
        self.events.extend(shared_uplink_event(ended_s, iteration, names, found) for found in shared_uplinks)
        self.events.extend(self.observers.count(now_s))

    def _learn_granularity(self, decision: Decision, took_s: float) -> None:
        """Learn from the iteration's time how large slices should be, where neither block nor scheme says so."""
        if self.slicing.present.fixed_slice_bytes is not None:
            return
        nodes, plan = self.planner.nodes, decision.plan
        load_bytes = 0.0 if plan is None else float(plan.load_bytes(nodes.nodes).mean())
        model_bytes, servers = self.planner.layout.model_bytes, len(nodes.rank_of_node)
        self.slicing.granularity.observe_exchange(load_bytes, took_s, model_bytes, len(nodes.nodes), servers)

    def _judge(
        self, iteration: int, planned: Planned, samples: Samples, took_s: float, iteration_s: float
    ) -> list[SharedUplink]:
        """Learn from the iteration's timed messages; returns the uplinks that they show to be shared."""
        collector, work = self.collector, self.progress.work(self.planner.nodes.names)
        exposed_s, spread_s = collector.exposed_s(), collector.compute_spread_s()
        wait_s = median_low(one.done.plan_wait_s for one in self.progress.workers if one.done)
        finished = FinishedIteration(samples, took_s, exposed_s, spread_s, work, iteration_s, wait_s, planned.is_early)
        found = self.planner.judge(finished, planned)
        if self.observers.is_recorded(iteration):
            first_s = float(samples["start_s"].min()) if len(samples) else 0.0
            self.events.append(Measured(first_s, iteration, samples))
        return found
