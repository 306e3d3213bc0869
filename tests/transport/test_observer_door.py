"""Observers at the coordinator's socket: those that stop reading, those that leave, and who may say what where."""

import time
from contextlib import ExitStack, contextmanager

import pytest
import zmq

from nalb.errors import InputError, MachineError
from nalb.events import DoubtEvent, MissedEvent, StateEvent
from nalb.protocol import wire
from nalb.services.composition import new_coordinator
from nalb.settings import from_environment
from nalb.transport.conversations import Conversations
from nalb.transport.observer import Observer
from nalb.transport.observer_door import EVENT_BYTES, QUEUE_BYTES
from nalb.transport.server import flush, open_door, take_message, take_of_observer

ENVIRONMENT = {
    "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "DMLC_NUM_WORKER": "50",
    "DMLC_NUM_SERVER": "50", "NALB_SCHEME": "exact",
}  # fmt: skip
QUEUE = QUEUE_BYTES // (EVENT_BYTES * 100)
EVENT = DoubtEvent(at_s=1.0, process="server n0", node="n0", reason="x" * 4000)
READERS = 1000  # events: libzmq's own queue at an observer
MANY = 3000
LIMIT_S = 20.0


class Shell:
    """What CoordinatorThread does with its observers, in this thread."""

    def __init__(self, folder, stack):
        self.address = f"ipc://{folder}/observers"
        settings = from_environment(ENVIRONMENT | {"NALB_OBSERVERS": self.address}, "host")
        self.door = open_door(stack.enter_context(zmq.Context()), settings, stack)
        self.state = new_coordinator(settings, 0.0)

    def turn(self, for_s=0.01):
        """Once around the loop."""
        if self.door.socket.poll(1000 * for_s):
            for frames in self.door.arrived():
                take_of_observer(self.state, frames)
        self.door.catch_up(2.0)
        flush(None, self.state, None, self.door)

    def tell(self, count=1):
        """Note so many events; the shell looks after each."""
        for _ in range(count):
            self.state.observers.tell(EVENT)
            flush(None, self.state, None, self.door)

    @property
    def watched_by(self):
        return len(self.state.observers.identities)

    def until(self, holds):
        end_s = time.monotonic() + LIMIT_S
        while not holds():
            self.turn()
            assert time.monotonic() < end_s


@contextmanager
def shell(folder):
    with ExitStack() as stack:
        yield Shell(folder, stack)


def test_one_that_stops_reading_costs_a_queue_and_is_told_how_many_it_missed(tmp_path):
    with shell(tmp_path) as one, Observer(one.address, may_miss=True) as slow, Observer(one.address) as quick:
        one.until(lambda: one.watched_by == 2)
        seen = []
        for told in range(100, MANY + 1, 100):
            one.tell(100)
            one.until(lambda told=told: seen.extend(quick.events(0.02)) or seen.count(EVENT) >= told)
        assert [event for event in seen if not isinstance(event, StateEvent)] == [EVENT] * MANY
        got = []
        one.until(lambda: got.extend(slow.events(0.05)) or any(isinstance(event, MissedEvent) for event in got))
        one.tell()
        one.until(lambda: got.extend(slow.events(0.05)) or got[-1] == EVENT)
        assert isinstance(got[0], StateEvent)
        (missed,) = (event for event in got if isinstance(event, MissedEvent))
        assert missed.events + sum(event == EVENT for event in got) == MANY + 1
        assert got[-1] == EVENT  # what came later comes after the count
        assert READERS < MANY - missed.events < QUEUE + READERS + 300  # the rest is the kernel's buffer


def test_one_that_must_not_miss_anything_is_told_by_an_error(tmp_path):
    with shell(tmp_path) as one, Observer(one.address) as slow:
        one.until(lambda: one.watched_by == 1)
        one.tell(MANY)
        with pytest.raises(MachineError, match="events of the job were lost"):
            one.until(lambda: not {MissedEvent} - set(map(type, slow.events(0.05))))


def test_one_that_has_gone_is_forgotten_with_what_it_missed(tmp_path):
    with shell(tmp_path) as one:
        with Observer(one.address), Observer(one.address):
            one.until(lambda: one.watched_by == 2)
            one.tell(MANY)
            assert one.door.missed
        one.until(lambda: one.tell() or one.watched_by == 0)  # the socket notices in the background
        one.turn()
        assert not one.door.missed


def test_observers_and_processes_each_have_their_socket(tmp_path):
    with shell(tmp_path) as one:
        take_message(Conversations(one.door.socket), one.state, [b"stranger", wire.encode(wire.EndJob())])
        take_of_observer(one.state, [b"stranger", wire.encode(wire.Goodbye())])
        assert one.state.rejected["undecodable message"] == 2
        assert not one.state.observers.is_ending
        take_of_observer(one.state, [b"watcher", wire.encode(wire.EndJob())])
        assert one.state.observers.is_ending


def test_a_path_that_no_socket_can_have_is_named():
    refused = pytest.raises(InputError, match="longer than 107 bytes: use a shorter run directory")
    with refused, shell("/" + 110 * "x"):
        pass
    refused = pytest.raises(InputError, match=r"/proc/observers \(No such file .*\): choose an --out on a local disk")
    with refused, shell("/proc"):  # which makes no files, as some disks make no sockets
        pass
