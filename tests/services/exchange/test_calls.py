"""Calls that no plan covers: made by all workers alike, or by none. All orders of arrival, and the coordinator that asks."""

import itertools
import math
import pickle
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_patch.keys.plane import PS_LITE
from nalb.failures import Cause
from nalb.protocol import wire
from nalb.protocol.members import Members
from nalb.protocol.participant import left_behind
from nalb.services import composition
from nalb.services.composition import new_coordinator
from nalb.services.exchange import messages as m
from nalb.services.exchange.calls import CallAgreement, announcement, describe
from nalb.settings import from_environment
from tests.failures import who
from tests.protocol.test_coordinator import ENVIRONMENT

PLANNED = "P"  # a call of a program; the others travel directly


def settings(workers):
    return from_environment({**ENVIRONMENT, "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": "1"}, "host")


def called(number, call):
    return announcement(number, "sum", ((call, 1, "float32"),))


def report(calls):
    return wire.Report(0.0, -1, [], 0, calls)


class World:
    """Workers that make the calls of their programs. They go on from a planned call at once, but leave once its sums are there."""

    def __init__(self, programs):
        self.programs, count = programs, len(programs)
        self.outbox = deque()
        self.members = Members(settings(count), 0.0)
        self.agreement = CallAgreement(self.members, self.outbox)
        for rank in range(count):
            assert not self.members.admit(b"%d" % rank, wire.Hello(wire.VERSION, "worker", f"n{rank}", rank, 1), 0.0)
        self.made, self.told, self.waits, self.gone = [0] * count, [0] * count, [False] * count, [False] * count
        self.up, self.down = [[] for _ in programs], [[] for _ in programs]
        self.why = None

    def moves(self):
        if self.why:
            return []
        found = []
        for rank in range(len(self.programs)):
            if not self.waits[rank] and not self.gone[rank] and (self.has_next(rank) or self.has_all_sums(rank)):
                found.append(("go on", rank))
            if self.told[rank] != self.made[rank]:
                found.append(("report", rank))
            found += [("up", rank)] * bool(self.up[rank]) + [("down", rank)] * bool(self.down[rank])
        return found

    def has_next(self, rank):
        return self.made[rank] < len(self.programs[rank])

    def has_all_sums(self, rank):
        planned = [number for number, call in enumerate(self.programs[rank]) if call == PLANNED]
        programs = zip(self.programs, self.made, strict=True)
        return all(number < made and program[number] == PLANNED for program, made in programs for number in planned)

    def play(self, what, rank):
        program, number = self.programs[rank], self.made[rank]
        if what == "go on" and not self.has_next(rank):
            self.gone[rank] = True
            self.up[rank] += [report(number), wire.Goodbye()]  # as Client does
            self.told[rank] = number
        elif what == "go on":
            if program[number] != PLANNED:
                self.up[rank].append(called(number, program[number]))
                self.waits[rank] = True
            self.made[rank] += 1
        elif what == "report":
            self.told[rank] = number
            self.up[rank].append(report(number))
        elif what == "down":
            assert self.down[rank].pop(0) == m.CallAgreed(number - 1)
            self.waits[rank] = False
        else:
            self.hear(self.members.worker_of_rank[rank], self.up[rank].pop(0))

    def hear(self, worker, message):
        if isinstance(message, wire.Report):
            worker.note(message, 0.0)
            self.why = left_behind(worker, self.members.left) or self.agreement.reported(worker)
        elif isinstance(message, m.Called):
            self.why = self.agreement.announced(worker, message, 0.0)
        else:
            self.members.leave(worker, 0.0)
            self.told = [
                told if gone else -1 for told, gone in zip(self.told, self.gone, strict=True)
            ]  # all report again
        if self.outbox:
            assert len(self.outbox) == len(self.programs)
            number = self.outbox[0][1].number
            agreed = {program[: number + 1] for program in self.programs}
            assert len(agreed) == 1, "calls are agreed on that differ, or come after others that do"
        while self.outbox:
            identity, answer = self.outbox.popleft()
            self.down[int(identity)].append(answer)


