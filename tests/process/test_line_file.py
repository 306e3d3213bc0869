import errno
import os
import resource
from contextlib import contextmanager

import pytest

from nalb.process.line_file import LineFile


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
