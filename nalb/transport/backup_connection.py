"""Signs of life while nothing comes through a process's own connection to the coordinator, or nothing of its gets there.

TCP repeats what a link has lost ever more rarely: after an outage of 4 s a connection may be silent for 8. A new one is there as
soon as the link is. So a process that hears nothing, or is told that it is not heard, makes new connections until one is answered,
and whoever can be reached is not given up. All else waits for the first connection: nothing is lost on it, and nothing overtakes.
"""

from collections.abc import Callable

import zmq

from nalb.protocol import messages as m

TRIES = 6  # within the silence that is allowed; fewer where signs of life are rare

Socket = zmq.Socket[bytes]


class BackupConnection:
    """Of one process; for the thread of its first connection. `connect` makes a socket, `identity` is the first one's."""

    def __init__(self, connect: Callable[[], Socket], poller: zmq.Poller, identity: str):
        self._connect, self._poller, self._identity = connect, poller, identity
        self._socket: Socket | None = None
        self._good_s = 0.0  # when it was made, or last answered

    def is_heard(self, ready: dict[Socket, int], now_s: float) -> bool:
        """Whether the coordinator has answered on it, by what the poller has said."""
        if self._socket is None or self._socket not in ready:
            return False
        self._socket.recv()
        self._good_s = now_s
        return True

    def say(self) -> None:
        """A sign of life, if there is need of one."""
        if self._socket is not None:
            self._socket.send(m.encode(m.Still(self._identity)))

    def keep(self, both_ways_s: float, now_s: float, welcome: m.Welcome) -> None:
        """Connect, or anew if the last try has had no answer for as long; not while the first connection works.

        both_ways_s: when that was last known to carry both ways.
        """
        after_s = max(welcome.silence_s / TRIES, 2 * welcome.heartbeat_s)
        if now_s - both_ways_s <= after_s:
            self.close()
        elif now_s - max(both_ways_s, self._good_s) > after_s:
            self.close()
            self._socket, self._good_s = self._connect(), now_s
            self._poller.register(self._socket, zmq.POLLIN)
            self.say()

    def close(self) -> None:
        """The first connection is back, or the process ends."""
        if self._socket is not None:
            self._poller.unregister(self._socket)
            self._socket.close()
            self._socket = None
