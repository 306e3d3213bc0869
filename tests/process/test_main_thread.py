"""Whether a process's main thread is at work."""

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, time
from nalb.process.main_thread import MainThread
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
script, end_s = MainThread(), time.monotonic() + 0.3
while time.monotonic() < end_s:
    time.sleep(PAUSE_S)
os._exit(script.is_at_work())
"""


@pytest.mark.parametrize(("pause_s", "is_at_work"), [(0, True), (0.1, False)])
def test_a_process_that_os_fork_has_made_is_looked_at_itself(pause_s: float, is_at_work: bool) -> None:
    script = SCRIPT.replace("time.sleep(PAUSE_S)", f"time.sleep({pause_s})" if pause_s else "pass")
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == is_at_work
