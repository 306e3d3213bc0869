"""Jobs that start at the same time, before any of them listens."""

import subprocess
import sys

from nalb.launch.ports import free_pair

LAUNCHER = """
import sys
from nalb.launch.ports import free_pair
with free_pair("127.0.0.1") as port:
    print(port, flush=True)
    sys.stdin.read()
"""


def test_no_two_jobs_are_given_the_same_ports() -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        with free_pair("127.0.0.1") as port, free_pair("127.0.0.1") as third:
            assert len({taken, port, third}) == 3
        other.kill()
    with free_pair("127.0.0.1") as port:  # a launcher that was killed keeps none
        assert port == taken
