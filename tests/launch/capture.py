"""Every TCP payload on this machine's loopback, as a spy on the link would see it. Needs CAP_NET_RAW."""

import contextlib
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator

ETHERNET, TCP = 14, 6
BEGINNING = 4096  # bytes of each direction that are kept: a handshake and a little more
Flow = tuple[str, int, str, int]  # source address and port, destination address and port


class Capture:
    """What went over the link: how often a pattern was seen, how much, and how each connection began."""

    def __init__(self, pattern: bytes):
        self._pattern = pattern
        self.hits = self.payload_bytes = 0
        self._starts: dict[Flow, int] = {}
        self._parts: defaultdict[Flow, dict[int, bytes]] = defaultdict(dict)

    def take(self, frame: bytes) -> None:
        """One Ethernet frame."""
        packet = frame[ETHERNET:]
        if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != TCP:
            return
        head, total = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
        segment = packet[head : total or None]
        source, target, sequence = struct.unpack_from(">HHI", segment)
        payload = segment[(segment[12] >> 4) * 4 :]
        flow = socket.inet_ntoa(packet[12:16]), source, socket.inet_ntoa(packet[16:20]), target
        if segment[13] & 2:  # SYN
            self._starts[flow] = sequence + 1
        if not payload:
            return
        self.payload_bytes += len(payload)
        self.hits += payload.count(self._pattern)
        if flow in self._starts and (offset := sequence - self._starts[flow]) < BEGINNING:
            self._parts[flow][offset] = payload

    def beginning(self, flow: Flow) -> bytes:
        """The first bytes of one direction, as far as they are without a gap."""
        data = b""
        for offset, part in sorted(self._parts[flow].items()):
            if offset > len(data):
                break
            data = data[:offset] + part
        return data

    def flows_to(self, address: str, port: int) -> list[Flow]:
        """The directions that lead to a listening port, seen from their first byte on."""
        return [flow for flow in list(self._parts) if flow[2:] == (address, port) and 0 in self._parts[flow]]


@contextlib.contextmanager
def capturing(pattern: bytes) -> Iterator[Capture]:
    """Listen on lo while the with block runs."""
    capture, stop = Capture(pattern), threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as spy:
        spy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 25)
        spy.bind(("lo", 0))
        spy.settimeout(0.2)

        def listen() -> None:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    frame, (_, _, kind, _, _) = spy.recvfrom(1 << 17)
                    if kind != socket.PACKET_OUTGOING:  # lo shows each twice
                        capture.take(frame)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield capture
        finally:
            stop.set()
            thread.join()
