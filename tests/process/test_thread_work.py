"""Whether a thread is at work."""

import subprocess
import sys

import pytest

# threading is imported before the fork: Python notes the main thread's number then
SCRIPT = """
import os, sys, threading, time
from nalb.process.thread_work import ThreadWork
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
script, end_s = ThreadWork(os.getpid()), time.monotonic() + 0.3
{waits}
os._exit(script.is_at_work())
"""


@pytest.mark.parametrize(
    ("waits", "is_at_work"), [("while time.monotonic() < end_s: pass", True), ("time.sleep(2)", False)]
)
def test_a_process_that_os_fork_has_made_is_looked_at_itself(waits: str, is_at_work: bool) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(waits=waits)], check=False, timeout=60)
    assert done.returncode == is_at_work
