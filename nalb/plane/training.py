"""The agent's end of the socket to its training process."""

import socket
import struct
import sys
from collections import deque
from contextlib import suppress

from nalb.failures import Failure, carried
from nalb.plane import orders
from nalb.plane.orders import FromAgent, FromTraining

LAST_WORD_S = 1  # that a training process may take to read why its agent ends


class Training:
    """The training process. Orders that it does not take at once wait here."""

    def __init__(self, one: socket.socket):
        self.socket = one
        self.waiting: deque[bytes] = deque()
        self._packet = bytearray(orders.PACKET_MOST)
        credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid: int = struct.unpack("3i", credentials)[0]  # that has made the pair of sockets
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", LAST_WORD_S, 0))

    def tell(self, order: FromAgent) -> None:
        """Send an order without waiting."""
        self.waiting.append(orders.encode(order))
        if len(self.waiting) == 1:
            self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it is taken."""
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):  # the pidfd tells of its end
            while self.waiting:
                self.socket.send(self.waiting[0], socket.MSG_DONTWAIT)
                self.waiting.popleft()

    def say_last(self, failure: Failure) -> bool:
        """Tell why the agent ends, from any thread; whether that was taken."""
        with suppress(OSError):
            return self.socket.send(orders.encode(orders.Ended(carried(failure)))) > 0
        return False

    def read(self) -> tuple[FromTraining, int | None] | None:
        """The next order, and the descriptor that came with it; None where none is there. Raises EOFError, DecodeError."""
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        try:
            size, control, _, _ = self.socket.recvmsg_into([self._packet], socket.CMSG_SPACE(4), flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            size, control = 0, []
        if not size:
            raise EOFError
        descriptor = int.from_bytes(control[0][2][:4], sys.byteorder) if control else None
        return orders.decode_at_agent(memoryview(self._packet)[:size]), descriptor
