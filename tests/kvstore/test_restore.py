"""Every optimizer's state survives a checkpoint, and what does not fit is refused: MXNet alone, in one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.mxnet


def test_a_training_goes_on_exactly_with_every_optimizer(tmp_path):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("restore_cases.py")), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
