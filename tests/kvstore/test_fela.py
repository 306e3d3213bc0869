"""Training with tokens on real MXNet: any weights, any subset, any policy give the parameters that one process gets."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mxnet


def test_steps_by_tokens_are_one_processs():
    script = str(Path(__file__).with_name("fela_cases.py"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
