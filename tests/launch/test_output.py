"""Output as it comes: nothing is lost, progress bars are seen while they move, and nothing takes long."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalb.launch import output, supervisor
from nalb.launch.output import PIECE_BYTES, Kind, Piece, cut, pieces_of
from tests.launch.test_supervisor import job_of, spec

CHUNKS = st.lists(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\xff", b"b" * 7]), max_size=6).map(b"".join))


def fed(chunks: list[bytes]) -> list[Piece]:
    """What becomes of output that comes in these chunks."""
    found, rest = list[Piece](), b""
    for chunk in chunks:
        pieces, rest = cut(rest + chunk)
        found += pieces
    return [*found, Piece(Kind.LINE, rest)] if rest else found


@given(CHUNKS)
def test_every_byte_comes_once_whatever_the_chunks(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    assert fed(chunks) == fed([whole])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "PIECE_BYTES", 10)
        pieces = fed(chunks)
    assert b"".join(piece.raw for piece in pieces) == whole


def test_what_ends_a_line_and_what_a_state() -> None:
    pieces, rest = cut(b"\r 1%\r 2%\r\nend\n\r\r 3%\r")
    kinds = [(piece.kind, piece.raw) for piece in pieces]
    assert kinds == [
        (Kind.STATE, b"\r"), (Kind.STATE, b" 1%\r"), (Kind.LINE, b" 2%\r\n"), (Kind.LINE, b"end\n"),
        (Kind.STATE, b"\r"), (Kind.STATE, b"\r"),
    ]  # fmt: skip
    assert rest == b" 3%\r"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Its ends, to read and to write."""
    reads, writes = os.pipe()
    yield reads, writes
    os.close(reads)


def test_a_bar_is_seen_at_once_and_a_question_after_a_while(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "STATE_S", 0.05)
    reads, writes = pipe
    pieces = pieces_of(reads)
    for said, kind in ((b"go on? ", Kind.OPEN), (b"yes\n", Kind.LINE), (b"\r 1%", Kind.STATE)):
        os.write(writes, said)
        assert next(pieces).kind is kind
    assert next(pieces) == (Kind.OPEN, b" 1%")
    os.write(writes, b"\r 2%")
    assert [next(pieces), next(pieces)] == [(Kind.STATE, b" 1%\r"), (Kind.OPEN, b" 2%")]
    os.close(writes)
    *_, last = pieces
    assert last == (Kind.LINE, b" 2%")


def test_long_lines_come_in_pieces(pipe: tuple[int, int]) -> None:
    """Without an end in megabytes, each byte is looked at a few times only: else this would take hours."""
    reads, writes = pipe
    threading.Thread(target=lambda: (os.write(writes, b"x" * 3_000_000), os.close(writes))).start()
    pieces = [piece for piece in pieces_of(reads) if piece.kind is Kind.LINE]
    assert sum(len(piece.raw) for piece in pieces) == 3_000_000
    assert max(len(piece.raw) for piece in pieces) == PIECE_BYTES


@pytest.mark.jobs
def test_a_job_shows_bars_as_they_move_and_logs_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STATE_S", 0.0)
    lines: list[str] = []
    states: list[str] = []
    bar = r"import sys, time; sys.stdout.buffer.write(b'first\n\r10%\r20%\xff'); sys.stdout.flush(); time.sleep(600)"
    with job_of(tmp_path, [spec("worker", "n0", bar)], show=lines.append, show_unfinished=states.append) as job:
        while "[n0 worker] 20%\ufffd" not in states:
            assert not job.finished()
    assert lines == ["[n0 worker] first", "[n0 worker] 20%\ufffd"]
    assert states[:2] == ["[n0 worker] 10%", "[n0 worker] 20%\ufffd"]
    assert (tmp_path / "logs" / "n0.worker.log").read_bytes() == b"first\n\r10%\r20%\xff"
