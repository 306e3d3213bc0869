"""The present state of a run, taken from its events one by one. Pure."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from nalb.errors import listed, printable
from nalb.events import (
    AbortEvent,
    AnyEvent,
    BatchEvent,
    ChangeEvent,
    DoubtEvent,
    FailureEvent,
    IterationEvent,
    LayoutEvent,
    PlanEvent,
    ReadyEvent,
    SharedUplinkEvent,
    StartedEvent,
    TokensEvent,
)
from nalb.reporting.pace import Pace, pace_of
from nalb.reporting.record import Layouts, Readies, Step, follows
from nalb.reporting.step_costs import StepModel, loads_bytes, nodes_of, shares_of

RECENT = 20  # iterations that rates and the pace are of
NEWS = 8  # of what happened last
WAITING, RUNNING, FAILED, OVER = "waiting for all processes", "running", "failed", "over"


class Happened(NamedTuple):
    """Something that a reader wants to know of, and when, on the clock of events."""

    at_s: float
    words: str


@dataclass
class LiveState:
    """What is known of a run so far. Bytes and counts are since the first event."""

    phase: str = WAITING
    nodes: list[str] = field(default_factory=list)
    model_bytes: int = 0
    iterations: int = 0
    tokens: int = 0  # iterations of tokens
    restarts: int = 0
    plan_changes: int = 0  # how often the planner gave another reason
    carried_bytes: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # each way, by node
    resent: Counter[str] = field(default_factory=Counter)  # packets that TCP sent again, by node
    batch_sizes: dict[str, int] = field(default_factory=dict)  # by worker's node; empty where the script sizes batches
    news: deque[Happened] = field(default_factory=lambda: deque(maxlen=NEWS))
    recent: deque[Step] = field(default_factory=lambda: deque(maxlen=RECENT))  # of the present scheme
    _counts: Counter[str] = field(default_factory=Counter)  # iterations, by scheme
    _took_s: dict[str, deque[float]] = field(default_factory=dict)  # recent iterations that are not first, by scheme
    _readies: Readies = field(default_factory=Readies)
    _layouts: Layouts = field(default_factory=Layouts)
    _ended_s: float | None = None  # when the last iteration ended
    _reason: str | None = None
    _shared: list[SharedUplinkEvent] = field(default_factory=list)
    _known: tuple[int, Pace | None, float | None] = (0, None, None)  # after so many iterations: pace() and least_s()

    def take_all(self, events: Iterable[AnyEvent]) -> int:
        """Take events in; returns how many."""
        count = 0
        for event in events:
            self.take(event)
            count += 1
        return count

    def take(self, event: AnyEvent) -> None:
        """Take one event in."""
        if isinstance(event, ReadyEvent):
            self.phase, self.nodes = RUNNING, event.nodes
            self._readies.take(event)
            self._ended_s = event.at_s
            self.recent.clear()
        elif isinstance(event, StartedEvent):  # nobody tells when the processes of a job without a coordinator have met
            self.phase = RUNNING
        elif isinstance(event, LayoutEvent):
            self._layouts.take(event)
            self.model_bytes = event.model_bytes
        elif isinstance(event, PlanEvent):
            if event.reason is not None and event.reason != self._reason:
                self.plan_changes += self._reason is not None
                self._reason = event.reason
                self._note(event, f"plan: {event.reason}")
        elif isinstance(event, IterationEvent):
            self._take_iteration(event)
        elif isinstance(event, TokensEvent):
            self.tokens += 1
        elif isinstance(event, BatchEvent):
            self.batch_sizes = dict(zip(event.workers, event.next_sizes, strict=False))
        elif isinstance(event, ChangeEvent):
            self._note(event, "the network changed")
        elif isinstance(event, SharedUplinkEvent):
            self._shared.append(event)
            self._note(event, f"{listed(event.nodes)} and {listed(event.others)} seem to be sites with a shared uplink")
        elif isinstance(event, DoubtEvent):
            self._note(event, f"{event.process} reported what cannot be: {event.reason}")
        elif isinstance(event, AbortEvent | FailureEvent):
            self.phase = FAILED
            if not self.news or self.news[-1].words != printable(event.words):
                self._note(event, event.words)

    def restarted(self, times: int) -> None:
        """Take in that the run was started again so often in all; nothing happens where that is known."""
        if times == self.restarts:
            return
        self.restarts, self.phase = times, WAITING
        self.news.append(Happened(self.news[-1].at_s if self.news else 0.0, f"started again ({times})"))

    def _note(self, event: AnyEvent, words: str) -> None:
        self.news.append(Happened(event.at_s, printable(words)))  # files may have words of scripts as they were

    def _take_iteration(self, event: IterationEvent) -> None:
        begin_s = event.at_s if self._ended_s is None else min(self._ended_s, event.at_s)
        ready, layout = self._readies.of(event), self._layouts.of(event)
        if self.recent and self.recent[-1].event.scheme != event.scheme:
            self.recent.clear()
        is_first = not self.recent or not follows(event, self.recent[-1].event)
        step = Step(self.iterations, begin_s, event, [], ready=ready, layout=layout, is_first=is_first)
        self.recent.append(step)
        self.nodes = self.nodes or list(event.communication_s)
        self.phase, self._ended_s = RUNNING, event.at_s
        self.iterations += 1
        self._counts[event.scheme] += 1
        if not step.is_first:
            self._took_s.setdefault(event.scheme, deque(maxlen=RECENT)).append(event.at_s - begin_s)
        self.resent.update(event.resent)
        shares = shares_of(step)
        if shares is not None:
            of_node, _ = loads_bytes(step, shares)
            for node, load in of_node.items():
                self.carried_bytes[node] += load

    def ended(self) -> None:
        """The job is over."""
        self.phase = FAILED if self.phase == FAILED else OVER

    @property
    def last(self) -> Step | None:
        """The newest iteration."""
        return self.recent[-1] if self.recent else None

    @property
    def rate_per_s(self) -> float | None:
        """Iterations a second, over the recent ones; None before there are two."""
        if len(self.recent) < 2:
            return None
        took_s = self.recent[-1].event.at_s - self.recent[0].event.at_s
        return (len(self.recent) - 1) / took_s if took_s > 0 else None

    def pace(self) -> Pace | None:
        """What sets the pace of the recent iterations; None before there is one."""
        return self._computed()[0]

    def least_s(self) -> float | None:
        """The least time that any shares take for the newest iteration, by what is known of the links; None: not known."""
        return self._computed()[1]

    def _computed(self) -> tuple[Pace | None, float | None]:
        """Both, computed once for each iteration."""
        last = self.last
        if last is None:
            return None, None
        if self._known[0] != self.iterations:
            steps = [one for one in self.recent if not one.is_first] or [last]
            model = StepModel.of(last)
            pace = pace_of(last.event.scheme, steps, self._shared)
            self._known = self.iterations, pace, None if model is None else model.least_s()
        return self._known[1:]

    def left_s(self, iterations: int | None) -> float | None:
        """Seconds that are left of a run of so many iterations; None: not known.

        Each scheme that was seen will have at least as many as the one with most so far. The others may be of any scheme.
        """
        if iterations is None or not self._took_s:
            return None
        each_s = {scheme: median(took_s) for scheme, took_s in self._took_s.items()}
        usual_s, most = median(each_s.values()), max(self._counts.values())
        behind = {scheme: most - count for scheme, count in self._counts.items()}
        others = max(0, iterations - self.iterations - sum(behind.values()))
        return others * usual_s + sum(count * each_s.get(scheme, usual_s) for scheme, count in behind.items())

    def shares(self) -> dict[str, float]:
        """The part of the model that each node's server sums; empty where that is not known."""
        shares = None if self.last is None else shares_of(self.last)
        if self.last is None or shares is None:
            return {}
        names = [node.name for node in nodes_of(self.last)]
        return dict(zip(names, (shares / shares.sum()).tolist(), strict=True))
