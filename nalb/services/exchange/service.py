"""The exchange of gradients as a service: iterations by plan (iterations.py), and calls that no plan covers (calls.py)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nalb.failures import Failure, Moment, Phase
from nalb.feedback.routing import Routing
from nalb.measurement.estimators import Estimator
from nalb.planning.nodes import Floats
from nalb.protocol.members import Members
from nalb.protocol.observers import Observers
from nalb.protocol.participant import Process
from nalb.protocol.service import Service
from nalb.protocol.wire import Configured, EndJob, FromObserver, Message, Report, RunBlock
from nalb.schemes import Scheme
from nalb.services.exchange import messages as m
from nalb.services.exchange.books import IterationBooks
from nalb.services.exchange.calls import CallAgreement
from nalb.services.exchange.iterations import Iterations
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.links import Links
from nalb.services.exchange.planes import Plane
from nalb.services.exchange.planner import Planner, new_planner
from nalb.services.exchange.progress import JobProgress
from nalb.services.exchange.sample_collector import SampleCollector
from nalb.services.exchange.slicing import Slicing
from nalb.settings import Settings


class Exchange(Service):
    """Plans each iteration's sums, and measures the network by them."""

    takes = (Report, *m.FROM_PROCESSES)
    from_servers = (m.Collected,)
    sends = m.TO_PROCESSES
    options = ("estimator", "alpha_bytes", "inflight_bytes", "sites", "verify_sums", "deadline_s", "precision")

    def __init__(
        self,
        settings: Settings,
        members: Members,
        observers: Observers,
        links: Links,
        joint_shares: Callable[[], Floats | None],
        check_training: Sequence[Callable[[Process], Failure | None]],
        schemes: Mapping[str, Scheme],
        estimators: Mapping[str, Callable[[int], Estimator]],
        new_routing: Callable[[], Routing],
        plane: Plane,
    ):
        """links: is told of the planner. joint_shares: see PlanOptions. check_training: asked of a worker that registers tensors.

        schemes, estimators: by the names that settings and observers use. new_routing: makes what decides when iterations go the
        other way.
        """
        super().__init__(members)
        self._settings, self._observers, self._links = settings, observers, links
        self._joint_shares, self._check_training = joint_shares, check_training
        self._schemes, self._new_estimator = schemes, estimators[settings.estimator]
        self._new_routing, self._plane = new_routing, plane
        self.progress = JobProgress(members)
        self._collector = SampleCollector(self.progress, members.rejected, self.events.append)
        self._calls = CallAgreement(members, self.outbox)
        self._iterations: Iterations | None = None  # from begin() on

    @property
    def phase(self) -> str:
        """The phase of the iterations."""
        return self._iterations.phase if self._iterations else ""

    def begin(self, nodes: list[str], now_s: float) -> Failure | None:
        """All processes are there."""
        planner = self._new_planner(nodes)
        self._links.begin(planner)
        self._collector.begin(nodes)
        slicing = Slicing(self._settings.alpha_bytes, self._schemes, planner.chosen.precisions.answers)
        books = IterationBooks(
            self.members, self._observers, self.progress, self._collector, planner, slicing, self.events
        )
        asks = self._joint_shares, self._calls.last_iteration_s
        self._iterations = Iterations(self._settings, books, self._schemes, *asks, self.outbox, now_s)
        return self._iterations.configure()

    def _new_planner(self, names: list[str]) -> Planner:
        workers, servers = self.members.workers, self.members.servers
        nodes = JobNodes.of(
            names,
            workers={p.hello.node for p in workers},
            servers={p.hello.node: p.rank for p in servers if p.sums_for_all},
            sites=self._settings.sites_of(names),
            site_servers={p.hello.node: p.rank for p in servers if p.sums_within_site},
            pushes_zeros=not self._settings.has_agents,
        )
        checks_slices = self._settings.verify_sums  # which only plans have
        plane = replace(self._plane, new_loads=None) if checks_slices else self._plane
        precision = self._settings.precision
        return new_planner(nodes, self._new_estimator, self._new_routing(), plane=plane, precision=precision)

    def take(self, process: Process, message: Message, now_s: float) -> Failure | None:
        """A worker or server has sent a message of the exchange, or a report, which may come before all are there."""
        iterations = self._iterations
        if isinstance(message, Report):
            return self._report(process, message, now_s)
        assert iterations is not None, "the coordinator takes no other message before all are there"
        if isinstance(message, m.Called):
            return self._calls.announced(process, message, now_s)
        if isinstance(message, m.Register):
            late = next((why for check in self._check_training if (why := check(process))), None)
            return late or iterations.register(process, message, now_s)
        if isinstance(message, m.SlotsReady):
            return iterations.slots_ready(process, message, now_s)
        if isinstance(message, m.Done):
            return iterations.done(process, message, now_s)
        if isinstance(message, m.Collected):
            return iterations.collected(process, now_s) if message.iteration == iterations.number else None
        if isinstance(message, m.Sums):
            iterations.sums(process, message)
        return None

    def _report(self, process: Process, report: Report, now_s: float) -> Failure | None:
        if self._iterations is None:
            self._collector.collect(self.progress.of(process), report, None, -1, now_s)
            return None
        self._iterations.report(process, report, now_s)
        return self.progress.left_behind(process) or self._calls.reported(process)

    def obey(self, order: FromObserver, now_s: float) -> Failure | None:
        """An observer tells the configured rates, asks for a block of iterations, or ends a held job."""
        if self._iterations is None:
            return None
        if isinstance(order, Configured):
            return self._iterations.configure()
        return self._iterations.go_on(now_s) if isinstance(order, RunBlock | EndJob) else None

    def tick(self, now_s: float) -> Failure | None:
        """Keep the deadlines of iterations and calls."""
        assert self._iterations is not None
        return self._iterations.stuck() or self._iterations.tick(now_s)

    def overslept(self, by_s: float, now_s: float) -> None:
        """The deadline of iterations and calls counts none of that time."""
        if self._iterations is not None:
            self._iterations.overslept(by_s, now_s)

    def leave(self, process: Process, now_s: float) -> Failure | None:
        """A process ends in good order."""
        assert self._iterations is not None
        one = self.progress.of(process)
        one.left_after = one.finished
        return self._iterations.collected(process, now_s)

    def moment(self, process: Process | None) -> Moment | None:
        """The phase and iteration of a process, or of the job."""
        if self._iterations is None or self.phase == "REGISTER":
            return None
        number = self._iterations.number
        if self.phase == "RUN":
            return (None, number) if process is None else self.progress.moment(process, number)
        return (None, number) if self.phase == "COLLECT" and process is None else (Phase.PLAN, number + 1)
