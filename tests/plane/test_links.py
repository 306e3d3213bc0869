"""Sockets between agents, two ends in one process: slices as they are and by codecs, and what is refused."""

from contextlib import contextmanager

import msgspec
import numpy as np
import pytest
import zmq

from nalb.errors import PeerError
from nalb.plane.codecs import codec_of
from nalb.plane.links import AgentLinks, SliceHeader, identity_of
from nalb.transport.keys import make_keys

VALUES = np.linspace(-1, 1, 600, dtype=np.float32)


@contextmanager
def two(keys=None):
    """Agents of a job. keys: by the host of each."""
    ends = [AgentLinks(host, 0, keys and keys[host]) for host in (keys or ["127.0.0.1"] * 2)]
    for rank, one in enumerate(ends):
        one.connect(rank, [other.address for other in ends], "job")
    yield ends
    for one in ends:
        one.close()


class Receiver:
    """Notes what comes, and has room for answers."""

    def __init__(self):
        self.slices, self.frames = [], []
        self.values = np.zeros(600, np.float32)

    def pushed(self, rank, header, values):
        self.slices.append((rank, header, values))

    def room(self, rank, header):
        del rank, header
        return self.values

    def answered(self, header, frame):
        self.slices.append((None, header, self.values))
        self.frames.append(frame)


def read(links, receiver):
    """Read pushes until one came."""
    assert links.server.poll(10_000)
    links.read_pushes(receiver)


def test_slices_and_answers_by_codecs():
    with two() as (a, b):
        for name in ("float32", "bfloat16", "float16", "int8", "int4"):
            codec, pushes, answers = codec_of(name), Receiver(), Receiver()
            frame = VALUES.data if codec is None else codec.encode(VALUES, np.zeros_like(VALUES))
            header = SliceHeader(3, 7, "float32", 0 if codec is None else codec.number)
            a.push(1, header, frame, False)
            read(b, pushes)
            ((rank, came, values),) = pushes.slices
            assert (rank, came) == (0, header)
            assert np.abs(values - VALUES).max() <= {"int4": 0.08, "int8": 0.004, "bfloat16": 0.002}.get(name, 0.0003)
            b.answer([0], header, frame, False)
            assert a.peers[1].socket.poll(10_000)
            a.read_answers(1, answers)
            assert answers.values.tobytes() == values.tobytes()
            assert [one if one is None else one.bytes for one in answers.frames] == [
                None if codec is None else bytes(frame)
            ]


def test_samples_are_told_by_iteration_the_earliest_first():
    """Messages of the next iteration arrive among those of the one under way."""
    with two() as (a, b):
        for iteration in (4, 3, 4, 3):
            pushes = Receiver()
            a.push(1, SliceHeader(iteration, 7, "float32", 0), VALUES.data, True)
            while not pushes.slices:
                read(b, pushes)
        for iteration in (3, 4, -1):
            rows, drops, named = b.timings()
            assert (len(rows), drops, named) == (2 if iteration > 0 else 0, 0, iteration)
            assert all(row.size_bytes == VALUES.nbytes and 0 < row.start_ns < row.end_ns for row in rows)


@pytest.mark.parametrize(
    ("header", "payload", "text"),
    [
        (
            SliceHeader(0, 0, "float32", 9),
            b"1234",
            "agent of rank 0 sent a slice by codec 9, which this nalb does not know",
        ),
        (SliceHeader(0, 0, "float64", 3), b"1234", "sent float64 by codec 3, and codecs are for float32"),
        (SliceHeader(0, 0, "float32", 3), b"1234", "sent 4 bytes, which are no frame of int8"),
        (SliceHeader(0, 0, "float32", 0), b"123", "pushed 3 bytes of float32"),
    ],
)
def test_frames_that_no_agent_sends(header, payload, text):
    with two() as (a, b):
        a.push(1, header, payload, False)
        with pytest.raises(PeerError, match=text):
            read(b, Receiver())


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"f",
        b"\0" * 20,
        [0, 0, "float32"],
        [0, 0, "float32", 0, 0],
        [-1, 0, "float32", 0],
        [0, 1 << 63, "float32", 0],
        [0, 0, "float16", 0],
        [0, 0, "float32\n", 0],
    ],
)
def test_headers_that_are_none(header):
    with two() as (a, b):
        frame = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
        a.peers[1].socket.send_multipart([frame, VALUES.data])
        with pytest.raises(PeerError, match="agent of rank 0 sent a header that is not ours"):
            read(b, Receiver())


def test_an_answer_of_another_length():
    with two() as (a, b):
        a.push(1, SliceHeader(0, 0, "float32", 0), VALUES.data, False)  # a ROUTER answers those it has heard of
        read(b, Receiver())
        b.answer(
            [0], SliceHeader(0, 0, "float32", 4), codec_of("int4").encode(VALUES[:9], np.zeros(9, np.float32)), False
        )
        assert a.peers[1].socket.poll(10_000)
        with pytest.raises(PeerError, match="rank 1 sent 9 values in int4 for 600"):
            a.read_answers(1, Receiver())


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_what_strangers_push_is_not_taken(is_encrypted):
    """One of another job has a rank of ours, and one without a key has all that an agent has."""
    keys = make_keys({host: host for host in ("127.0.0.1", "127.0.0.2")}) if is_encrypted else None
    identity = identity_of(0, "job" if is_encrypted else "another")
    with two(keys) as (a, b), zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.ROUTING_ID, identity)
        stranger.connect(b.address)
        for _ in range(2):
            stranger.send_multipart([msgspec.msgpack.encode(SliceHeader(0, 9, "float32", 0)), VALUES[:1].data])
        receiver = Receiver()
        a.push(1, SliceHeader(0, 1, "float32", 0), VALUES.data, False)
        while not receiver.slices or b.server.poll(200):
            read(b, receiver)
        assert [(rank, header.slice_index) for rank, header, _ in receiver.slices] == [(0, 1)]
        b.answer([0], SliceHeader(0, 1, "float32", 0), VALUES.data, False)  # it goes to our agent
        assert a.peers[1].socket.poll(10_000)
