"""Numbered items between couriers: whatever is lost, repeated or overtaken, each is taken once, in order, and at last all are."""

from copy import deepcopy

import pytest

from nalb.errors import PeerError
from nalb.transport.stream import WINDOW_BYTES, Inflow, Outflow

ITEMS = "ab"
CHANNEL_MOST = 3  # messages on their way that are tried, in either direction
FAULTS = 2  # losses, repetitions and overtakings of one course


class Course:
    """Sender, receiver and what is on its way: portions and marks one way, words the other."""

    def __init__(self, size_bytes):
        self.outflow, self.inflow, self.size_bytes = Outflow(), Inflow(), size_bytes
        self.data, self.words, self.taken, self.faults = [], [], "", FAULTS
        for item in ITEMS:
            self.outflow.put(item, size_bytes)

    def key(self):
        out, inn = self.outflow, self.inflow
        sender = (out.confirmed, out.sent, out.round, len(out), out.limit_bytes)
        receiver = (inn.received, inn.again, inn.limit_bytes)
        return sender, receiver, tuple(self.data), tuple(self.words), self.faults

    def send(self):
        number, item = self.outflow.next()
        self.data.append((number, self.outflow.round, item))
        self.outflow.leave()

    def mark(self):
        self.data.append((self.outflow.sent, self.outflow.round, None))

    def word(self):
        self.inflow.open()
        self.words.append((self.inflow.received, self.inflow.limit_bytes, self.inflow.again))

    def arrive(self, place):
        number, round_, item = self.data.pop(place)
        if item is None:
            self.inflow.mark(number, round_)
        elif self.inflow.is_next(number, round_):
            self.inflow.note_taken(self.size_bytes)
            self.taken += item
        assert ITEMS.startswith(self.taken)

    def hear(self, place):
        self.outflow.confirm(*self.words.pop(place))

    def moves(self):
        """Everything that may happen next, as functions of a course."""
        if self.outflow.next() and len(self.data) < CHANNEL_MOST:
            yield Course.send
        if len(self.outflow) and len(self.data) < CHANNEL_MOST and (not self.data or self.data[-1][2] is not None):
            yield Course.mark
        if len(self.words) < CHANNEL_MOST - 1:
            yield Course.word
        for name, act in (("data", Course.arrive), ("words", Course.hear)):
            for place in range(len(getattr(self, name))):
                if place == 0 or self.faults:
                    yield lambda one, act=act, place=place: one.spend(place > 0) or act(one, place)
                if self.faults:
                    yield lambda one, name=name, place=place: one.spend(True) or getattr(one, name).pop(place)
                    yield (
                        lambda one, name=name, place=place: (
                            one.spend(True) or getattr(one, name).append(getattr(one, name)[place])
                        )
                    )

    def spend(self, is_fault):
        self.faults -= is_fault

    def settle(self):
        """A beat after another, without faults, until all is confirmed."""
        for _ in range(4):
            while self.outflow.next():
                self.send()
            self.mark()
            while self.data:
                self.arrive(0)
            self.word()
            while self.words:
                self.hear(0)
        assert self.taken == ITEMS
        assert not len(self.outflow)


@pytest.mark.jobs
@pytest.mark.parametrize("size_bytes", [1, WINDOW_BYTES])  # all may be on their way at once; one alone
def test_every_course_takes_each_item_once_in_order_and_ends_with_all(size_bytes):
    begin = Course(size_bytes)
    seen, due = {begin.key()}, [begin]
    while due:
        course = due.pop()
        deepcopy(course).settle()
        for move in course.moves():
            after = deepcopy(course)
            move(after)
            if after.key() not in seen:
                seen.add(after.key())
                due.append(after)
    assert len(seen) > 1000


def test_a_gap_is_answered_once_however_often_it_shows():
    course = Course(1)
    course.outflow.put("c", 1)
    for _ in range(3):
        course.send()
    course.data.pop(0)
    for _ in range(2):
        course.arrive(0)
        course.word()
    course.mark()
    course.arrive(0)
    course.word()
    for _ in range(3):
        course.hear(0)
    assert (course.outflow.round, course.outflow.sent) == (1, 0)


def test_no_more_leaves_than_the_peer_lets_come():
    outflow, inflow = Outflow(), Inflow()
    for number in range(10):
        outflow.put(number, WINDOW_BYTES // 4)
    while outflow.next():
        outflow.leave()
    assert outflow.sent == 4
    assert not outflow.wants_more
    for number in range(1, 4):
        assert inflow.is_next(number, 0)
        inflow.note_taken(WINDOW_BYTES // 4)
        outflow.confirm(inflow.received, inflow.limit_bytes, -1)
    assert outflow.next() is None
    assert inflow.open()
    outflow.confirm(inflow.received, inflow.limit_bytes, -1)
    while outflow.next():
        outflow.leave()
    assert outflow.sent == 7


def test_nothing_is_confirmed_that_was_not_sent():
    outflow = Outflow()
    outflow.put("a", 1)
    with pytest.raises(PeerError):
        outflow.confirm(2, 0, -1)
