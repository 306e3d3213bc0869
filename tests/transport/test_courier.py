"""Arrays between couriers: they arrive whole, in any order, encrypted or not, and what is not ours changes nothing.

Connections break while arrays are on their way, and peers fall silent: nothing is lost, or the wait ends with names.
"""

import contextlib
import math
import random
import socket
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, closing
from functools import partial

import numpy as np
import psutil
import pytest
import zmq

from nalb.errors import MachineError, PeerError
from nalb.failures import Cause
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part
from nalb.transport import courier as courier_module
from nalb.transport import stream
from nalb.transport.courier import Courier, own_host
from nalb.transport.curvezmq import secure_client
from nalb.transport.keys import make_keys
from nalb.transport.pieces import (
    ARRAY_MOST_BYTES,
    HEADER_MOST_BYTES,
    PORTION_MOST_BYTES,
    Assembly,
    Mark,
    Portion,
    Sender,
    SumPhase,
    SumPiece,
    TokenPiece,
    pack,
    pack_header,
    portions,
    unpack,
)
from tests.campaigns.resets import require_resets

JOB = "job"
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
FRAMES = 3000  # of the fuzzer
PATIENCE_S = 20.0
DEADLINE_S = 10.0
SOON_S = 2.0  # a deadline whose end a test waits for


def piece(number, iteration=0):
    return TokenPiece(TokenId(iteration, 0, number), Part.OUTPUT, TokenId(iteration, 1, number))


def whole(array, piece=None, number=1, rank=0, job=JOB):
    """The frames of an array that is one portion."""
    (only,) = portions(piece or globals()["piece"](0), array)
    return [bytes(frame) for frame in pack(Sender(rank, job), number, 0, only)]


class Couriers:
    """One for each host, which know each other."""

    def __init__(self, stack, hosts=HOSTS[:2], keys=None, deadline_s=DEADLINE_S, meets=None):
        self.failures = []
        self.all = [Courier(host, keys and keys[host], self.fail, deadline_s) for host in hosts]
        for one in self.all:
            stack.callback(one.close)
        for rank, one in enumerate(self.all if meets is None else self.all[:meets]):
            one.meet(Sender(rank, JOB), [other.address for other in self.all])

    def fail(self, cause, why, iteration):
        self.failures.append((cause, why, iteration))


def wait_until(condition):
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_arrays_arrive_whole_whoever_waits_first(is_encrypted):
    keys = make_keys({host: host for host in HOSTS[:2]}) if is_encrypted else None
    arrays = [np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros((0, 5)), np.array(7, np.int64)]
    with ExitStack() as stack:
        couriers = Couriers(stack, keys=keys)
        first, second = couriers.all
        for number, array in enumerate(arrays):
            first.send(1, piece(number), partial(np.asarray, array))
        for number in (2, 0, 1):
            got = second.take_piece(piece(number), 0)
            assert got.dtype == arrays[number].dtype
            assert np.array_equal(got, arrays[number])
        found = []
        thread = threading.Thread(
            target=lambda: found.append(first.take_piece(SumPiece(3, 1, SumPhase.GATHER, "x"), 1))
        )
        thread.start()
        second.send(0, SumPiece(3, 1, SumPhase.GATHER, "x"), lambda: arrays[0])
        thread.join(PATIENCE_S)
        assert np.array_equal(found[0], arrays[0])
        assert not couriers.failures
        assert not first.refused + second.refused


def test_what_is_complete_is_refused_and_dropped():
    with ExitStack() as stack:
        first, second = Couriers(stack).all
        first.send(1, piece(0, iteration=4), lambda: np.zeros(3))
        first.send(1, piece(0, iteration=5), lambda: np.ones(3))
        wait_until(lambda: second.arrived == 2)
        second.free(4)
        assert second.take_piece(piece(0, iteration=5), 0).sum() == 3
        assert not second.arrived
        assert second.arrived_bytes == 0
        first.send(1, piece(1, iteration=3), lambda: np.zeros(3))
        wait_until(lambda: second.refused.total() == 1)


def test_an_array_that_cannot_be_had_fails_by_name():
    def load():
        raise PeerError("is asked for what it does not hold")

    with ExitStack() as stack:
        couriers = Couriers(stack)
        couriers.all[0].send(1, piece(0), load)
        wait_until(lambda: couriers.failures)
        assert "is asked for what it does not hold" in couriers.failures[0][1]
        with pytest.raises(PeerError, match="closed"):
            couriers.all[0].take_piece(piece(0), 1)


