"""The coordinator's process on the plane."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.jobs


def test_it_ends_silently_where_its_agent_has_ended_before_it_could_tell_its_port() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    argv = [sys.executable, "-m", "nalb.plane.coordinator", "127.0.0.1:0", "2", "n0"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=60
        )
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")
