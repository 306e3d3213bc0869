"""What wrappers of a worker's command drop, found in its living processes."""

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from nalb.launch.lost_variables import EVERY_S, LostVariables
from nalb.launch.processes import LocalProcess
from nalb.launch.roles import ProcessSpec
from nalb.process.guardian import mark

GIVEN = {"DMLC_ROLE": "worker", "NALB_NODE": "n0", "NALB_COORDINATOR": "127.0.0.1:9001", "OMP_NUM_THREADS": "1"}
LIMIT_S = 20.0


@pytest.fixture
def started() -> Iterator[list[LocalProcess]]:
    workers: list[LocalProcess] = []
    yield workers
    for worker in workers:
        worker.kill()
        worker.popen.wait()


def told(workers: list[LocalProcess], *command: str) -> str:
    """Of a worker with this command, once its `sleep` runs and was looked at; then it ends and is looked at again."""
    popen = subprocess.Popen(command, env=os.environ | GIVEN | mark("job", "n0.worker"), start_new_session=True)
    worker = LocalProcess(ProcessSpec("n0", "worker", command, GIVEN), popen)
    workers.append(worker)
    lost = LostVariables()
    subprocess.run(  # until it has become what it is to be
        ["sh", "-c", f"until pgrep -s {popen.pid} -x sleep; do sleep 0.05; done"], check=True, timeout=LIMIT_S
    )
    lost.look([worker])
    found = lost.of(worker)
    worker.kill()
    worker.popen.wait()
    time.sleep(EVERY_S)
    lost.look([worker])
    assert lost.of(worker) == found, "what is known of a process that has ended is lost"
    return found


def test_nothing_is_told_where_all_is_there(started: list[LocalProcess]) -> None:
    assert told(started, "sleep", "60") == ""


def test_lost_variables_are_named(started: list[LocalProcess]) -> None:
    found = told(started, "env", "-u", "NALB_NODE", "-u", "OMP_NUM_THREADS", "sleep", "60")
    assert f"process {started[0].popen.pid}, 'sleep 60', lacks NALB_NODE: have" in found


def test_they_are_found_below_a_shell(started: list[LocalProcess]) -> None:
    found = told(started, "sh", "-c", "env -i sleep 60; true")
    assert (
        "'sleep 60', lacks DMLC_ROLE, NALB_COORDINATOR, NALB_JOB, NALB_NODE: have the command pass its environment on"
        in found
    )
