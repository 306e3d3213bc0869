"""Copies by MXNet's engine, whatever the layout and the type."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mxnet


def test_slices_in_onednns_layout_are_copied_to_any_type():
    script = str(Path(__file__).with_name("ndarray_cases.py"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
