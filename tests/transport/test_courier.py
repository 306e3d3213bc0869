"""Arrays between couriers: they arrive whole, in any order, encrypted or not, and what is not ours changes nothing."""

import random
import threading
import time
from contextlib import ExitStack, closing
from functools import partial

import numpy as np
import psutil
import pytest
import zmq

from nalb.errors import PeerError
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part
from nalb.transport.courier import Courier, own_host
from nalb.transport.curvezmq import secure_client
from nalb.transport.keys import make_keys
from nalb.transport.pieces import FRAME_MOST_BYTES, HEADER_MOST_BYTES, Phase, SumPiece, TokenPiece, pack, unpack

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
FRAMES = 3000  # of the fuzzer
PATIENCE_S = 20.0


def piece(number, iteration=0):
    return TokenPiece(TokenId(iteration, 0, number), Part.OUTPUT, TokenId(iteration, 1, number))


class Couriers:
    """One for each host, which know each other."""

    def __init__(self, stack, hosts=HOSTS[:2], keys=None):
        self.failures = []
        self.all = [Courier(host, keys and keys[host], self.failures.append) for host in hosts]
        for rank, one in enumerate(self.all):
            stack.callback(one.close)
            one.meet(rank, [other.address for other in self.all])


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
            got = second.take(piece(number), 0)
            assert got.dtype == arrays[number].dtype
            assert np.array_equal(got, arrays[number])
        found = []
        thread = threading.Thread(target=lambda: found.append(first.take(SumPiece(3, 1, Phase.GATHER, "x"), 1)))
        thread.start()
        second.send(0, SumPiece(3, 1, Phase.GATHER, "x"), lambda: arrays[0])
        thread.join(PATIENCE_S)
        assert np.array_equal(found[0], arrays[0])
        assert not couriers.failures
        assert not first.refused + second.refused


def test_what_is_complete_is_refused_and_dropped():
    with ExitStack() as stack:
        first, second = Couriers(stack).all
        first.send(1, piece(0, iteration=4), lambda: np.zeros(3))
        first.send(1, piece(0, iteration=5), lambda: np.ones(3))
        wait_until(lambda: len(second._inbox) == 2)
        second.free(4)
        assert second.take(piece(0, iteration=5), 0).sum() == 3
        assert not second._inbox
        assert second._inbox_bytes == 0
        first.send(1, piece(1, iteration=3), lambda: np.zeros(3))
        wait_until(lambda: second.refused.total() == 1)


def test_an_array_that_cannot_be_had_fails_by_name():
    def load():
        raise PeerError("is asked for what it does not hold")

    with ExitStack() as stack:
        couriers = Couriers(stack)
        couriers.all[0].send(1, piece(0), load)
        wait_until(lambda: couriers.failures)
        assert "is asked for what it does not hold" in couriers.failures[0]
        with pytest.raises(PeerError, match="closed"):
            couriers.all[0].take(piece(0), 1)


def test_hostile_frames_are_refused_and_counted_and_leave_nothing():
    with ExitStack() as stack:
        _, second = Couriers(stack).all
        context = stack.enter_context(zmq.Context())
        stranger = stack.enter_context(closing(context.socket(zmq.DEALER)))
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(second.address)
        rng, good = random.Random(1), [bytes(frame) for frame in pack(0, piece(0), np.zeros(8))]

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
        assert not second._inbox
        stranger.send_multipart(good)  # and goes on
        assert second.take(piece(0), 0).size == 8


def test_a_node_speaks_for_itself_alone():
    keys = make_keys({host: host for host in HOSTS})
    with ExitStack() as stack:
        _, second, _ = Couriers(stack, HOSTS, keys).all
        context = stack.enter_context(zmq.Context())
        third = stack.enter_context(closing(context.socket(zmq.DEALER)))
        third.setsockopt(zmq.LINGER, 0)
        secure_client(third, keys[HOSTS[2]], second.address)
        third.connect(second.address)
        third.send_multipart(pack(0, piece(0), np.zeros(8)))
        wait_until(lambda: second.refused.total() == 1)
        third.send_multipart(pack(2, piece(0), np.zeros(8)))
        assert second.take(piece(0), 2).size == 8


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b"x"],
        [b"x", b"y", b"z"],
        [b"\0" * (HEADER_MOST_BYTES + 1), b""],
        [bytes(pack(0, piece(0), np.zeros(8))[0]), b"short"],
    ],
)
def test_what_is_not_ours_cannot_be_unpacked(frames):
    with pytest.raises(PeerError):
        unpack([memoryview(frame) for frame in frames])


def test_the_address_is_the_one_that_reaches_the_coordinator():
    assert own_host("tcp://127.0.0.1:9") == "127.0.0.1"
    assert FRAME_MOST_BYTES >= 1 << 30


def test_one_that_has_met_nobody_closes():
    failures = []
    Courier(HOSTS[0], None, failures.append).close()
    assert not failures
