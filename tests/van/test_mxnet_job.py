"""The van under the real libmxnet.so: a scheduler, two servers and two workers on loopback, on either libzmq."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore_patch.van import RECEIVED, SENT, TRANSPORTS, Sample, preload_environment

JOB_LIMIT_S = 120.0
SERVERS = WORKERS = 2
LIBZMQ = {"mxnet": "libmxnet.so", "pyzmq": "libzmq-"}  # how the file begins
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_job(transport: str) -> list[dict]:
    """Run the job to its end; returns the workers' reports. Every process is gone afterwards, whatever happened."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MXNET_KVSTORE_BIGARRAY_BOUND": "1000000000",
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_SERVER": str(SERVERS),
        "DMLC_NUM_WORKER": str(WORKERS),
    }
    preloaded = environment | preload_environment({}, transport)
    serve, work = (
        [sys.executable, "-c", "import mxnet"],
        [sys.executable, str(Path(__file__).with_name("job_worker.py"))],
    )
    commands = [(environment | {"DMLC_ROLE": "scheduler"}, serve)]
    commands += [(preloaded | {"DMLC_ROLE": "server"}, serve)] * SERVERS
    commands += [(preloaded | {"DMLC_ROLE": "worker"}, work)] * WORKERS
    with ExitStack() as stack:
        processes = []
        for variables, command in commands:
            process = subprocess.Popen(
                command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        outputs = [process.communicate(timeout=JOB_LIMIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs[-WORKERS:]]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ps_lite_on_the_van(transport: str) -> None:
    reports = run_job(transport)
    assert sorted(report["rank"] for report in reports) == [0, 1]
    for report in reports:
        assert report["self_id"] == 9 + 2 * report["rank"]
        assert Path(report["transport"]).name.startswith(LIBZMQ[transport])
        assert report["sums"] == [2.0 ** (i + 1) for i in range(8)]  # each exchange doubles: two workers, same values
        assert report["untouched"]
        assert report["drops"] == 0
        assert report["silent"]["hostile_frames"] == report["silent"]["untracked_sockets"] == 0
        assert report["silent"]["forecasts_sent"] == report["announced"]["forecasts_sent"]
        assert report["announced"]["forecasts_sent"] == report["announced"]["messages_sent"]

        samples = [Sample(*row) for row in report["samples"]]
        received = [s for s in samples if s.kind == RECEIVED]
        assert len(received) == len([s for s in samples if s.kind == SENT]) == 2 * 8  # two keys, eight exchanges
        assert {s.peer for s in received} <= {8, 10}
        assert all(200_000 < s.size_bytes < 201_000 and 0 < s.start_ns <= s.end_ns for s in received)