def explore(programs):
    """Whether the job's end is right in every order; how many states there are."""
    queue = [pickle.dumps(World(programs))]
    seen = set(queue)
    while queue:
        frozen = queue.pop()
        moves = pickle.loads(frozen).moves()
        if not moves:
            end = pickle.loads(frozen)
            if len(set(programs)) == 1:
                assert all(end.gone), (programs, end.why)
            else:
                assert end.why.cause is Cause.UNEQUAL, programs
        for move in moves:
            world = pickle.loads(frozen)
            world.play(*move)
            if (key := pickle.dumps(world)) not in seen:
                seen.add(key)
                queue.append(key)
    return len(seen)


def programs_of(alphabet, most):
    return ["".join(calls) for length in range(most + 1) for calls in itertools.product(alphabet, repeat=length)]


@pytest.mark.jobs
def test_two_workers_in_every_order_of_messages():
    states = [explore(pair) for pair in itertools.combinations_with_replacement(programs_of("Pxy", 2), 2)]
    assert sum(states) > 10_000


@pytest.mark.parametrize("programs", [("x",) * 3, ("xP", "xx", "xP"), ("x", "x", ""), ("Px", "xP", "x")])
def test_three_workers_in_every_order_of_messages(programs):
    assert explore(programs) > 100


@given(st.data())
def test_many_calls_of_many_workers_end_alike_or_named(data):
    """Some order of messages, programs that are alike but for a call."""
    program = data.draw(st.text("Pxyz", max_size=8))
    programs = [program] * data.draw(st.integers(2, 4))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(program)))
        insert = data.draw(st.sampled_from(["P", "x", "y"]))
        programs[data.draw(st.integers(0, len(programs) - 1))] = program[:at] + insert + program[at:]
    world = World(programs)
    while moves := world.moves():
        world.play(*data.draw(st.sampled_from(moves)))
    if len(set(programs)) == 1:
        assert all(world.gone)
    else:
        assert world.why.cause is Cause.UNEQUAL


def coordinator(workers=2):
    state = new_coordinator(settings(workers), 0.0, plane=PS_LITE)
    state.receive(b"s0", wire.Hello(wire.VERSION, "server", "n0", 0, 1), 0.0)
    for rank in range(workers):
        state.receive(b"w%d" % rank, wire.Hello(wire.VERSION, "worker", f"n{rank}", rank, 1), 0.0)
    state.outbox.clear()
    return state


def test_nobody_is_answered_before_all_have_announced_the_call():
    state = coordinator()
    state.receive(b"w0", called(0, "x"), 0.0)
    state.receive(b"w0", report(1), 0.0)
    assert not state.outbox
    state.receive(b"w1", called(0, "x"), 0.0)
    assert list(state.outbox) == [(b"w0", m.CallAgreed(0)), (b"w1", m.CallAgreed(0))]
    state.receive(b"w1", called(0, "x"), 0.0)  # a repetition
    assert len(state.outbox) == 2
    assert state.phase == "REGISTER"


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (called(0, "x"), called(0, "y"), ("sum of 'x', 1 element, float32", "sum of 'y', 1 element, float32")),
        (called(0, "1"), called(0, 1), ("sum of '1', 1 element", "sum of 1, 1 element")),
        (called(2, "x"), called(1, "y"), ("worker n1 made a call (sum of 'y'", "then made (sum of 'x'")),
        (called(1, "x"), report(2), ("worker n0 made a call (sum of 'x'", "worker n1 went on with its iterations")),
        (report(2), called(1, "x"), ("worker n1 made a call (sum of 'x'", "worker n0 went on with its iterations")),
        (
            announcement(0, "broadcast", (("x", 5, "float32"),)),
            announcement(0, "sum", (("x", 5, "float64"),)),
            ("broadcast of 'x', 5 elements, float32", "sum of 'x', 5 elements, float64"),
        ),
        (
            announcement(0, "sum", tuple((key, 1, "float32") for key in range(9))),
            announcement(0, "sum", (*((key, 1, "float32") for key in range(8)), ("last", 1, "float32"))),
            ("sum of 0, 1, 2 and 6 more, 9 elements, float32", "looks alike"),
        ),
    ],
)
def test_both_calls_are_named(first, second, named):
    state = coordinator()
    state.receive(b"w0", first, 0.0)
    state.receive(b"w1", second, 0.0)
    failure = state.verdict
    assert (failure.cause, failure.role) == (Cause.UNEQUAL, "worker")
    told = f"worker {failure.node} {failure.detail}"
    assert all(text in told for text in named), told
    assert all(isinstance(answer, wire.Abort) for _, answer in state.outbox)