def test_hostile_frames_are_refused_and_counted_and_leave_nothing():
    with ExitStack() as stack:
        _, second = Couriers(stack).all
        context = stack.enter_context(zmq.Context())
        stranger = stack.enter_context(closing(context.socket(zmq.DEALER)))
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(second.address)
        rng, good = random.Random(1), whole(np.zeros(8))

        def send(count):
            for _ in range(count):
                frames = list(good)
                frames[0] = bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
                stranger.send_multipart(frames[: rng.randint(1, 2)] + [b"more"] * rng.randrange(3))

        send(FRAMES // 10)
        wait_until(lambda: second.refused.total() == FRAMES // 10)
        before_bytes = psutil.Process().memory_info().rss
        send(FRAMES)
        wait_until(lambda: second.refused.total() == FRAMES // 10 + FRAMES)
        assert psutil.Process().memory_info().rss - before_bytes < 20_000_000
        assert not second.arrived
        stranger.send_multipart(good)  # and goes on
        assert second.take_piece(piece(0), 0).size == 8


def test_a_node_speaks_for_itself_alone():
    keys = make_keys({host: host for host in HOSTS})
    with ExitStack() as stack:
        _, second, _ = Couriers(stack, HOSTS, keys).all
        context = stack.enter_context(zmq.Context())
        third = stack.enter_context(closing(context.socket(zmq.DEALER)))
        third.setsockopt(zmq.LINGER, 0)
        secure_client(third, keys[HOSTS[2]], second.address)
        third.connect(second.address)
        third.send_multipart(whole(np.zeros(8)))
        wait_until(lambda: second.refused.total() == 1)
        third.send_multipart(whole(np.zeros(8), rank=2))
        assert second.take_piece(piece(0), 2).size == 8


def with_shape(shape, start_bytes=0):
    """The header alone."""
    return pack_header(Portion(Sender(0, JOB), 1, 0, piece(0), "float32", shape, start_bytes))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"x"],
        [b"x", b"y", b"z"],
        [b"\0" * (HEADER_MOST_BYTES + 1), b""],
        [whole(np.zeros(8))[0], b"too long" * 9],
        [whole(np.zeros(8))[0], b""],
        [whole(np.zeros(8))[0]],
        [*pack_header(Mark(Sender(0, JOB), 1, 0)), b"elements"],
        [*with_shape([1 << 31] * 32), b""],
        [*with_shape([0] + [(1 << 31) - 1] * 3), b""],  # numpy counts without the zero
        [*with_shape([4], start_bytes=17), b""],
    ],
)
def test_what_is_not_ours_cannot_be_unpacked(frames):
    with pytest.raises(PeerError):
        unpack([memoryview(frame) for frame in frames])


def test_the_address_is_the_one_that_reaches_the_coordinator():
    assert own_host("tcp://127.0.0.1:9") == "127.0.0.1"
    assert ARRAY_MOST_BYTES >= 1 << 30


def test_one_that_has_met_nobody_closes():
    failures = []
    Courier(HOSTS[0], None, lambda *why: failures.append(why), DEADLINE_S).close()
    assert not failures


