"""Signs of life while nothing comes through a process's own connection to the coordinator.

TCP repeats what a link has lost ever more rarely: after an outage of 4 s a connection may be silent for 8. A new one is there as
soon as the link is. So a process that hears nothing makes new connections until one is answered, and whoever can be reached is
not given up. All else waits for the first connection: nothing is lost on it, and nothing overtakes.
"""

from collections.abc import Callable

import zmq

from nalb.control import messages as m

TRIES = 6  # within the silence that is allowed

Socket = zmq.Socket[bytes]


class SecondLine:
    """Of one process; for the thread of its first connection. `connect` makes a socket, `identity` is the first one's."""

    def __init__(self, connect: Callable[[], Socket], poller: zmq.Poller, identity: str):
        self._connect, self._poller, self._identity = connect, poller, identity
        self._socket: Socket | None = None
        self._made_s = 0.0

    def is_heard(self, ready: dict[Socket, int]) -> bool:
        """Whether the coordinator has answered on it, by what the poller has said."""
        if self._socket is None or self._socket not in ready:
            return False
        self._socket.recv()
        return True

    def say(self) -> None:
        """A sign of life, if there is need of one."""
        if self._socket is not None:
            self._socket.send(m.encode(m.Still(self._identity)))

    def make(self, heard_s: float, now_s: float, silence_s: float) -> None:
        """Connect anew if nothing was heard since `heard_s`, and the last try is as long ago."""
        if now_s - max(heard_s, self._made_s) > silence_s / TRIES:
            self.close()
            self._socket, self._made_s = self._connect(), now_s
            self._poller.register(self._socket, zmq.POLLIN)
            self.say()

    def close(self) -> None:
        """The first connection is back, or the process ends."""
        if self._socket is not None:
            self._poller.unregister(self._socket)
            self._socket.close()
            self._socket = None
