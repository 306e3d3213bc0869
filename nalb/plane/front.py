"""The training process's end of the plane: it starts the agent, hands it sums in shared memory, and hears when they are there.

    front = Front(start, startup_s, silence_s)
    front.join(addresses, coordinator)            once `front.listening` of all ranks is known to all
    way = front.place(elements, "float32")        how this sum travels; all ranks place the same sums in the same order

None says that the sum goes directly: all ranks have come to it. A RingSum goes by the group's own ring, and the caller says when
it is done. A PlaneSum goes by the plane: the caller writes its memory and says how much is there, and a thread of the front's says
how much of the sum is there. So writing, sending, receiving and reading overlap in parts of a MB.

Values of two bytes are float32 in memory, where the caller converts them, and travel as what they are.

Shared memory is one segment, with a place for each sum of an iteration. A place is used again once its sum has been read; an
iteration that comes earlier waits. So there is one copy of the gradients at most.

Once the agent has ended, sums under way and all later calls raise why. A script may go on while its main thread, or the one that
last called, computes or writes: it comes to its next sum. One that waits for GRACE_S, for another rank elsewhere (in gloo, say), is
ended: gloo would wait for half an hour. So is one that has heard, and waits elsewhere for GRACE_S all the same: a backward pass
waits for all sums before it raises the error of one.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from nalb.errors import PeerError, one_line
from nalb.failures import Cause, Failure, JobFailed, carried, cause_of
from nalb.plane import orders as o
from nalb.plane.agent_process import AgentProcess
from nalb.plane.cycle import CycleRecorder, key_of
from nalb.plane.memory import OwnSegment
from nalb.planning.slices import sum_dtype
from nalb.process.last_words import die, tell_launcher
from nalb.process.thread_work import ThreadWork
from nalb.services.batching.messages import BatchSizes
from nalb.services.exchange.calls import announcement
from nalb.services.exchange.messages import CallAgreed, Finish, TensorSpec
from nalb.services.exchange.recorder import Group, PlaceInIteration

GRACE_S = 3.0  # the deadline less the silence that it allows is 4 s by default
STUCK_CHECK_S = 0.5  # between looks at whether a script waits elsewhere
LOOK_S = 1.0  # at least, between looks at whether the script waits for what cannot come
PART_ELEMENTS = 1 << 18  # sums are written and read in parts of so many: 1 MB of float32
TENSORS_OF_A_PACKET = 1000


def parts(elements: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of the parts in which a sum of so many elements is written."""
    for start in range(0, elements, PART_ELEMENTS):
        yield start, min(start + PART_ELEMENTS, elements)


class JobFinished(Exception):
    """Raised where the job wants no further iteration. Only held jobs (`nalb compare`) end so."""


@dataclass(eq=False)
class _Ring:
    """An iteration that the ring sums."""

    iteration: int
    asked_s: float  # when the script asked for its first sum
    started_s: float
    left: int = 0  # sums that are under way
    computed_s: float | None = None  # when its last sum was begun
    is_whole: bool = True  # it was not broken off


class RingSum:
    """A sum that goes by the group's own ring."""

    def __init__(self, done: Callable[[], None]):
        self.done = done  # to be called once it is there


class PlaneSum:
    """A sum that goes by the plane."""

    def __init__(self, front: "Front", tensor: int, memory: npt.NDArray[Any]):
        self._front, self._tensor = front, tensor
        self.memory = memory  # of this rank's summand, and then of the sum
        self.told = 0  # elements that `summed` was called with
        self.summed: Callable[[int, int], object]  # of `begin`
        self.ended: Callable[[Exception | None], object] = lambda _: None  # likewise

    def begin(self, summed: Callable[[int, int], object], ended: Callable[[Exception | None], object]) -> None:
        """Begin the sum. A thread of the front's calls `summed` with each part that is in memory, and at last `ended`.

        summed: called with (start, stop), one part after the other. ended: called with the error because of which the sum does not
        come, or None. Neither may wait for anything.
        """
        with self._front._news:
            self._front._wait(lambda: True)
            self.summed, self.ended = summed, ended

    def write(self, write_part: Callable[[int, int], object]) -> None:
        """Write the summand part by part. write_part: writes elements (start, stop) into `memory`."""
        for start, stop in parts(len(self.memory)):
            write_part(start, stop)
            self.ready(stop)

    def ready(self, elements: int) -> None:
        """Say that the first `elements` elements of the summand are in memory."""
        self._front.send(o.Ready(self._tensor, elements))

    def fail(self, error: BaseException) -> None:
        """Say that the rest of the summand does not come: `Front.fail_in_sum`."""
        self._front.fail_in_sum(error)


