"""A worker's part in the control plane, whatever its data plane: it waits for plans and reports iterations and their timings."""

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from nalb.errors import one_line
from nalb.failures import Cause
from nalb.process.last_words import die
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.services.exchange.worker_protocol import WorkerProtocol
from nalb.settings import Settings
from nalb.transport.client import Client, Drained, Noted
from nalb.transport.reachability import Reachability

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in `typing`


class DataPlane(Protocol):
    """What moves a worker's gradients to others and back, as the control plane sees it."""

    def begin(self, plan: m.Plan) -> None:
        """An iteration of this plan begins: forecasts are sent or not, as it says, and `first_sent_s` is of this iteration."""

    @property
    def first_sent_s(self) -> float | None:
        """When the iteration's first gradient was sent, on the monotonic clock; None: none was yet."""

    def timings(self) -> Drained:
        """The oldest rows not given yet of messages that came in; the number of rows lost so far.

        Called on the client's thread; it must not block.
        """

    def make_room(self, order: m.PrepareSlots) -> None:
        """Begin to make slots, and say SlotsReady then. Called on the client's thread; it must not block."""


class WorkerSession:
    """Joins the job, waits for plans, and times iterations."""

    def __init__(self, settings: Settings, rank: int, plane: DataPlane, role: str = "worker"):
        """Joins the job; waits until the coordinator has welcomed this worker.

        role: what Hello says; an agent is worker and server in one.
        """
        self._plane = plane
        hello = wire.Hello(wire.VERSION, role, settings.node, rank, os.getpid())
        self.client = client = Client.of(settings, hello, plane.timings)
        client.on(m.PrepareSlots, plane.make_room)
        self.welcome = client.wait_for(wire.Welcome)
        self._reach = Reachability(settings, client.fail, lambda ways: client.note(ways=ways))
        self.protocol = WorkerProtocol()
        # functions that wait: for an iteration, they return when it ended; for anything else, None
        self._waits: queue.SimpleQueue[Callable[[], float | None]] = queue.SimpleQueue()
        self._ends_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._is_under_way = False
        threading.Thread(target=self._finish_all, name="nalb-finish", daemon=True).start()
        self._last_end_s = time.monotonic()  # of the last iteration; at first of registering

    def register(self, tensors: list[m.TensorSpec]) -> m.Setup:
        """Register the tensors that iterations push; returns how to cut them, which is the same for all workers."""
        registration = self.protocol.register(tensors)
        m.require_fit(registration)
        self.client.send(registration)
        setup = self.client.wait_until(self.protocol.choose)
        assert isinstance(setup, m.Setup)
        self._last_end_s = time.monotonic()
        return setup

    def next_plan(self) -> tuple[m.Plan | m.Setup | None, float]:
        """The next iteration's plan, and the seconds waited for it.

        A Setup instead of a plan says that the tensors must be cut anew first. None says that the job wants no further iteration.
        """
        start_s = time.monotonic()
        message = self.client.wait_until(self.protocol.choose)
        if isinstance(message, m.Setup):
            return message, time.monotonic() - start_s
        if not isinstance(message, m.Plan):  # Finish
            return None, 0.0
        self._plane.begin(message)
        self.client.note(exchanging=self.protocol.iteration)
        return message, time.monotonic() - start_s

    def finish(
        self,
        plan: m.Plan,
        wait_computed: Callable[[], None],
        wait: Callable[[], None],
        sums: Callable[[], m.Sums | None],
        plan_wait_s: float,
        is_whole: bool,
    ) -> None:
        """Let a thread wait for the iteration's gradients and then its slices, and report the iteration done.

        wait_computed, wait: block until the gradients, and then the slices, are there. sums: gives sums to be checked, which are
        sent first, or None. plan_wait_s: seconds that the worker waited for the plan. is_whole: False where it was broken off.
        """
        iteration, last_end_s = self.protocol.iteration, self._last_end_s

        def work() -> float:
            try:
                wait_computed()
                computed_s, cpu_before_s = time.monotonic(), time.process_time()
                self.client.note(computed=iteration)
                wait()
                end_s, cpu_s = time.monotonic(), time.process_time() - cpu_before_s
                self.client.note(exchanging=-1)
                if (checked := sums()) is not None:
                    m.require_fit(checked)
            except Exception as error:
                why = f"failed: {one_line(error)}"
                self.client.fail(self.client.failure(Cause.PROCESS, why, iteration=iteration), 1)
            start_s = self._plane.first_sent_s
            if start_s is None:
                why = "sent nothing in a whole iteration: run `nalb doctor`"
                die(self.client.failure(Cause.PROCESS, why, iteration=iteration))
            if checked is not None:
                self.client.send(checked)
            took_s = end_s - last_end_s
            done = m.Done(iteration, end_s - start_s, took_s, plan_wait_s, start_s, end_s, computed_s, cpu_s, is_whole)
            self.client.send(done, waits=iteration < plan.until)
            return end_s

        self._is_under_way = True
        self._waits.put(work)

    def _finish_all(self) -> None:
        """The thread for all iterations: to start one for each would take longer than its work."""
        while True:
            if (end_s := self._waits.get()()) is not None:
                self._ends_s.put(end_s)

    def note_once(self, wait: Callable[[], None], **news: "Unpack[Noted]") -> None:
        """Let reports tell `news` once `wait` has returned on the thread. Its errors are ignored: the script meets them too."""

        def work() -> None:
            with suppress(Exception):
                wait()
            self.client.note(**news)

        self._waits.put(work)

    def leave(self) -> None:
        """Say goodbye, and wait until all workers have: one that still pushes would take this worker's exit for its own barrier."""
        self._reach.close()
        self.client.send(wire.Goodbye())
        self.client.wait_for(wire.Farewell)
        self.client.close()

    def wait_finished(self) -> None:
        """Block until the iteration under way, if any, is done."""
        if self._is_under_way:
            self._last_end_s = self._ends_s.get()
            self._is_under_way = False
