"""Files of what rounding took: damage costs one rounding, and so does a full disk."""

import subprocess
import sys

import pytest

from nalb.plane.residuals import Residuals
from tests.plane.test_pushing import cut_of


@pytest.fixture
def kept():
    result, cut = Residuals(), cut_of([3, 40])
    result.fit(cut)
    for index in range(cut.first[-1]):
        result.of(cut, index)[:] = 1 + index
    return result


def test_a_damaged_file_is_no_error(kept, tmp_path, caplog):
    path, cut = tmp_path / "kept.npz", cut_of([3, 40])
    kept.write(path)
    whole = path.read_bytes()
    found = Residuals.read(path)
    found.fit(cut)
    assert [list(found.of(cut, index)) for index in range(2)] == [[1.0] * 3, [2.0] * 40]
    for place in range(0, len(whole), 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5B]) + whole[place + 1 :])
        Residuals.read(path)
    for stop in range(0, len(whole), 10):
        path.write_bytes(whole[:stop])
        caplog.clear()
        assert Residuals.read(path) is None
        assert f"{path} is damaged and skipped" in caplog.text
    caplog.clear()
    assert Residuals.read(tmp_path / "none.npz") is None
    assert not caplog.text


WRITES_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from nalb.plane.residuals import Residuals

kept = Residuals.read(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
kept.write(Path(sys.argv[1]))
"""


def test_a_full_disk_costs_one_rounding_and_ends_no_job(kept, tmp_path):
    path = tmp_path / "kept.npz"
    kept.write(path)  # of an earlier run
    argv = [sys.executable, "-c", WRITES_ON_A_FULL_DISK, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert f"cannot write what rounding took to {path} ([Errno 27] File too large)" in done.stderr
    assert not list(tmp_path.iterdir())
    assert Residuals.read(path) is None


def test_sums_of_another_dtype_get_nothing_of_what_was_kept(kept, tmp_path):
    """Halves lie in memory as float32 too."""
    path = tmp_path / "kept.npz"
    kept.write(path)
    for found in (kept, Residuals.read(path)):
        halves = cut_of([3, 40], dtype="float16")
        found.fit(halves)
        assert not any(found.of(halves, index).any() for index in range(2))


def test_a_file_is_its_owners_alone(kept, tmp_path):
    path = tmp_path / "kept.npz"
    kept.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
