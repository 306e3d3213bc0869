"""Who takes part, as the coordinator knows it."""

import pytest

from nalb.failures import Cause, Failure
from nalb.protocol import wire
from nalb.protocol.participant import Process


@pytest.mark.parametrize(
    ("role", "told", "names"),
    [
        ("agent", "worker", "worker"),  # its training process
        ("agent", "agent", "agent"),
        ("agent", "scheduler", "agent"),
        ("agent", None, "agent"),
        ("worker", "server", "worker"),
        ("server", "worker", "server"),
    ],
)
def test_a_failure_names_a_process_of_the_node_that_tells_it(role, told, names):
    hello = wire.Hello(wire.VERSION, role, "n1", 1, 100)
    process = Process(b"n1", hello, 0.0, 0.0)
    assert process.role_of(Failure(cause=Cause.SCRIPT, detail="failed", role=told, node="n1")) == names
