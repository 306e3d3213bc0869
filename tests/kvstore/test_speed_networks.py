"""The speed networks, in one process apart: MXNet stays out of pytest's, where warnings are errors and others fork."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "networks.py"
CASES = next(
    [name.id for name in node.value.elts]
    for node in ast.parse(SCRIPT.read_text(encoding="utf-8")).body
    if isinstance(node, ast.Assign) and node.targets[0].id == "CASES"
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    command = [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("models"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.mxnet
@pytest.mark.parametrize("case", CASES)
def test_speed_networks(outcomes, case):
    assert outcomes[case] == "ok", outcomes[case]
