"""LBB's profile, in one process apart: MXNet stays out of pytest's."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.mxnet
def test_profiles():
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "profile_cases.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
