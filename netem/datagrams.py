"""Measures the rate of a way that delays or loses packets, by datagrams. TCP slows down on such a way, and would show its own pace.

The sender offers more than the way carries. So the way's queue is full, and packets arrive at the way's rate.
"""

import socket
import threading
import time

from netem import namespaces

PAYLOAD_BYTES = 1472
FRAME_BYTES = PAYLOAD_BYTES + 42  # with the headers of UDP, IPv4 and Ethernet: a full frame, as tc counts it
OFFERED = 1.25  # what is offered, in parts of the way's rate
BEHIND_S = 0.02  # a sender that was held up makes up for at most this much time


def arriving_bytes_per_s(
    source_namespace: str,
    target_namespace: str,
    target_address: str,
    rate_bytes_per_s: float,
    warm_s: float,
    measure_s: float,
    deadline_s: float,
) -> float:
    """Offer OFFERED times the rate, and measure the rate that arrives: bytes per second, with headers.

    The measurement takes measure_s and leaves out the first warm_s. Raises OSError where nothing arrives within the deadline.
    """
    stopping = threading.Event()
    with (
        namespaces.inside(target_namespace, lambda: socket.socket(type=socket.SOCK_DGRAM)) as receiver,
        namespaces.inside(source_namespace, lambda: socket.socket(type=socket.SOCK_DGRAM)) as sender,
    ):
        receiver.bind((target_address, 0))
        receiver.settimeout(deadline_s)
        arguments = sender, receiver.getsockname(), OFFERED * rate_bytes_per_s, stopping
        sending = threading.Thread(target=_offer, args=arguments, name="offer datagrams", daemon=True)
        sending.start()
        try:
            return _arriving(receiver, warm_s, measure_s)
        finally:
            stopping.set()
            sending.join(deadline_s)


def _offer(sender: socket.socket, target: tuple[str, int], bytes_per_s: float, stopping: threading.Event) -> None:
    """Send until told to stop, or until the network is gone."""
    frame, due_s = bytes(PAYLOAD_BYTES), time.monotonic()
    while not stopping.is_set():
        try:
            sender.sendto(frame, target)
        except OSError:
            return  # the receiver has its result, or reports that nothing arrives
        due_s = max(due_s + FRAME_BYTES / bytes_per_s, time.monotonic() - BEHIND_S)
        if (early_s := due_s - time.monotonic()) > 0.001:
            time.sleep(early_s)


def _arriving(receiver: socket.socket, warm_s: float, measure_s: float) -> float:
    """Bytes per second between two arrivals: the first one warm_s after the very first, and the first one measure_s later."""
    receiver.recv(PAYLOAD_BYTES)
    started_s, first_s, frames = time.monotonic(), None, 0
    while True:
        receiver.recv(PAYLOAD_BYTES)
        now_s = time.monotonic()
        if first_s is None:
            first_s = now_s if now_s - started_s >= warm_s else None
            continue
        frames += 1
        if now_s - first_s >= measure_s:
            return frames * FRAME_BYTES / (now_s - first_s)
