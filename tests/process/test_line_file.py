import errno
import os
import resource
from contextlib import contextmanager

import pytest

from nalb.errors import MachineError
from nalb.process.line_file import WAITING_MOST_BYTES, LineFile, LineWriter


@contextmanager
def files_of_at_most(size_bytes):
    """As a disk that has room for no more: what does not fit is written in part, then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_does_not_fit_is_refused_and_spoils_itself_alone(tmp_path):
    path = tmp_path / "lines"
    with LineFile(path) as file:
        file.append(b"first\n")
        with files_of_at_most(10), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            file.append(b"second\n")
        assert path.read_bytes() == b"first\nseco"
        file.append(b"third\n")
    with LineFile(path) as file:  # another process, or the same one later
        file.append(b"fourth\n")
    assert path.read_bytes() == b"first\nseco\nthird\nfourth\n"


def test_what_a_killed_writer_left_ends_before_the_next_line(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"whole\nhal")
    with LineFile(path) as mine, LineFile(path) as others:
        mine.append(b"mine\n")
        others.append(b"others\n")
    assert path.read_bytes() == b"whole\nhal\nmine\nothers\n"


def test_what_is_no_file_on_a_disk_takes_lines_too():
    with LineFile("/dev/null") as file:
        file.append(b"gone\n")


# an iteration of a hundred nodes: more than a pipe holds
LINE = b"x" * (1 << 20) + b"\n"


def append_all(writer, lines):
    """Each is taken out of `lines` once the writer has it."""
    while lines:
        writer.append(lines[-1])
        lines.pop()


@pytest.fixture
def fifo(tmp_path):
    """A pipe that nobody reads takes as much as fits, and keeps the writer of the rest waiting, as a disk may that stands still."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as pipe:
        yield path, pipe


def test_a_slow_disk_keeps_nobody_waiting_and_gets_all_in_order(fifo):
    path, pipe = fifo
    writer = LineWriter(path)
    for line in (LINE, b"second\n", b"third\n"):
        writer.append(line)
    wanted = LINE + b"second\nthird\n"
    assert pipe.read(len(wanted)) == wanted
    writer.finish(10.0)


def test_what_waits_for_a_disk_is_bounded_and_told_at_the_end(fifo):
    path, pipe = fifo
    writer = LineWriter(path)
    stands_still = r"^cannot write .*fifo \(its disk stands still or is too slow\): "
    with pytest.raises(MachineError, match=stands_still):
        append_all(writer, left := [LINE] * (3 * WAITING_MOST_BYTES // len(LINE)))  # the first ones are being written
    assert len(left) * len(LINE) < 2 * WAITING_MOST_BYTES
    with pytest.raises(MachineError, match=stands_still):
        writer.finish(0.1)
    pipe.read((3 * WAITING_MOST_BYTES // len(LINE) - len(left)) * len(LINE))
    writer.finish(10.0)


def test_lines_that_do_not_fit_are_told_at_the_next_call(tmp_path):
    path = tmp_path / "lines"
    writer = LineWriter(path)
    with files_of_at_most(10):
        writer.append(b"longer than ten\n")
        with pytest.raises(MachineError, match=r"^cannot write .*lines \(File too large\): make room$"):
            writer.finish(10.0)
    assert path.read_bytes() == b"longer tha"