class Front:
    """One training process's end of the plane. Several threads may call it, each rank's in the same order."""

    def __init__(self, start: o.Start, startup_s: float, silence_s: float):
        """Starts the agent. Raises JobFailed if it does not listen within `startup_s`.

        silence_s: for how long the agent may be stopped by a signal.
        """
        self._start, self._owner = start, os.getpid()
        self.agent = AgentProcess(silence_s)
        self.by_plane = 0  # sums that went by the plane
        # Whether a script is ended that waits for GRACE_S and has not heard of an error, or waits where none is heard.
        self.ends_script = True
        self.is_let_go = False  # the script has destroyed its group: it waits for no rank of this job any more
        # Whether a thread, by Python's number, waits for other ranks just then, not here.
        self.waits_elsewhere: Callable[[int], bool] = lambda _: False
        # Why it waits elsewhere for what cannot come; None: it does not, or this was answered before. Asked each LOOK_S.
        self.why_in_vain: Callable[[], str | None] = lambda: None
        self.spins = False  # whether the script's threads may compute while they wait for other ranks
        self._callers = {threading.main_thread().ident or 0: os.getpid()}  # the kernel's numbers of threads by Python's
        # threads that have begun sums or collectives, and the groups; more than one: no order is known
        self._called, self._is_ordered = {(threading.get_ident(), "")}, True
        self.waited_s = 0.0  # in `place`
        self._in_order = threading.RLock()  # one call at a time: the order of calls is alike on all ranks
        self._news = threading.Condition()  # guards what follows
        self.listening = o.Listening("")  # where the agent does; no address before it has said so
        self._error: JobFailed | None = None
        self._looked_s = -math.inf
        self._is_leaving = self._has_joined = self._is_finished = False
        self._has_heard = False  # the script has heard of the error
        self._agreed = -1  # number of the last call that all ranks have announced
        self._routes: deque[o.Route] = deque()
        self._under_way: dict[int, PlaneSum] = {}  # by tensor, from `place` on
        self._rings: deque[_Ring] = deque()
        self._batch_sizes: deque[BatchSizes] = deque()  # that nobody has taken
        self._kept_written = 0  # files that the agent has written
        # guarded by _in_order
        self._recorder = CycleRecorder()
        self._calls = self._registrations = 0
        self._next: int | None = None  # iteration; None: the first one of a registration
        self._route: o.Route | None = None  # of the iteration under way
        self._asked_s = self._planned_s = 0.0  # when its first sum was asked for, and when its route was there
        self._tensors: list[tuple[int, np.dtype[Any]]] = []
        self._segment: OwnSegment | None = None
        self._reader = threading.Thread(target=self._read, name="nalb-sums", daemon=True)
        self._reader.start()
        try:
            self.send(start)
            if not self._wait(lambda: self.listening.address, startup_s):
                raise self._lost(f"has not started within {startup_s:g} s")
        except BaseException:
            self.agent.kill()
            self._reader.join()
            self.agent.close()
            raise

    def join(self, addresses: list[str], coordinator: str) -> None:
        """Join the job; all ranks' agents are at these addresses. Raises JobFailed."""
        self.send(o.Peers(addresses, coordinator))
        self._wait(lambda: self._has_joined)

    # ---- batch sizes

    def next_batch_sizes(self) -> BatchSizes:
        """Wait for the next batch sizes. Raises JobFailed."""
        with self._news:
            self._wait(lambda: self._batch_sizes)
            return self._batch_sizes.popleft()

    # ---- what rounding took

    def write_kept(self, path: str) -> None:
        """Have the agent write what rounding took to a file, and wait until it is there. Raises JobFailed."""
        written = self._kept_written + 1
        self.send(o.WriteKept(path))
        self._wait(lambda: self._kept_written == written)

    def read_kept(self, path: str) -> None:
        """Have the agent go on with what a file holds. Raises JobFailed."""
        self.send(o.ReadKept(path))

    # ---- sums

    def place(self, elements: int, dtype: str, group: str = "") -> PlaneSum | RingSum | None:
        """How the next sum travels. May wait for the other ranks, or for a plan. Raises JobFailed.

        group: the name of the group that sums, alike on all ranks; empty for the default group.
        """
        asked_s = monotonic()
        try:
            return self._place(elements, dtype, group)
        finally:
            self.waited_s += monotonic() - asked_s

    def _place(self, elements: int, dtype: str, group: str) -> PlaneSum | RingSum | None:
        with self._in_order:
            place = self._recorder.place(elements, dtype, group)
            number, self._calls = self._calls, self._calls + 1
            if place.breaks_off:
                self._break_off()
            if place.number < 0:
                self.send(announcement(number, "sum", ((key_of(number, group), elements, dtype),)))
                self._wait(lambda: self._agreed >= number)
                return None
            if place.learned:
                self._register(place.learned)
            if place.number == 0:
                self._begin_iteration()
            return self._place_planned(place)

    def _place_planned(self, place: PlaceInIteration) -> PlaneSum | RingSum:
        self._wait(lambda: True)  # DDP begins further sums where the iteration's first one has failed
        assert self._route is not None
        if self._route.by_ring:
            return self._place_in_ring(place.is_last)
        segment, tensor = self._segment or self._share_segment(), place.number
        with self._news:
            self._wait(lambda: tensor not in self._under_way)
            one = self._under_way[tensor] = PlaneSum(self, tensor, segment.array(tensor))
        self.by_plane += 1
        self.send(o.Sum(tensor, segment.offsets[tensor], self._calls, self._asked_s, self._planned_s))
        return one

    def _place_in_ring(self, is_last: bool) -> RingSum:
        with self._news:
            self._wait(lambda: True)
            ring = self._rings[-1]
            ring.left += 1
            if is_last:
                ring.computed_s = monotonic()
        self.send(o.RingBegun(self._calls))

        def done() -> None:
            with self._news:
                ring.left -= 1
                self._tell_rings()

        return RingSum(done)

    def _tell_rings(self) -> None:
        """Tell the agent of iterations that are complete."""
        while self._rings and self._rings[0].computed_s is not None and not self._rings[0].left:
            one = self._rings.popleft()
            assert one.computed_s is not None
            with suppress(OSError):  # the next call meets it
                times_s = one.asked_s, one.started_s, one.computed_s, monotonic()
                self.agent.send(o.RingDone(one.iteration, *times_s, one.is_whole))
            self._news.notify_all()

    def _begin_iteration(self) -> None:
        """Wait for the plan of the next iteration, and begin it."""
        self._asked_s = monotonic()
        self._wait(lambda: self._is_finished or self._next_route() is not None)
        self._planned_s = monotonic()
        self._route = self._next_route()
        if self._route is None:
            raise JobFinished
        iteration = self._route.first if self._next is None else self._next
        self._next = iteration + 1
        if self._route.by_ring:
            self._let_segment_go()
            with self._news:
                self._rings.append(_Ring(iteration, self._asked_s, self._planned_s))

    def _next_route(self) -> o.Route | None:
        """The route of the next iteration, once it is there; that of a registration's first one says its number."""
        while self._next is not None and self._routes and self._routes[0].until < self._next:
            self._routes.popleft()
        return self._routes[0] if self._routes else None

    def _register(self, learned: Sequence[Group]) -> None:
        self._let_segment_go()
        with self._news:
            self._registrations += 1
            self._routes.clear()
            self._next = None
        specs = [
            TensorSpec(str(key), elements, dtype, number) for number, ((key, elements, dtype),) in enumerate(learned)
        ]
        self._tensors = [(spec.elements, np.dtype(sum_dtype(spec.dtype))) for spec in specs]
        for first in range(0, len(specs), TENSORS_OF_A_PACKET):
            part = specs[first : first + TENSORS_OF_A_PACKET]
            self.send(o.TensorList(part, first + len(part) == len(specs), self._calls))

    def _break_off(self) -> None:
        """End the iteration under way with the sums begun so far, and wait for them."""
        with self._news:
            if self._rings and self._rings[-1].computed_s is None:
                self._rings[-1].computed_s, self._rings[-1].is_whole = monotonic(), False
            self._tell_rings()
        self._wait(lambda: not self._rings and not self._under_way)
        self.send(o.BreakOff())

    def note_caller(self, group: str) -> None:
        """Take in that this thread is one of the script's: it may train elsewhere than in its main thread. group: as of `place`."""
        self._callers[threading.get_ident()] = threading.get_native_id()
        self._called.add((threading.get_ident(), group))
        if len(self._called) > 1:
            self.note_unordered()

    def note_unordered(self) -> None:
        """Tell that ranks may begin sums and collectives by gloo in different orders, or count them differently."""
        if self._is_ordered:
            self._is_ordered = False
            with suppress(OSError):  # the agent has ended: what is called meets it
                self.agent.send(o.Unordered())

    def await_sums(self) -> None:
        """Wait until all sums that have begun are there. Raises JobFailed."""
        with self._news:
            begun = list(self._under_way.values())
            self._wait(lambda: not any(one in begun for one in self._under_way.values()))

    def note_by_gloo(self) -> None:
        """Tell that the script begins a collective of all ranks that is gloo's alone: it would wait for one that has left."""
        self.send(o.ByGloo())

    def fail_in_sum(self, error: BaseException) -> None:
        """End the job where an error throws the script out of a sum half-way: the other ranks wait for this one's part of it.

        A script may catch the error, and end in good order or make other sums.
        """
        if isinstance(error, JobFailed | JobFinished):
            return
        with self._news:
            self._has_heard = True
        if isinstance(error, RuntimeError):
            self.await_error()  # gloo's names no rank, where another one's end is the reason
        detail = f"was thrown out of a sum, which the other ranks wait for: {one_line(error)}"
        with suppress(OSError):  # the agent has ended, and has said why
            self.agent.send(o.Leave(carried(self._failure(cause_of(error, Cause.SCRIPT), detail))))

    # ---- shared memory

    def _share_segment(self) -> OwnSegment:
        segment = self._segment = OwnSegment(self._tensors)
        try:
            self.send(o.Segment(segment.size_bytes), segment.descriptor)
        finally:
            os.close(segment.descriptor)  # the memory stays while anyone has it mapped
        return segment

    def _let_segment_go(self) -> None:
        if self._segment is not None:
            self._wait(lambda: not self._under_way)
            self._segment.free()
            self._segment = None

    # ---- the agent's news

    def _read(self) -> None:
        """The thread that hears the agent."""
        try:
            while (order := self.agent.receive(self._look_elsewhere)) is not None:
                self._take(order)
                self._look_elsewhere()
            error = self._lost(self.agent.how_it_ended())
        except Exception as problem:
            error = self._lost(f"cannot be understood: {one_line(problem)}")
        self._end(error)
        has_begun = bool(self.listening.address)  # else the constructor raises the error
        if self.ends_script and has_begun and not self._is_leaving:
            threading.Thread(target=self._end_script, name="nalb-grace", daemon=True).start()

    def _look_elsewhere(self) -> None:
        """End the job where the script waits elsewhere for what cannot come: nobody else would notice."""
        if monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = monotonic()
        try:
            why = self.why_in_vain()
        except OSError:  # this process has no descriptor left at the moment
            return
        if why is not None:
            with suppress(OSError):  # the agent has ended, and has said why
                self.agent.send(o.Leave(carried(self._failure(Cause.UNREACHABLE, why))))

    def _end_script(self) -> None:
        since_s, error, threads = monotonic(), self._error, [ThreadWork(one) for one in list(self._callers.values())]
        assert error is not None
        while monotonic() - since_s < GRACE_S:
            sleep(min(STUCK_CHECK_S, GRACE_S))
            if self._is_leaving or self.is_let_go:
                return
            looks = [one.is_at_work() for one in threads]  # at each thread, whatever another does
            is_at_work = any(looks) and not self.spins
            if is_at_work or (self._has_heard and not any(map(self.waits_elsewhere, list(self._callers)))):
                since_s = monotonic()
        die(error.failure, error.exit_code)

    def _take(self, order: o.FromAgent) -> None:
        if isinstance(order, o.Summed):
            if (one := self._under_way.get(order.tensor)) is not None:  # else an earlier part could not be read
                self._take_sum(one, order)
            return
        if isinstance(order, o.Ended):
            self._end(JobFailed(order.failure))
            return
        with self._news:
            if isinstance(order, o.Listening):
                self.listening = order
            elif isinstance(order, o.AllJoined):
                self._has_joined = True
            elif isinstance(order, CallAgreed):
                self._agreed = order.number
            elif isinstance(order, BatchSizes):
                self._batch_sizes.append(order)
            elif isinstance(order, o.KeptWritten):
                self._kept_written += 1
            elif isinstance(order, Finish):
                self._is_finished = True
            elif isinstance(order, o.Route) and order.registration == self._registrations - 1:
                self._routes.append(order)
            self._news.notify_all()

    def _take_sum(self, one: PlaneSum, order: o.Summed) -> None:
        error: Exception | None = None
        try:
            one.summed(one.told, order.elements)
            one.told = order.elements
        except Exception as problem:
            error = problem
        if error is None and order.elements < len(one.memory):
            return
        with self._news:
            del self._under_way[order.tensor]
            self._news.notify_all()
        one.ended(error)

    def _end(self, error: JobFailed) -> None:
        """No sum comes any more."""
        with self._news:
            self._error = self._error or error
            left, self._under_way = list(self._under_way.values()), {}
            self._has_heard |= bool(left)
            self._rings.clear()
            self._news.notify_all()
        for one in left:
            one.ended(copy(self._error))

    def _lost(self, what: str) -> JobFailed:
        return JobFailed(self._failure(Cause.ENDED, f"lost its agent, which {what}"), PeerError.exit_code)

    def _failure(self, cause: Cause, detail: str) -> Failure:
        return Failure(cause=cause, detail=detail, role="worker", node=self._start.node)

    # ---- telling and waiting

    def _wait(self, is_so: Callable[[], object], limit_s: float | None = None) -> bool:
        """Wait until it is so; whether it is, within the limit. Raises JobFailed."""
        with self._news:
            is_met = self._news.wait_for(lambda: self._error is not None or bool(is_so()), limit_s)
            if self._error is not None:
                self._has_heard = True
                raise copy(self._error)  # which will keep the frames that it passes, and so the script's tensors
            return is_met

    def send(self, order: o.FromTraining, descriptor: int | None = None) -> None:
        """Send an order. Raises JobFailed where the agent has ended: its last words say why."""
        with suppress(OSError):
            self.agent.send(order, descriptor)
            return
        self._wait(lambda: False)

    def await_error(self) -> None:
        """Wait until the agent says why the job ends, for GRACE_S at most."""
        with suppress(JobFailed):
            self._wait(lambda: False, GRACE_S)

    def close(self, failed: Failure | None = None) -> None:
        """Leave the job, and wait until all ranks have.

        failed: why the script ends, where it waits for no other rank; its role and node are this process's.
        """
        if os.getpid() != self._owner:
            return
        if failed is not None:
            failed = replace(failed, role="worker", node=self._start.node)
        if failed is None:
            with suppress(JobFailed):  # the last iteration of the ring is told first
                self._wait(lambda: not self._rings or self._rings[0].computed_s is None)
        elif self._error is not None:
            tell_launcher(self._error.failure)  # the script's own words are torch's, which name nobody
        elif failed.is_wrong_input:
            tell_launcher(failed)  # whose words do not tell that no restart helps
        self._is_leaving = True
        with suppress(OSError):
            self.agent.send(o.Leave(failed and carried(failed)))
        self._reader.join()
        self.agent.close()
        if self._segment is not None:
            self._segment.free()
