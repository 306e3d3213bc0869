"""How a process of a job by sites can fail: the job ends in time, the culprit is named, nothing is left."""

import importlib.util
import os
import signal

import pytest

from nalb.failures import Cause
from tests.failures import who
from tests.launch.conftest import STEPS, Launch

pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]


@pytest.mark.parametrize(("role", "level"), [("server", "site"), ("worker", None)])
def test_a_process_of_a_site_is_killed(launch: Launch, role: str, level: str | None) -> None:
    job = launch("--local", "2+1", "--deadline-s", "5", "--", *STEPS)
    job.wait_for("step 3", 3)
    os.kill(job.pid(role, "n1", level), signal.SIGKILL)
    code, _ = job.end()
    assert code == 128 + signal.SIGKILL
    failure = job.failure()
    assert (failure.cause, who(failure)) == (Cause.ENDED, (f"{level} {role}" if level else role, "n1"))
    assert failure.iteration is not None
    job.assert_nothing_left()
