"""A worker's part in the control plane: when an iteration may start, when it ended, and what the van saw meanwhile."""

import os
import queue
import threading
import time
from collections.abc import Callable

from kvstore_patch.van import Van
from nalb.control import messages as m
from nalb.control.client import Client, die
from nalb.control.curve import knock
from nalb.control.keys import own_keys
from nalb.control.reach import Reach
from nalb.control.settings import Settings
from nalb.control.turn import Turn
from nalb.errors import one_line


def check_encryption(settings: Settings) -> None:
    """In an encrypted job. Raises MachineError without the van, which is what encrypts: ps-lite would talk in the clear. PeerError
    where the job does not take this node's key: ps-lite would wait for ever."""
    keys = own_keys(settings)
    if keys is None:
        return
    Van.loaded()
    if settings.role != "scheduler":  # it is the one that answers
        knock(keys, settings.endpoint, settings.startup_s)


class VanFeed:
    """Drains the van: received messages become report rows."""

    def __init__(self, van: Van):
        self._van = van
        self._rows: list[m.SampleRow] = []

    def drain(self) -> tuple[list[m.SampleRow], int]:
        """The rows since the last drain, as many as a Report holds, and the ring's drops so far."""
        self._rows += [m.SampleRow(*sample) for sample in self._van.drain()]
        rows, self._rows = self._rows[: m.ROWS_MOST], self._rows[m.ROWS_MOST :]
        return rows, self._van.drops


class WorkerSession:
    """Joins the job, waits for plans, times iterations."""

    def __init__(self, settings: Settings, ps_id: int):
        self.van = Van.loaded()
        self.feed = VanFeed(self.van)
        hello = m.Hello(m.VERSION, "worker", settings.node, ps_id, os.getpid())
        keys = own_keys(settings)
        self.client = Client(settings.endpoint, hello, self.feed.drain, settings.silence_s, settings.startup_s, keys)
        self.client.wait_for(m.Welcome)
        self._reach = Reach(settings, self.client.fail)
        self.client.ways = self._reach.ways
        self.turn = Turn()
        self._work: queue.SimpleQueue[Callable[[], None]] = (
            queue.SimpleQueue()
        )  # of the thread that waits for iterations' ends
        self._ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_under_way = False
        threading.Thread(target=self._finish_all, name="nalb-finish", daemon=True).start()
        self._last_end_s = time.monotonic()  # of the last iteration, or of what came before the first

    def register(self, tensors: list[m.TensorSpec]) -> m.Setup:
        """Tell what will be pushed; returns how to cut it, the same for all workers."""
        self.client.send(self.turn.register(tensors))
        setup = self.client.wait_until(self.turn.choose)
        assert isinstance(setup, m.Setup)
        self._last_end_s = time.monotonic()
        return setup

    def next_plan(self) -> tuple[m.Plan | m.Setup | None, float]:
        """The next iteration's plan and the seconds waited for it.

        A Setup instead says to cut the tensors anew first; None, that the job wants no further iteration.
        """
        start_s = time.monotonic()
        message = self.client.wait_until(self.turn.choose)
        if isinstance(message, m.Setup):
            return message, time.monotonic() - start_s
        if isinstance(message, m.Finish):
            return None, 0.0
        self.van.set_forecasts(message.measure)
        self.van.mark()
        self.client.exchanging = self.turn.iteration
        return message, time.monotonic() - start_s

    def finish(
        self, plan: m.Plan, wait_computed: "callable", wait: "callable", sums: "callable", plan_wait_s: float
    ) -> None:
        """Wait on a thread for the iteration's gradients, then for its slices, then report it done, `sums()` first if any."""
        iteration = self.turn.iteration

        def work() -> None:
            try:
                wait_computed()
                computed_s, cpu_before_s = time.monotonic(), time.process_time()
                self.client.computed = iteration
                wait()
                end_s, cpu_s = time.monotonic(), time.process_time() - cpu_before_s
                self.client.exchanging = -1
                checked = sums()
            except Exception as error:
                why = f"iteration {iteration} failed: {one_line(error)}"
                self.client.close(m.Failed(why))
                die(why, 1)
            start_s = self.van.first_sent_ns * 1e-9
            if not start_s:
                die("the van saw no push in a whole iteration: is it preloaded? Run `nalb doctor`")
            if checked is not None:
                self.client.send(checked)
            took_s = end_s - self._last_end_s
            done = m.Done(iteration, end_s - start_s, took_s, plan_wait_s, start_s, end_s, computed_s, cpu_s)
            self.client.send(done, waits=iteration < plan.until)
            self._last_end_s = end_s

        self._is_under_way = True
        self._work.put(work)

    def _finish_all(self) -> None:
        """The thread: one for all iterations, since to start one costs more than what it does."""
        while True:
            self._work.get()()
            self._ends.put(None)

    def leave(self) -> None:
        """Say goodbye and stay until everyone has: whoever still pushes would mistake this worker's exit for its own barrier."""
        self._reach.close()
        self.client.send(m.Goodbye())
        self.client.wait_for(m.Farewell)
        self.client.close()

    def wait_finished(self) -> None:
        """Block until the iteration under way, if any, is done."""
        if self._is_under_way:
            self._ends.get()
            self._is_under_way = False
