"""Two jobs of PyTorch's fault campaign."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count, repeat
from pathlib import Path

import pytest

from netem import rootless
from tests.campaigns.faults import Case, run

CASES = [
    Case("kill", "agent", "b", "push", True, venue="torch, network", more=("--scheme", "average")),
    Case("stop", "scheduler", "n0", "forward", False, venue="torch, alone", more=("NALB_SCHEME=average",)),
]


@pytest.mark.root
@pytest.mark.torch
def test_faults_in_jobs_of_torch(tmp_path: Path) -> None:
    """One goes on from its checkpoint, one is supervised by nobody. Side by side: they mostly wait."""
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces")
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, CASES, repeat(tmp_path), count(), repeat(5.0), repeat(tmp_path / "said")))
    for case, (outcome, right, took_s) in zip(CASES, outcomes, strict=True):
        assert right, (case, outcome, took_s)
