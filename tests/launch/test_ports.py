"""Jobs that start at the same time, before any of them listens."""

import random
import socket
import subprocess
import sys

import pytest

from nalb.launch.ports import free_pair

LAUNCHER = """
import sys
from nalb.launch.ports import free_pair
with free_pair("127.0.0.1") as port:
    print(port, flush=True)
    sys.stdin.read()
"""


def test_no_two_jobs_are_given_the_same_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        with free_pair("127.0.0.1") as port, free_pair("127.0.0.1") as third:
            assert len({taken, port, third}) == 3
        other.kill()
    monkeypatch.setattr(random, "randrange", lambda *_: taken)
    with free_pair("127.0.0.1") as port:  # a launcher that was killed keeps none
        assert port == taken


def test_a_port_that_is_taken_at_another_address_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's store listens at all addresses."""
    with free_pair("127.0.0.1") as port, socket.create_server(("127.0.0.2", port + 1)):
        monkeypatch.setattr(random, "randrange", lambda *_: port)
        found = port
    with socket.create_server(("127.0.0.2", found + 1)), free_pair("127.0.0.1") as other:
        assert other != found
