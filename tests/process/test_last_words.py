"""Who is told why a process ends."""

import subprocess
import sys

import pytest

PROGRAM = """
from nalb.failures import Cause, Failure
from nalb.process.last_words import die, hand_to
hand_to(lambda failure: print("heard", failure.detail, flush=True) is not None or {told})
die(Failure(cause=Cause.PROCESS, detail="has failed", role="agent", node="n1"), 3)
"""


@pytest.mark.parametrize("told", [True, False])
def test_a_hearer_tells_people_in_the_process_s_place(told):
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(told=told)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 3
    assert ended.stdout == "heard has failed\n"
    assert ended.stderr == ("" if told else "nalb: agent n1 has failed\n")
