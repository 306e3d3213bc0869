"""Sockets between agents, two ends in one process: slices as they are and by codecs, and what is refused."""

from contextlib import contextmanager

import numpy as np
import pytest

from nalb.errors import PeerError
from nalb.plane.codecs import codec_of
from nalb.plane.links import AgentLinks, SliceHeader

VALUES = np.linspace(-1, 1, 600, dtype=np.float32)


@contextmanager
def two():
    ends = [AgentLinks("127.0.0.1", 0, None) for _ in range(2)]
    for rank, one in enumerate(ends):
        one.connect(rank, [other.address for other in ends])
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
