"""How a process of a job can fail: the job ends in time, the culprit is named, nothing is left. More: test_campaign.py."""

import importlib.util
import os
import signal
import sys

import pytest

from nalb.failures import NOT_LEFT, Cause
from tests.failures import who
from tests.launch.conftest import END_LIMIT_S, START_LIMIT_S, STEPS, Launch, Launched

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]


def under_way(launch: Launch, nodes: int, *flags: str) -> Launched:
    """A job that iterates."""
    job = launch("--local", str(nodes), "--deadline-s", "5", *flags, "--", *STEPS)
    job.wait_for("step 3", nodes)
    return job


def test_a_process_is_killed(launch: Launch) -> None:
    job = under_way(launch, 2)
    os.kill(job.pid("worker", "n1"), signal.SIGKILL)
    code, _ = job.end()
    assert code == 128 + signal.SIGKILL
    failure = job.failure()
    assert (failure.cause, who(failure)) == (Cause.ENDED, ("worker", "n1"))
    assert failure.iteration is not None
    assert str(job.run_dir / "logs" / "n1.worker.log") in job.verdict()
    job.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_launcher_is_told_to_end(launch: Launch, number: signal.Signals) -> None:
    job = under_way(launch, 1, "--max-restarts", "5")  # it was told to end: nothing restarts
    job.signal(number)
    job.signal(number)  # an impatient user's second one must not disturb the first
    code, _ = job.end()
    assert code == 128 + number
    assert number.name in job.verdict()
    job.assert_nothing_left(within_s=0)
    assert not (job.run_dir / "observers").exists()


@pytest.mark.parametrize(
    ("fault", "exit_code", "cause"),
    [
        ("raise", 1, Cause.SCRIPT),
        ("exit-3", 3, Cause.ENDED),
        ("exit-of-site", 3, Cause.ENDED),
        ("os-exit", 4, Cause.ENDED),
        ("leave", 4, Cause.UNEQUAL),
    ],
)
def test_a_worker_script_fails(launch: Launch, fault: str, exit_code: int, cause: Cause) -> None:
    job = launch("--local", "2", "--deadline-s", "5", "--", *STEPS, "--fault", fault)
    if fault != "leave":
        job.wait_for("step 3")  # the other may not come to say it
    code, _ = job.end(START_LIMIT_S if fault == "leave" else END_LIMIT_S)
    assert code == exit_code, job.output
    assert (job.failure().cause, who(job.failure())) == (cause, ("worker", "n1"))
    assert not any("] nalb: " in line for line in job.lines), "each process says it in its log alone"
    assert (job.run_dir / "logs" / "n0.server.log").read_text().startswith("nalb: ")
    assert fault != "os-exit" or (job.failure().detail == NOT_LEFT and "[n1 worker] 50% |##  |" in job.lines)
    assert fault != "raise" or "ValueError: the loss is not a number" in job.failure().detail  # the script's own words
    job.assert_nothing_left()


FAILS_ON_MXNET_ALONE = """
import sys, time
import mxnet as mx
def main():
    store = mx.kv.create("nalb")
    if store.rank == 1:
        {}
    time.sleep(600)
main()
"""


@pytest.mark.parametrize(("end", "exit_code"), [("sys.exit(3)", 3), ("raise ValueError('no number')", 1)])
def test_a_worker_script_fails_on_mxnet_alone(launch: Launch, end: str, exit_code: int) -> None:
    """MXNet's store would wait for the others when the script ends, and they for it."""
    command = [sys.executable, "-c", FAILS_ON_MXNET_ALONE.format(end)]
    job = launch("--local", "2", "--scheme", "stock", "--", *command)
    code, _ = job.end(START_LIMIT_S)
    assert code == exit_code, job.output
    assert job.failure().cause is (Cause.ENDED if exit_code == 3 else Cause.SCRIPT)
    job.assert_nothing_left()
