"""The training process's end of the plane, against an agent that the test plays."""

import hashlib
import mmap
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from msgspec import structs

from nalb.failures import DETAIL_MOST, Cause, Failure, JobFailed, Phase
from nalb.plane import agent_process
from nalb.plane import front as fronts
from nalb.plane import orders as o
from nalb.plane.front import Front, JobFinished, PlaneSum, RingSum
from nalb.process.guardian import VARIABLE
from nalb.process.last_words import failure_in
from nalb.services.exchange.messages import CallAgreed, Finish

LIMIT_S = 20.0
WAIT_S = 0.3
LONG_WAIT_S = 2.0  # that a busy machine does not add to what takes no time
SIZES = (3000, 2001)  # an iteration; 2001 elements end off the alignment


class Agent:
    """The other end of the orders' socket. The process that holds it too only sleeps."""

    def __init__(self, end):
        self.socket = end
        end.settimeout(LIMIT_S)
        self.descriptors = []

    def tell(self, order):
        self.socket.send(o.encode(order))

    def hear(self):
        packet, descriptors, _, _ = socket.recv_fds(self.socket, o.PACKET_MOST, 1)
        self.descriptors += descriptors
        return o.decode_at_agent(packet) if packet else None

    def has_heard_all(self):
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(o.PACKET_MOST, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.socket.settimeout(LIMIT_S)

    def mapped(self, size_bytes):
        return mmap.mmap(self.descriptors[-1], size_bytes)


class Job:
    """A front, its agent, and a thread that makes the script's calls, so that the test can answer them."""

    def __init__(self, ends, silence_s=LIMIT_S):
        self.thread = ThreadPoolExecutor(1)
        making = self.thread.submit(Front, o.Start(0, 2, "n0", "127.0.0.1", True), LIMIT_S, silence_s)
        until(lambda: ends or making.done())
        if making.done():
            making.result()
        self.agent = Agent(ends.pop())
        assert self.agent.hear() == o.Start(0, 2, "n0", "127.0.0.1", True)
        self.agent.tell(o.Listening("tcp://127.0.0.1:1", "127.0.0.1:2"))
        self.front = making.result(LIMIT_S)
        self.calls = 0

    def place(self, elements):
        self.calls += 1
        return self.thread.submit(self.front.place, elements, "float32")

    def directly(self, elements):
        """A call that all ranks announce."""
        placed = self.place(elements)
        call = self.agent.hear()
        assert (call.number, call.elements, call.dtypes) == (self.calls - 1, elements, ["float32"])
        self.agent.tell(CallAgreed(call.number))
        assert placed.result(LIMIT_S) is None

    def learn(self, first=0, by_ring=False, until=1 << 40):
        """Two iterations, and the first sum of the next one."""
        for _ in range(2):
            for elements in SIZES:
                self.directly(elements)
        placed = self.place(SIZES[0])
        register = self.agent.hear()
        assert [(one.name, one.elements, one.group) for one in register.tensors] == [("0", 3000, 0), ("1", 2001, 1)]
        assert register.is_whole
        self.agent.tell(o.Route(registration=0, first=first, until=until, by_ring=by_ring))
        return placed

    def hear_next(self, kind):
        """The next order of this kind; those before it are dropped."""
        while not isinstance(order := self.agent.hear(), kind):
            pass
        return order

    def begin(self, placed):
        """One sum by the plane: itself, and what its thread is called with."""
        one, said = placed.result(LIMIT_S), []
        assert isinstance(one, PlaneSum)
        one.begin(lambda *part: said.append(part), lambda error: said.append(error or "ended"))
        return one, said


@pytest.fixture
def ends(monkeypatch):
    """The agents' ends of the sockets."""
    pair, found, made = socket.socketpair, [], []

    def both(*kinds):
        ours, theirs = pair(*kinds)
        found.append(theirs.dup())
        made.append(found[-1])
        return ours, theirs

    monkeypatch.setattr(agent_process.socket, "socketpair", both)
    monkeypatch.setattr(agent_process, "own_argv", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(fronts, "die", lambda *_: None)
    yield found
    for one in made:
        one.close()


@pytest.fixture
def job(ends):
    one = Job(ends)
    yield one
    with suppress(ProcessLookupError):
        os.kill(one.front.agent.pid, signal.SIGKILL)
    one.agent.socket.close()
    one.front.close()
    one.thread.shutdown()


def until(is_so):
    """Wait for another thread."""
    done = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if is_so():
            return
        done.wait(0.01)
    raise AssertionError("not within the limit")


def test_a_sum_by_the_plane(job):
    placed = job.learn(first=7)
    segment, order = job.agent.hear(), job.agent.hear()
    assert segment.size_bytes == 12032 + 8064  # 64-byte steps
    assert (order.tensor, order.offset_bytes, order.calls) == (0, 0, 5)
    one, said = job.begin(placed)
    one.memory[:2000] = np.arange(2000)
    one.ready(2000)
    assert job.agent.hear() == o.Ready(0, 2000)
    shared = np.frombuffer(job.agent.mapped(segment.size_bytes), np.float32, 3000)
    assert shared[1999] == 1999
    shared[:] = 5.0
    job.agent.tell(o.Summed(0, 1000))
    job.agent.tell(o.Summed(0, 3000))
    until(lambda: len(said) == 3)
    assert said == [(0, 1000), (1000, 3000), "ended"]
    assert one.memory[2999] == 5.0
    second = job.place(2001)
    assert job.agent.hear() == structs.replace(order, tensor=1, offset_bytes=12032, calls=6)
    assert len(second.result(LIMIT_S).memory) == 2001


def test_a_place_is_used_again_once_its_sum_was_read(job):
    placed = job.learn()
    job.agent.hear()
    job.agent.hear()
    _, said = job.begin(placed)
    job.begin(job.place(2001))
    job.agent.hear()
    again = job.place(3000)
    assert not again.done()
    assert job.agent.has_heard_all()
    job.agent.tell(o.Summed(0, 3000))
    assert job.agent.hear().tensor == 0
    assert isinstance(again.result(LIMIT_S), PlaneSum)
    until(lambda: said == [(0, 3000), "ended"])  # the place is free before the sum's owner is told


def test_an_iteration_of_the_ring_is_told_once_all_its_sums_are_done(job):
    first = job.learn(first=3, by_ring=True).result(LIMIT_S)
    second = job.place(2001).result(LIMIT_S)
    next_one = job.place(3000).result(LIMIT_S)
    assert all(isinstance(one, RingSum) for one in (first, second, next_one))
    assert [job.agent.hear() for _ in range(3)] == [o.RingBegun(calls) for calls in (5, 6, 7)]
    second.done()
    assert job.agent.has_heard_all()
    first.done()
    told = job.agent.hear()
    assert told.iteration == 3
    assert told.started_s <= told.computed_s <= told.finished_s


@pytest.mark.parametrize("by_ring", [False, True])
def test_how_long_the_script_waited_for_a_plan_is_told(job, by_ring):
    ways = job.learn(by_ring=by_ring, until=0).result(LIMIT_S), job.place(2001).result(LIMIT_S)
    for tensor, one in enumerate(ways):
        if by_ring:
            one.done()
        else:
            one.begin(lambda *_: None, lambda _: None)
            job.agent.tell(o.Summed(tensor, SIZES[tensor]))
    placed = job.place(3000)
    time.sleep(2 * LONG_WAIT_S)  # the thread may ask a moment later
    assert not placed.done()
    job.agent.tell(o.Route(registration=0, first=1, until=1, by_ring=by_ring))
    next_ways = placed.result(LIMIT_S), job.place(2001).result(LIMIT_S)
    if by_ring:
        for one in next_ways:
            one.done()
        first, second = (job.hear_next(o.RingDone) for _ in range(2))
        assert first.started_s - first.asked_s < LONG_WAIT_S <= second.started_s - second.asked_s
    else:
        sums = [job.hear_next(o.Sum) for _ in range(4)]
        waits_s = [one.planned_s - one.asked_s for one in sums]
        assert waits_s[0] == waits_s[1] < LONG_WAIT_S <= waits_s[2] == waits_s[3]


def test_memory_is_let_go_where_the_ring_takes_over(job):
    placed = job.learn(until=0)
    job.agent.hear()
    job.agent.hear()
    one, _ = job.begin(placed)
    one.memory[:] = 1.0
    job.begin(job.place(2001))
    job.agent.hear()
    for number, elements in enumerate(SIZES):
        job.agent.tell(o.Summed(number, elements))
    job.agent.tell(o.Route(registration=0, first=1, until=1, by_ring=True))
    assert isinstance(job.place(3000).result(LIMIT_S), RingSum)
    assert not os.fstat(job.agent.descriptors[0]).st_blocks, "children of the script may have it mapped"


def test_memory_is_kept_for_a_sum_that_another_thread_has_placed_and_not_begun(job):
    placed = job.learn(until=0)
    job.agent.hear()
    job.agent.hear()
    second = job.place(2001)
    for one in (placed, second):
        one.result(LIMIT_S)
    job.agent.tell(o.Route(registration=0, first=1, until=1, by_ring=True))
    next_one = job.place(3000)
    time.sleep(WAIT_S)
    assert not next_one.done()
    said = [job.begin(one)[1] for one in (placed, second)]
    for number, elements in enumerate(SIZES):
        job.agent.tell(o.Summed(number, elements))
    assert isinstance(next_one.result(LIMIT_S), RingSum)
    until(lambda: said == [[(0, elements), "ended"] for elements in SIZES])


def test_an_iteration_that_breaks_off_is_waited_for(job):
    placed = job.learn()
    job.agent.hear()
    job.agent.hear()
    job.begin(placed)
    other = job.place(9999)
    assert job.agent.has_heard_all()
    job.agent.tell(o.Summed(0, 3000))
    assert job.agent.hear() == o.BreakOff()
    assert job.agent.hear().elements == 9999
    job.agent.tell(CallAgreed(5))
    assert other.result(LIMIT_S) is None


def test_an_iteration_of_the_ring_that_breaks_off_is_told_as_such(job):
    first = job.learn(by_ring=True).result(LIMIT_S)
    other = job.place(9999)
    first.done()
    assert isinstance(job.agent.hear(), o.RingBegun)
    assert not job.agent.hear().is_whole
    assert job.agent.hear() == o.BreakOff()
    job.agent.tell(CallAgreed(job.agent.hear().number))
    assert other.result(LIMIT_S) is None


def test_a_script_that_is_thrown_out_of_a_sum_ends_the_job(job):
    """The other ranks wait for its part: it may catch that, and end in good order."""
    one, _ = job.begin(job.learn())
    error = JobFailed(Failure(cause=Cause.SILENT, detail="has not reported"), 3)
    one.fail(error)  # of which the agent has told
    job.front.fail_in_sum(JobFinished())
    one.fail(KeyboardInterrupt())
    closing = job.thread.submit(job.front.close)
    assert "KeyboardInterrupt" in job.hear_next(o.Leave).failure.detail
    os.kill(job.front.agent.pid, signal.SIGKILL)
    job.agent.socket.close()
    closing.result(LIMIT_S)


def test_a_route_of_an_earlier_registration_is_void(job):
    placed = job.learn()
    job.agent.hear()
    job.agent.hear()
    job.begin(placed)
    job.agent.tell(o.Summed(0, 3000))
    for number in range(5):
        elements = (4000, 4001)[number % 2]  # as many as two sums before it and half of an iteration
        other = job.place(elements)
        if number == 0:
            assert job.agent.hear() == o.BreakOff()
        if number < 4:
            job.agent.tell(CallAgreed(job.agent.hear().number))
            assert other.result(LIMIT_S) is None
    assert isinstance(job.agent.hear(), o.TensorList)
    job.agent.tell(o.Route(registration=0, first=1, until=9, by_ring=True))
    job.agent.tell(o.Route(registration=1, first=4, until=9, by_ring=False))
    assert isinstance(other.result(LIMIT_S), PlaneSum)


def test_why_the_agent_ends_reaches_all_sums(job):
    placed = job.learn()
    job.agent.hear()
    job.agent.hear()
    _, said = job.begin(placed)
    failure = Failure(cause=Cause.SILENT, detail="has not reported for 6 s", role="agent", node="n1")
    job.agent.tell(o.Ended(failure))
    until(lambda: said)
    assert said[0].failure == failure
    errors = [job.place(2001).exception(LIMIT_S) for _ in range(2)]
    assert [(type(one), one.failure) for one in errors] == 2 * [(JobFailed, failure)]
    assert errors[0] is not errors[1], "what is raised again keeps the frames of both calls"


def test_an_agent_that_is_killed_is_named(job):
    placed = job.place(3000)
    job.agent.hear()
    os.kill(job.front.agent.pid, signal.SIGKILL)
    job.agent.socket.close()
    with pytest.raises(JobFailed, match="worker n0 lost its agent, which was killed by signal 9"):
        placed.result(LIMIT_S)


def test_an_agent_that_is_stopped_is_named(ends, monkeypatch):
    monkeypatch.setattr(agent_process, "CHECK_S", 0.05)
    job = Job(ends, silence_s=0.2)
    placed = job.place(3000)
    os.kill(job.front.agent.pid, signal.SIGSTOP)
    with pytest.raises(JobFailed, match="has been stopped by a signal"):
        placed.result(LIMIT_S)
    job.agent.socket.close()
    job.front.close()


def test_an_agent_that_is_stopped_before_it_listens_is_named(ends, monkeypatch):
    monkeypatch.setattr(agent_process, "CHECK_S", 0.05)
    monkeypatch.setattr(agent_process, "own_argv", lambda *_: ["sh", "-c", "kill -STOP $$"])
    with ThreadPoolExecutor(1) as thread:
        making = thread.submit(Front, o.Start(0, 2, "n0", "127.0.0.1", True), LIMIT_S, 0.2)
        until(lambda: ends)
        ends.pop().close()
        with pytest.raises(JobFailed, match="worker n0 lost its agent, which has been stopped by a signal"):
            making.result(LIMIT_S)


def test_a_script_that_computes_comes_to_its_next_sum(ends, monkeypatch):
    died = []
    monkeypatch.setattr(fronts, "GRACE_S", 0.2)
    monkeypatch.setattr(fronts, "STUCK_CHECK_S", 0.02)
    monkeypatch.setattr(fronts, "die", lambda *why: died.append(why))
    job = Job(ends)
    job.agent.tell(o.Ended(Failure(cause=Cause.SILENT, detail="has not reported", role="agent", node="n1")))
    os.kill(job.front.agent.pid, signal.SIGKILL)
    job.agent.socket.close()
    end_s = time.monotonic() + 1.0
    while time.monotonic() < end_s:
        hashlib.sha256(bytes(10**6))
    assert not died, "it writes a checkpoint, say"
    until(lambda: died)  # it sleeps
    job.front.close()


@pytest.mark.parametrize("has_heard", [False, True])
def test_a_script_that_waits_elsewhere_at_the_end_is_ended(ends, monkeypatch, has_heard):
    """Whether it has heard of the end or not: it may wait for a sum of gloo's before it comes to the error."""
    died, waits = [], []
    monkeypatch.setattr(fronts, "GRACE_S", 0.2)
    monkeypatch.setattr(fronts, "STUCK_CHECK_S", 0.02)
    monkeypatch.setattr(fronts, "die", lambda *why: died.append(why))
    job = Job(ends)
    placed = job.place(3000) if has_heard else None
    job.front.waits_elsewhere = lambda _: bool(waits)
    failure = Failure(cause=Cause.SILENT, detail="has not reported", role="agent", node="n1")
    job.agent.tell(o.Ended(failure))
    os.kill(job.front.agent.pid, signal.SIGKILL)
    job.agent.socket.close()
    if placed is not None:
        with pytest.raises(JobFailed):
            placed.result(LIMIT_S)
        time.sleep(0.5)
        assert not died, "it may go on as it likes"
        waits.append("in gloo")
    until(lambda: died)
    assert died[0][0] == failure
    job.front.close()


def test_the_job_may_want_no_further_iteration(job):
    for _ in range(2):
        for elements in SIZES:
            job.directly(elements)
    placed = job.place(3000)
    job.agent.hear()
    job.agent.tell(Finish())
    with pytest.raises(JobFinished):
        placed.result(LIMIT_S)


def test_leaving_frees_memory(job):
    one, _ = job.begin(job.learn())
    one.memory[:] = 1.0
    job.hear_next(o.Sum)
    assert os.fstat(job.agent.descriptors[0]).st_blocks
    closing = job.thread.submit(job.front.close)
    os.kill(job.front.agent.pid, signal.SIGKILL)
    job.agent.socket.close()
    closing.result(LIMIT_S)
    assert not os.fstat(job.agent.descriptors[0]).st_blocks


@pytest.mark.parametrize(
    "failed",
    [
        None,
        Failure(cause=Cause.SCRIPT, detail="failed: ValueError: no"),
        Failure(cause=Cause.INPUT, detail="failed: InputError: no"),
        Failure(cause=Cause.CHECKPOINT, detail="failed: no room", phase=Phase.CHECKPOINT, iteration=8),
    ],
)
def test_leaving(ends, failed, monkeypatch, capfd):
    monkeypatch.setenv(VARIABLE, "id")  # a launcher
    job = Job(ends)
    closing = job.thread.submit(job.front.close, failed)
    leave = job.agent.hear()
    assert leave.failure == (failed and structs.replace(failed, role="worker", node="n0"))
    told = failure_in(capfd.readouterr().err)[1]  # where the script's own words tell people but not the launcher
    assert told == (leave.failure if failed and failed.is_wrong_input else None)
    assert not closing.done()
    os.kill(job.front.agent.pid, signal.SIGKILL)
    job.agent.socket.close()
    closing.result(LIMIT_S)


def test_leaving_tells_of_the_last_iteration_of_the_ring_first(job):
    sums = [job.learn(by_ring=True).result(LIMIT_S), job.place(2001).result(LIMIT_S)]
    assert [job.agent.hear() for _ in sums] == [o.RingBegun(5), o.RingBegun(6)]
    closing = job.thread.submit(job.front.close)
    assert job.agent.has_heard_all()
    for one in sums:
        one.done()
    assert job.agent.hear().iteration == 0
    assert job.agent.hear() == o.Leave()
    os.kill(job.front.agent.pid, signal.SIGKILL)
    job.agent.socket.close()
    closing.result(LIMIT_S)


def test_further_sums_of_an_iteration_whose_first_one_failed_raise_why(job):
    """DDP begins all sums of a backward pass, whatever becomes of the first."""
    for _ in range(2):
        for elements in SIZES:
            job.directly(elements)
    first = job.place(SIZES[0])
    assert job.agent.hear().is_whole
    job.agent.tell(o.Ended(Failure(cause=Cause.COORDINATOR, detail="disk full", role="scheduler", node="n1")))
    with pytest.raises(JobFailed, match="disk full"):
        first.result(LIMIT_S)
    with pytest.raises(JobFailed, match="disk full"):
        job.place(SIZES[1]).result(LIMIT_S)


def test_an_error_of_any_length_is_told_as_it_fits(job):
    """A packet that the socket does not take would leave the agent, and so all ranks, waiting."""
    failed = Failure(cause=Cause.SCRIPT, detail="failed: a path of \udcff" + "x" * 1_000_000)
    closing = job.thread.submit(job.front.close, failed)
    told = job.agent.hear().failure.detail
    assert told.startswith("failed: a path of ?x")
    assert len(told) == DETAIL_MOST
    os.kill(job.front.agent.pid, signal.SIGKILL)
    job.agent.socket.close()
    closing.result(LIMIT_S)


def test_an_agent_that_does_not_start_is_named(ends, monkeypatch):
    monkeypatch.setattr(agent_process, "own_argv", lambda *_: ["sh", "-c", "exit 3"])
    with ThreadPoolExecutor(1) as thread:
        making = thread.submit(Front, o.Start(0, 2, "n0", "127.0.0.1", True), LIMIT_S, LIMIT_S)
        until(lambda: ends)
        ends.pop().close()
        with pytest.raises(JobFailed, match="worker n0 lost its agent, which ended with 3"):
            making.result(LIMIT_S)