def test_a_worker_that_computes_for_long_is_waited_for():
    state = coordinator()
    state.receive(b"w0", called(3, "x"), 0.0)
    for second in range(600):
        for peer, calls in ((b"s0", 9), (b"w0", 4), (b"w1", 3)):
            state.receive(peer, report(calls), float(second))
        state.tick(float(second))
    assert state.verdict is None


def test_a_worker_that_has_left_makes_no_call_any_more():
    state = coordinator()
    state.receive(b"w1", report(3), 0.0)
    state.receive(b"w1", wire.Goodbye(), 0.0)
    state.receive(b"w0", called(3, "x"), 0.0)
    state.receive(b"w0", report(4), 0.25)
    assert (state.verdict.cause, who(state.verdict)) == (Cause.UNEQUAL, ("worker", "n1"))


def test_a_second_call_before_the_first_is_agreed_on_is_the_senders_fault():
    state = coordinator()
    state.receive(b"w0", called(0, "x"), 0.0)
    state.receive(b"w0", called(1, "x"), 0.0)
    assert (state.verdict.cause, who(state.verdict)) == (Cause.PROTOCOL, ("worker", "n0"))


def test_calls_are_equal_by_kind_keys_order_elements_and_dtypes():
    group = (("a", 3, "float32"), ("b", 4, "float16"))
    others = [
        announcement(0, "broadcast", group),
        announcement(0, "single sum", group),
        announcement(0, "sum", group[::-1]),
        announcement(0, "sum", group[:1]),
        announcement(0, "sum", (("a", 4, "float32"), ("b", 3, "float16"))),
        announcement(0, "sum", (("a", 3, "float16"), ("b", 4, "float32"))),
        announcement(0, "sum", (("a\0003", 3, "float32"), ("b", 4, "float16"))),
    ]
    assert announcement(0, "sum", group) == announcement(0, "sum", group)
    assert all(other != announcement(0, "sum", group) for other in others)
    assert len({call.digest for call in others[2:]}) == len(others[2:])


@given(
    st.lists(st.tuples(st.text() | st.integers(), st.integers(0, 2**31), st.just("float64")), min_size=1, max_size=20)
)
def test_any_keys_can_be_announced(group):
    call = announcement(0, "sum", tuple(group))
    assert composition.decode_at_coordinator(wire.encode(call), "n0") == call
    assert "\n" not in describe(call)


def test_the_last_sums_that_hold_an_iteration_tell_how_long_it_took():
    members, outbox = Members(settings(2), 0.0), deque()
    agreement = CallAgreement(members, outbox)
    for rank in range(2):
        assert not members.admit(b"%d" % rank, wire.Hello(wire.VERSION, "worker", f"n{rank}", rank, 1), 0.0)
    for number, (elements, agreed_s) in enumerate([(7, 1.0), (4, 2.0), (2, 3.0), (4, 5.0), (2, 6.0)]):
        for rank in range(2):
            call = announcement(number, "sum", ((number, elements, "float32"),))
            assert agreement.announced(members.worker_of_rank[rank], call, agreed_s - 0.5 + rank / 2) is None
    assert agreement.last_iteration_s(6, 7.0) == 2.0
    assert agreement.last_iteration_s(12, 7.0) == 5.0
    assert agreement.last_iteration_s(5, 7.0) == math.inf
    assert agreement.last_iteration_s(100, 7.0) == math.inf
