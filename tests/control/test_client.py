"""A process's end of the control plane."""

import threading

import pytest
import zmq

from nalb.control import messages as m
from nalb.control.client import Client


def test_the_thread_may_end_before_its_last_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat may find the client closing before `close` wakes the thread: then nobody is there to be woken."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as coordinator:
        port = coordinator.bind_to_random_port("tcp://127.0.0.1")
        hello = m.Hello(version=m.VERSION, role="worker", node="n0", ps_id=9, pid=1)
        client = Client(f"tcp://127.0.0.1:{port}", hello, lambda: ([], 0), deadline_s=60.0, startup_s=60.0)
        wake = client._wake

        def wake_late() -> None:
            if client._closing.is_set():
                client._thread.join()
                while client._wake_out.poll(0, zmq.POLLOUT):  # its end of the pair is closed in the background
                    pass
            wake()

        monkeypatch.setattr(client, "_wake", wake_late)
        closing = threading.Thread(target=client.close, args=(m.Failed("a test"),), daemon=True)
        closing.start()
        closing.join(5.0)
        assert not closing.is_alive()
        kinds = [type(m.decode_at_coordinator(coordinator.recv_multipart()[1], "a worker")) for _ in range(2)]
        assert kinds == [m.Hello, m.Failed]
        monkeypatch.undo()
        client.send(m.Goodbye())  # too late, and harmless