def test_an_array_larger_than_a_frame_arrives_whole_and_what_does_not_follow_is_refused():
    array = np.random.default_rng(1).integers(0, 1 << 60, 5 * PORTION_MOST_BYTES // 16)
    with ExitStack() as stack:
        first, second = Couriers(stack).all
        first.send(1, piece(0), lambda: array)
        first.send(1, piece(1), lambda: array[:3])
        assert np.array_equal(second.take_piece(piece(0), 0), array)
        assert np.array_equal(second.take_piece(piece(1), 0), array[:3])
        assert not second.refused
    one, other, *_ = portions(piece(0), array)
    assembly = Assembly()
    with pytest.raises(PeerError):
        assembly.add(Portion(Sender(0, JOB), 1, 0, piece(0), one.dtype, one.shape, other.start_bytes), other.data)
    assert assembly.add(Portion(Sender(0, JOB), 1, 0, piece(0), one.dtype, one.shape, 0), one.data) is None
    with pytest.raises(PeerError):
        assembly.add(Portion(Sender(0, JOB), 2, 0, piece(1), one.dtype, one.shape, other.start_bytes), other.data)


def refuses(stack, couriers, frames):
    """The second courier refuses a stranger's frames, and takes the first one's array afterwards."""
    context = stack.enter_context(zmq.Context())
    stranger = stack.enter_context(closing(context.socket(zmq.DEALER)))
    stranger.connect(couriers.all[1].address)
    stranger.send_multipart(frames)
    wait_until(lambda: couriers.all[1].refused)
    couriers.all[0].send(1, piece(0), lambda: np.ones(3))
    assert couriers.all[1].take_piece(piece(0), 0).sum() == 3


def test_a_shape_that_numpy_cannot_count_leaves_the_courier_alive():
    with ExitStack() as stack:
        couriers = Couriers(stack)
        refuses(stack, couriers, [*with_shape([0] + [(1 << 31) - 1] * 3), b""])
        assert not couriers.failures


def test_a_worker_of_another_job_gets_nothing_in():
    """It connects anew to where a peer of its own was, and has the rank of one of ours."""
    with ExitStack() as stack:
        couriers = Couriers(stack)
        refuses(stack, couriers, whole(np.zeros(3), job="another"))
        assert [*couriers.all[1].refused] == ["another job's worker connects to an address that is this job's now"]


class Cuts:
    """A place between two couriers, whose connections can be reset while they carry something."""

    def __init__(self, stack, address):
        self._target = address.removeprefix("tcp://").rpartition(":")[0], int(address.rpartition(":")[2])
        self._listening = stack.enter_context(socket.create_server((self._target[0], 0)))
        self.address, self.passed_bytes = f"tcp://{self._target[0]}:{self._listening.getsockname()[1]}", 0
        self._ends, self._lock, self.is_closed, self.most_bytes = [], threading.Lock(), False, math.inf
        stack.callback(self.reset)
        stack.callback(setattr, self, "is_closed", True)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            if self.is_closed:
                self._break(one)
                continue
            other = socket.create_connection(self._target)
            with self._lock:
                self._ends += [one, other]
            for ends in ((one, other), (other, one)):
                threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source, target):
        passed_bytes = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                self.passed_bytes += len(data)
                if (passed_bytes := passed_bytes + len(data)) > self.most_bytes:
                    self.reset()

    @staticmethod
    def _break(one):
        with contextlib.suppress(OSError):
            one.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )  # RST, and nothing more is sent
            one.shutdown(socket.SHUT_RDWR)
        one.close()

    def reset(self):
        with self._lock:
            for one in self._ends:
                self._break(one)
            self._ends.clear()


@pytest.mark.jobs
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_connections_that_are_reset_lose_nothing(is_encrypted):
    """Ten times, each while arrays are on their way."""
    keys = make_keys({host: host for host in HOSTS[:2]}) if is_encrypted else None
    count, rng = 24, random.Random(2)
    with ExitStack() as stack:
        couriers = Couriers(stack, keys=keys, meets=0)
        first, second = couriers.all
        cuts = Cuts(stack, second.address)
        first.meet(Sender(0, JOB), [first.address, cuts.address])
        second.meet(Sender(1, JOB), [first.address, second.address])
        arrays = [np.full(rng.choice((3, 100_000, 3_000_000)), number, np.float32) for number in range(count)]
        for number, array in enumerate(arrays):
            first.send(1, piece(number), partial(np.asarray, array))
            second.send(0, piece(number), partial(np.asarray, array[:10]))
        total_bytes = sum(array.nbytes for array in arrays)
        resetting = threading.Thread(target=lambda: reset_often(cuts, total_bytes, rng))
        resetting.start()
        for number in range(count):
            assert np.array_equal(second.take_piece(piece(number), 0), arrays[number])
            assert np.array_equal(first.take_piece(piece(number), 1), arrays[number][:10])
        resetting.join()
        assert not couriers.failures
        assert not first.refused + second.refused
        assert cuts.passed_bytes > total_bytes


def reset_often(cuts, total_bytes, rng, times=10):
    for after in sorted(rng.random() * total_bytes for _ in range(times)):
        wait_until(lambda after=after: cuts.passed_bytes >= after)
        cuts.reset()


def test_a_connection_that_the_kernel_destroys_loses_nothing():
    try:
        require_resets()
    except MachineError as error:
        pytest.skip(str(error))
    count, array = 20, np.ones(1_500_000, np.float32)
    with ExitStack() as stack:
        couriers = Couriers(stack)
        first, second = couriers.all
        for number in range(count):
            first.send(1, piece(number), lambda: array)
        port = second.address.rpartition(":")[2]
        assert second.take_piece(piece(0), 0).size == array.size
        killed = subprocess.run(
            ["ss", "-KH", "dst", HOSTS[1], "dport", "=", port], check=True, capture_output=True, text=True
        )
        assert killed.stdout, "nothing was there to destroy"
        for number in range(1, count):
            assert second.take_piece(piece(number), 0).size == array.size
        assert not couriers.failures


