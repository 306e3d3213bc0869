"""A rank's iterations, from the training process's orders and the coordinator's plans to Done. No sockets, no waiting.

Register -> Setup      the tensors are cut
Plan -> Route          for an iteration, or for some; an order that comes earlier waits
Sum, Ready ... Summed  an iteration by the plane, until all its sums are back
RingBegun, RingDone    an iteration by the ring
BreakOff               the iteration under way ends with the tensors that it has
"""

import mmap
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from nalb.errors import PeerError
from nalb.plane import orders
from nalb.plane.exchange import AgentExchange
from nalb.plane.orders import FromAgent, FromTraining
from nalb.plane.pushing import Cut, SliceProgress
from nalb.planning.slices import Tensor, wire_dtype
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.services.exchange.worker_protocol import WorkerProtocol, layout_by
from nalb.transport.client import Client


class RankIterations:
    """The rank's place in the job. Methods raise PeerError for orders that cannot be, and other NalbErrors for bad plans."""

    def __init__(
        self,
        client: Client,
        exchange: AgentExchange,
        tell: Callable[[FromAgent], None],
        leave: Callable[[], None],
        precision: str,
    ):
        """tell: sends an order to the training process. leave: called once it leaves and no sums are under way.

        precision: the one that this rank's options ask for.
        """
        self._client, self._exchange, self._tell, self._precision = client, exchange, tell, precision
        self.memory: mmap.mmap | bytes = b""  # that the training process shares
        self._protocol = WorkerProtocol()
        self._inbox: list[wire.Message] = []  # for the protocol
        self._held: deque[FromTraining] = deque()  # orders that wait for an iteration's beginning or end
        self._tensors: list[m.TensorSpec] = []  # of the registration that comes or holds
        self._are_whole = False
        self._is_registered = False  # and no BreakOff since
        self._cut: Cut | None = None
        self._plan: m.Plan | None = None  # of the iteration that comes or is under way
        self._routes_told = -1  # the last iteration that the training process knows the route of
        self._progress: SliceProgress | None = None  # of the iteration under way by the plane
        self._calls: list[int] = []  # the script's calls up to the sum of each tensor begun
        self._noted = 0, 0  # calls up to the last one that was ready, and summed
        self._started_s = self._computed_s = self._last_end_s = 0.0
        self._plan_wait_s = 0.0  # of the iteration under way by the plane
        self._cpu_before_s = 0.0
        by_gloo = count(1)
        self._take: dict[type, Callable[[Any], None]] = {
            m.Called: self._announce,
            orders.TensorList: self._register,
            orders.Sum: self._sum,
            orders.Ready: self._ready,
            orders.BreakOff: lambda _: self._break_off(),
            orders.RingBegun: lambda order: client.note(calls=order.calls),
            orders.RingDone: self._ring_done,
            orders.ByGloo: lambda _: client.note(by_gloo=next(by_gloo)),
            orders.Unordered: lambda _: client.note(is_ordered=False),
            orders.WriteKept: self._write_kept,
            orders.ReadKept: lambda order: exchange.read_kept(Path(order.path)),
            orders.Leave: lambda _: leave(),
        }

    @property
    def under_way(self) -> int | None:
        """The iteration that the plane sums."""
        return None if self._progress is None else self._protocol.iteration

    def hear(self, message: wire.Message) -> None:
        """Take in what the coordinator says of iterations."""
        self._inbox.append(message)
        if self._plan is not None:
            self._tell_routes(self._plan)

    def take(self, order: FromTraining) -> None:
        """Take in an order; it is carried out by `go_on`, in order but for Ready."""
        self._held.append(order)

    def go_on(self) -> None:
        """Carry out what can be carried out, push what may leave, and end the iteration where it is complete."""
        while True:
            self._obey()
            if self._exchange.push() and not self._started_s:
                self._started_s = time.monotonic()
            self._note_sums()
            if self._progress is None or not self._progress.is_complete or len(self._calls) < self._progress.tensors:
                return
            self._end_iteration()

    @property
    def may_go_on(self) -> bool:
        """Whether `go_on` has more to do, before anything comes."""
        return self._progress is not None and self._progress.has_next

    def _break_off(self) -> None:
        """No further tensors come."""
        self._is_registered = False
        if self._progress is None:
            self._plan = None
        elif self._progress.tensors > len(self._calls):
            self._progress.tensors = len(self._calls)
            self._note_computed(self._progress)

    # ---- orders

    def _obey(self) -> None:
        """Carry out orders, up to the first that must wait."""
        self._choose()
        while self._held and not self._must_wait(self._held[0]):
            order = self._held.popleft()
            self._take[type(order)](order)
            self._choose()
        if self._held and self._progress is not None:
            self._take_ready()

    def _take_ready(self) -> None:
        """Carry out each Ready of a sum that has begun: orders before it may wait for that sum.

        For a tensor on a GPU another thread says Ready, while the script goes on.
        """
        still_to_begin = {order.tensor for order in self._held if isinstance(order, orders.Sum)}
        for order in [one for one in self._held if isinstance(one, orders.Ready) and one.tensor not in still_to_begin]:
            self._held.remove(order)
            self._ready(order)

    def _must_wait(self, order: FromTraining) -> bool:
        """Whether an order waits for the plan of the next iteration, or for the end of the one under way."""
        if isinstance(order, orders.Sum):
            return self._plan is None if self._progress is None else order.tensor == 0
        if isinstance(order, orders.RingDone):
            return self._plan is None and self._is_registered
        if isinstance(order, orders.WriteKept | orders.ReadKept):  # the script may come to it between two sums
            return self._progress is not None and self._progress.summed_tensors < len(self._calls)
        if isinstance(order, orders.Leave):
            self._break_off()
        between = orders.TensorList | orders.Leave
        return self._progress is not None and isinstance(order, between)

    def _write_kept(self, order: orders.WriteKept) -> None:
        self._exchange.write_kept(Path(order.path))
        self._tell(orders.KeptWritten())

    def _announce(self, call: m.Called) -> None:
        self._client.send(call)
        self._client.note(calls=call.number + 1)

    def _register(self, order: orders.TensorList) -> None:
        self._tensors = [*([] if self._are_whole else self._tensors), *order.tensors]
        self._are_whole = order.is_whole
        if order.is_whole:
            registration = self._protocol.register(self._tensors, self._precision)
            m.require_fit(registration)
            self._client.send(registration)
            self._client.note(calls=order.calls)
            self._is_registered, self._cut = True, None
            self._last_end_s = 0.0  # what came between is no part of an iteration

    def _sum(self, order: orders.Sum) -> None:
        if self._cut is None or self._plan is None or self._plan.routes_itself:
            raise PeerError("sums by the plane what goes by the ring")
        if self._progress is None:
            iteration = self._protocol.iteration
            self._progress = self._exchange.begin(iteration, self._plan, self._cut)
            self._calls, self._started_s = [], 0.0
            self._plan_wait_s = self._waited_s(order.asked_s, order.planned_s)
            self._cpu_before_s = time.process_time()
            self._client.note(exchanging=iteration)
        assert order.tensor == len(self._calls), f"tensor {order.tensor}, where {len(self._calls)} comes next"
        self._calls.append(order.calls)
        elements, dtype = self._cut.elements[order.tensor], self._cut.dtype[order.tensor]
        self._exchange.add_tensor(np.frombuffer(self.memory, dtype, elements, order.offset_bytes))
        self._client.note(calls=order.calls)

    def _ready(self, order: orders.Ready) -> None:
        assert self._progress is not None, "a sum begins before its elements are there"
        self._progress.make_ready(order.tensor, order.elements)
        self._note_computed(self._progress)

    def _note_sums(self) -> None:
        """Tell how far the iteration under way is: a script may wait for a sum before it begins the next one."""
        if self._progress is not None:
            both = self._progress.ready_tensors, self._progress.summed_tensors
            calls = [
                self._calls[tensors - 1] if tensors else before
                for tensors, before in zip(both, self._noted, strict=True)
            ]
            if (noted := (calls[0], calls[1])) != self._noted:
                self._noted = noted
                self._client.note(ready=noted[0], summed=noted[1])

    def _note_computed(self, progress: SliceProgress) -> None:
        if progress.ready_tensors == progress.tensors:
            self._computed_s = time.monotonic()
            self._client.note(computed=self._protocol.iteration)

    def _ring_done(self, order: orders.RingDone) -> None:
        if not self._is_registered:  # it was broken off
            return
        iteration = self._protocol.iteration
        assert order.iteration == iteration, f"iteration {order.iteration} by the ring, where {iteration} comes next"
        self._client.note(computed=iteration)
        plan_wait_s = self._waited_s(order.asked_s, order.started_s)
        times_s = order.started_s, order.computed_s, order.finished_s
        self._report_done(plan_wait_s, *times_s, None, order.is_whole)

    # ---- plans

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
                self._tell(m.Finish())
                self._is_registered = False
            else:
                return

    def _tell_routes(self, plan: m.Plan) -> None:
        """Tell the training process this plan's route, and at once that of a plan which was sent ahead."""
        ahead = [one for one in self._inbox if isinstance(one, m.Plan) and one.layout_version == plan.layout_version]
        for one in sorted([plan, *ahead], key=lambda one: one.iteration):
            if one.iteration > self._routes_told:
                registration = self._protocol.registration
                self._tell(orders.Route(registration, one.iteration, one.until, one.routes_itself))
                self._routes_told = one.until

    def _cut_by(self, setup: m.Setup) -> Cut:
        """The slices that the coordinator expects. Raises StoreError where they differ."""
        tensors = [
            Tensor(one.name, one.elements, wire_dtype(one.dtype, setup.precision), one.group) for one in self._tensors
        ]
        layout = layout_by(setup, tensors, "an agent")
        return Cut(layout, setup.precision)

    # ---- the end of an iteration

    def _end_iteration(self) -> None:
        assert self._cut is not None
        assert self._progress is not None
        end_s, cpu_s = time.monotonic(), time.process_time() - self._cpu_before_s
        is_whole, self._progress = self._progress.tensors == len(self._cut.elements), None
        if (sums := self._exchange.end()) is not None:
            m.require_fit(sums)
            self._client.send(sums)
        started_s = self._started_s or end_s
        self._report_done(self._plan_wait_s, started_s, self._computed_s, end_s, cpu_s, is_whole)

    def _waited_s(self, asked_s: float, planned_s: float) -> float:
        """The part of the wait for a plan that lies after the last iteration's end: the script may ask before that."""
        return max(0.0, planned_s - max(asked_s, self._last_end_s))

    def _report_done(
        self, plan_wait_s: float, started_s: float, computed_s: float, end_s: float, cpu_s: float | None, is_whole: bool
    ) -> None:
        assert self._plan is not None
        self._client.note(exchanging=-1)
        # the ring may end an iteration before this busy agent has seen that the plane's last one had ended
        iteration, took_s = self._protocol.iteration, max(0.0, end_s - self._last_end_s)
        done = m.Done(iteration, end_s - started_s, took_s, plan_wait_s, started_s, end_s, computed_s, cpu_s, is_whole)
        self._client.send(done, waits=iteration < self._plan.until)
        self._last_end_s, self._plan = end_s, None
