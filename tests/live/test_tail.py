"""Following a run's files: appended lines, torn ones, restarts, and whether a job runs."""

import socket

import pytest
from msgspec import structs

from nalb.errors import InputError
from nalb.events import BlockEvent, ReadyEvent, SamplesEvent, encode_line
from nalb.live.tail import RunTail
from tests.reporting.paced import step

READY = ReadyEvent(at_s=1.0, nodes=["n0"])


def block(number):
    return BlockEvent(at_s=2.0, scheme="exact", iterations=number)


def append(folder, *lines):
    folder.mkdir(exist_ok=True)
    with open(folder / "samples.jsonl", "ab") as file:
        file.write(b"".join(lines))


def test_each_event_is_told_once_and_only_when_it_is_whole(tmp_path):
    tail = RunTail(tmp_path)
    assert list(tail.fresh()) == []
    line = encode_line(block(1))
    append(tmp_path, encode_line(READY), line[:10])
    assert list(tail.fresh()) == [READY]
    assert list(tail.fresh()) == []
    append(tmp_path, line[10:], encode_line(block(2)))
    assert list(tail.fresh()) == [block(1), block(2)]


def test_messages_of_iterations_are_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr("nalb.live.tail.READ_MOST", 7)  # lines that lie across two reads
    append(
        tmp_path, encode_line(READY), encode_line(SamplesEvent(at_s=1.0, iteration=0, rows=[])), encode_line(block(3))
    )
    assert list(RunTail(tmp_path).fresh()) == [READY, block(3)]


def test_a_restart_goes_on_in_its_own_folder(tmp_path):
    tail = RunTail(tmp_path)
    append(tmp_path, encode_line(block(1)))
    assert list(tail.fresh()) == [block(1)]
    append(tmp_path, encode_line(block(2)))
    append(tmp_path / "restart-1", encode_line(block(3)))
    append(tmp_path / "restart-2", encode_line(block(4)))
    assert list(tail.fresh()) == [block(2), block(3), block(4)]
    assert tail.restarts == 2
    assert tail.attempt_dir == tmp_path / "restart-2"


def test_a_socket_tells_that_a_job_runs(tmp_path):
    tail = RunTail(tmp_path)
    (tmp_path / "observers").touch()
    assert not tail.is_running
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "observers-9100"))
        assert tail.is_running
        (tmp_path / "restart-1").mkdir()
        assert not tail.is_running


def test_what_cannot_be_followed_is_named(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        RunTail(tmp_path / "absent")
    append(tmp_path, b'{"event":"block","at_s":"soon"}\n')
    append(tmp_path, encode_line(READY))
    tail = RunTail(tmp_path)
    for _ in range(2):  # also at the next look: what follows alone would be a part that looks like the whole
        with pytest.raises(InputError, match=r"samples.jsonl, byte 0"):
            list(tail.fresh())


def test_what_no_run_can_note_is_named(tmp_path):
    append(tmp_path, encode_line(READY))
    append(tmp_path, encode_line(structs.replace(step().event, communication_s={"n0": -5.0})))
    with pytest.raises(InputError, match=r"samples.jsonl, byte \d+: a time of -5 s; restore the file"):
        list(RunTail(tmp_path).fresh())
