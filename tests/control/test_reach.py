"""While a job gathers: a coordinator's host that no longer answers ends the process, one that is slow or still to come does not."""

import socket
import subprocess
import sys

import pytest

from nalb.control.reach import answers

# the host's answers, one after the other, then the process is let go
WATCH = """
import sys, threading
from nalb.control import reach
from nalb.control.settings import from_environment
left = [word == "1" for word in sys.argv[2]]
over = threading.Event()
def answers(host, port, limit_s):
    if len(left) == 1:
        over.set()
    return left.pop(0) if left else True
reach.answers = answers
environment = {"DMLC_ROLE": "server", "DMLC_PS_ROOT_URI": "192.0.2.1", "DMLC_PS_ROOT_PORT": "9091", "NALB_NODE": "n1",
               "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1", "NALB_DEADLINE_S": "0.5"}
if sys.argv[1] == "together":
    environment["NALB_JOB"] = "x:n1.server"
with reach.reach_kept(from_environment(environment, "n1")):
    over.wait()
"""


@pytest.mark.parametrize(
    ("how", "heard", "code"),
    [
        ("together", "1" + "0" * 50, 4),  # the link is lost
        ("together", "0" * 50, 4),  # or was never there
        ("apart", "0" * 15, 0),  # another launcher may start it later
        ("apart", "0001" + "0" * 50, 4),
        ("together", "1010101", 0),  # now and then is enough
    ],
)
def test_a_host_that_no_longer_answers(how: str, heard: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCH, how, heard], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stderr
    if code:
        assert done.stderr.startswith(
            "nalb: server n1 in phase start: nothing at tcp://192.0.2.1:9092, the coordinator's place, "
        )


def test_a_closed_port_is_an_answer() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        assert answers("127.0.0.1", door.getsockname()[1], 5.0)
        door.listen()
        assert answers("127.0.0.1", door.getsockname()[1], 5.0)


def test_a_name_that_nobody_knows_is_none() -> None:
    assert not answers("nowhere.invalid", 9092, 5.0)