def test_what_nobody_waits_for_stays_with_its_sender_and_what_is_waited_for_always_comes(monkeypatch):
    monkeypatch.setattr(courier_module, "INBOX_MOST_BYTES", 1_000_000)
    monkeypatch.setattr(stream, "WINDOW_BYTES", 2_000_000)
    count, array = 20, np.ones(1_000_000, np.uint8)
    loaded = []
    with ExitStack() as stack:
        couriers = Couriers(stack, HOSTS)
        first, second, third = couriers.all
        for number in range(count):
            first.send(1, piece(number), lambda number=number: loaded.append(number) or array)
        wait_until(lambda: second.arrived_bytes >= 2_000_000)
        third.send(1, piece(0), lambda: array)
        third.send(1, piece(1), lambda: array)
        assert second.take_piece(piece(1), 2).size == array.size  # from one while another fills the inbox
        assert len(loaded) < 10
        for number in reversed(range(count)):  # behind all the others
            assert second.take_piece(piece(number), 0).size == array.size
        assert second.take_piece(piece(0), 2).size == array.size
        assert second.arrived_bytes == 0
        assert not couriers.failures
        assert not second.refused


@pytest.mark.parametrize("waits_for", [piece(3, iteration=7), SumPiece(7, 1, SumPhase.GATHER, "float32")])
def test_a_holder_that_gives_no_sign_of_life_is_named_with_the_piece(waits_for):
    with ExitStack() as stack:
        couriers = Couriers(stack, deadline_s=SOON_S, meets=1)  # the second one never receives
        with pytest.raises(PeerError, match="closed"):
            couriers.all[0].take_piece(waits_for, 1)
        wait_until(lambda: couriers.failures)
        cause, why, iteration = couriers.failures[0]
        assert (cause, iteration) == (Cause.UNREACHABLE, 7)
        assert couriers.all[1].address.removeprefix("tcp://") in why
        assert "rank 1" in why


def test_a_worker_that_finds_no_connection_to_a_peer_says_so():
    with ExitStack() as stack:
        couriers = Couriers(stack, deadline_s=SOON_S, meets=0)
        first, second = couriers.all
        cuts = Cuts(stack, second.address)
        cuts.is_closed = True
        first.meet(Sender(0, JOB), [first.address, cuts.address])
        first.send(1, piece(3, iteration=7), lambda: np.ones(3))
        wait_until(lambda: couriers.failures)
        cause, why, iteration = couriers.failures[0]
        assert (cause, iteration) == (Cause.UNREACHABLE, 7)
        assert cuts.address.removeprefix("tcp://") in why


def test_connections_that_never_last_for_a_portion_end_the_job_by_name(monkeypatch):
    monkeypatch.setattr(courier_module, "VAIN_MOST", 4)
    with ExitStack() as stack:
        couriers = Couriers(stack, meets=0)
        first, second = couriers.all
        cuts = Cuts(stack, second.address)
        cuts.most_bytes = 1_000_000
        first.meet(Sender(0, JOB), [first.address, cuts.address])
        second.meet(Sender(1, JOB), [first.address, second.address])
        first.send(1, piece(3, iteration=7), lambda: np.ones(500_000))
        wait_until(lambda: couriers.failures)
        cause, why, iteration = couriers.failures[0]
        assert (cause, iteration) == (Cause.UNREACHABLE, 7)
        assert cuts.address.removeprefix("tcp://") in why


@pytest.mark.jobs
def test_a_tokens_input_that_its_holder_does_not_know_of_ends_the_wait_and_a_share_of_a_sum_is_waited_for():
    with ExitStack() as stack:
        couriers = Couriers(stack, deadline_s=SOON_S)
        first, second = couriers.all
        share, found = SumPiece(7, 1, SumPhase.GATHER, "float32"), []

        def wait():
            with contextlib.suppress(PeerError):  # at the end
                found.append(second.take_piece(share, 0))

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: second.awaited)
        with pytest.raises(PeerError, match="closed"):
            first.take_piece(piece(3, iteration=7), 1)
        assert [one[::2] for one in couriers.failures] == [(Cause.PROTOCOL, 7)]
        assert "nothing to send" in couriers.failures[0][1]
        assert thread.is_alive()
        second.close()
        thread.join(PATIENCE_S)
