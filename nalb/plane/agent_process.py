"""The agent of a training process, as that process sees it: a child, and a socket to it whose packets are orders (orders.py)."""

import os
import select
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from nalb.plane import orders as o
from nalb.process.own_program import own_argv, python_path
from nalb.process.proc import Stop, stopped_at

CHECK_S = 1.0  # between looks at whether the agent is stopped
NEWS_MOST = 1 << 16  # bytes of a packet from the agent; the longest is a Failure
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # of numpy's, which an agent does not need


class AgentProcess:
    """A running agent. One thread may receive while others send."""

    def __init__(self, silence_s: float):
        """silence_s: for how long a signal may have stopped it before it is killed."""
        self._silence_s, self._stop, self._stopped_s = silence_s, Stop(), 0.0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        environment = ONE_THREAD | os.environ | {"PYTHONPATH": python_path(os.environ.get("PYTHONPATH", ""))}
        with theirs:
            self._child = subprocess.Popen(
                own_argv("nalb.plane.agent", str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        self.pid = self._child.pid
        os.register_at_fork(after_in_child=self._socket.close)

    def send(self, order: o.FromTraining, descriptor: int | None = None) -> None:
        """Send an order, and a descriptor with it. Raises OSError where the agent has ended."""
        packet = o.encode(order)
        if descriptor is None:
            self._socket.send(packet)
        else:
            socket.send_fds(self._socket, [packet], [descriptor])

    def receive(self, look: Callable[[], object]) -> o.FromAgent | None:
        """Wait for the next order; None: there will be no other one.

        look: called each CHECK_S while nothing comes. An agent that has been stopped for `silence_s` is killed.
        """
        while not self._poller.poll(1000 * CHECK_S):
            self._stopped_s = self._stop.seen(stopped_at(self.pid), monotonic())
            if self._stopped_s > self._silence_s:
                self._child.kill()
                return None
            look()
        packet = self._packet()
        return o.decode_at_training(packet) if packet else None

    def _packet(self) -> bytes:
        try:
            return self._socket.recv(NEWS_MOST)
        except ConnectionResetError:  # it ended without having read all orders; what it said before may still be here
            with suppress(ConnectionResetError):
                return self._socket.recv(NEWS_MOST)
            return b""

    def how_it_ended(self) -> str:
        """What to say of an agent from which nothing more comes."""
        if self._stopped_s > self._silence_s:
            return f"has been stopped by a signal for {self._stopped_s:.1f} s"
        with suppress(subprocess.TimeoutExpired):
            code = self._child.wait(1.0)
            return f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
        return "has closed its socket"

    def kill(self) -> None:
        """End it where it has no part in a job yet; whoever receives hears no more."""
        self._child.kill()
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Wait until it has ended, and close the socket."""
        self._child.wait()
        self._socket.close()
