"""The shim under the real libmxnet.so: a scheduler, two servers and two workers on loopback, on either libzmq."""

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore_patch.shim import TRANSPORTS, Sample, preload_environment
from tests.ports import free_ports

JOB_LIMIT_S = 120.0
LIBZMQ = {"mxnet": "libmxnet.so", "pyzmq": "libzmq-"}  # how the file begins
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]


def run_job(transport: str, script: str, servers: int, workers: int) -> list:
    """Run the job to its end; returns what each worker reports. Every process is gone afterwards, whatever happened."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MXNET_KVSTORE_BIGARRAY_BOUND": "1000000000",
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_ports(1)[0]),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_NUM_WORKER": str(workers),
    }
    preloaded = environment | preload_environment({}, transport)
    serve, work = (
        [sys.executable, "-c", "import mxnet"],
        [sys.executable, str(Path(__file__).with_name(script))],
    )
    commands = [(environment | {"DMLC_ROLE": "scheduler"}, serve)]
    commands += [(preloaded | {"DMLC_ROLE": "server"}, serve)] * servers
    commands += [(preloaded | {"DMLC_ROLE": "worker"}, work)] * workers
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
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs[-workers:]]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ps_lite_on_the_shim(transport: str) -> None:
    reports = run_job(transport, "job_worker.py", servers=2, workers=2)
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

        received = [Sample(*row) for row in report["samples"]]
        assert len(received) == 2 * 8  # two keys, eight exchanges: servers announce all
        assert {s.peer for s in received} <= {8, 10}
        assert all(200_000 < s.size_bytes < 201_000 and 0 < s.start_ns <= s.end_ns for s in received)


def test_every_key_of_a_slot_reaches_its_server() -> None:
    """Also where MXNet's hash overflows: libmxnet keeps the low 32 bits, which C++ leaves open."""
    (found,) = run_job("mxnet", "keys_worker.py", servers=3, workers=1)
    assert len(found) > 60
    for server, peers, total in found:
        assert (peers, total) == ([8 + 2 * server], 8.0)
