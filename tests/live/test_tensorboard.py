"""Scalars for TensorBoard, read back from the event file."""

import struct

import pytest

from nalb.cli.main import run
from nalb.events import LayoutEvent, encode_line
from nalb.reporting.about_file import write_about
from tests.live.test_state import READY, iterations

tensorboard = pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")


def written(folder):
    """{name: {step: value}} of the only event file."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events*")
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)  # each record: size, its checksum, the event, its checksum
        event = Event.FromString(data[at + 12 : at + 12 + size])
        at += 16 + size
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.simple_value
    return found


def test_each_iteration_is_a_step(tmp_path, capsys):
    write_about(tmp_path, "1.2.3", ["launch"])
    events = iterations(3, resent={"n1": 3})
    lines = map(encode_line, [READY, LayoutEvent(at_s=101.0, model_bytes=12_000_000), *events])
    (tmp_path / "samples.jsonl").write_bytes(b"".join(lines))
    assert run(["metrics", str(tmp_path), "--tensorboard", str(tmp_path / "board")]) == 0
    assert "3 iterations" in capsys.readouterr().out
    found = written(tmp_path / "board")
    assert found["exchange_s"] == {1: 2.0, 2: 2.0, 3: 2.0}
    assert found["share/n3"] == dict.fromkeys((1, 2, 3), 0.25)
    assert found["link_bytes_per_s/n0_up"] == dict.fromkeys((1, 2, 3), 9e6)
    assert (found["resent_packets/n1"][1], found["resent_packets/n0"][1]) == (3, 0)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "samples.jsonl").write_bytes(encode_line(READY))
    (tmp_path / "file").touch()
    assert run(["metrics", str(tmp_path), "--tensorboard", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
