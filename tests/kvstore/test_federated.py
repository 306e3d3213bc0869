"""FedAvg on real jobs: models are averaged with equal weights, and batch sizes follow the clients' speeds."""

import json
from pathlib import Path

import pytest

from nalb.services.batching.sizer import WARM_UP
from tests.kvstore.test_store import run_job

CLIENTS = Path(__file__).parent / "federated_workers.py"
pytestmark = pytest.mark.mxnet


def test_models_are_averaged_and_sizes_follow_speed(tmp_path):
    done = run_job(tmp_path, str(CLIENTS), str(WARM_UP + 6), nodes=2, flags=("--batching", "lb-bsp-federated"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"sizes"' in line]
    first, second = (row["sizes"] for row in sorted(rows, key=lambda row: row["rank"]))
    assert first[: WARM_UP + 1] == second[: WARM_UP + 1] == [40] * (WARM_UP + 1)
    assert {a + b for a, b in zip(first, second, strict=True)} == {80}
    assert first[-1] > 40 > second[-1]


def test_without_batching_every_client_keeps_its_size(tmp_path):
    done = run_job(tmp_path, str(CLIENTS), "3", nodes=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"sizes": [40, 40, 40]') == 2


def test_steps_and_rounds_are_not_taken_for_each_other(tmp_path):
    done = run_job(tmp_path, str(CLIENTS), "1", nodes=2, flags=("--batching", "lb-bsp"))
    assert done.returncode != 0
    assert "--batching lb-bsp is for steps, not for rounds" in done.stdout + done.stderr
