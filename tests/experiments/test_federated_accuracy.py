"""The flags of scripts/figures/federated_accuracy.py, in a process of its own: it imports mxnet."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.jobs

SCRIPT = Path(__file__).parents[2] / "scripts" / "figures" / "federated_accuracy.py"


@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
@pytest.mark.parametrize(
    ("variants", "code", "says"),
    [
        ("FedAvg,LBBSP", 2, "federated_accuracy: --variants 'LBBSP' is unknown: choose of FedAvg, LB-BSP"),
        ("LB-BSP,FedAvg", 2, "name it first\n"),
        ("FedAvg, rate by size", 1, "t10k-images-idx3-ubyte[.gz] is missing"),  # it goes on to the data
    ],
)
def test_variants_are_known_ones_and_the_first_is_what_others_are_held_against(
    variants: str, code: int, says: str
) -> None:
    argv = [sys.executable, SCRIPT, "--data", "/nowhere", "--variants", variants]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
