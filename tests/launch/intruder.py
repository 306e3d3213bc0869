"""A process that is not of the job and tries to get in, by all the ways in its orders at once.

In, on stdin: a JSON list of attacks. Out: a JSON list of what each got. An attack has a "how" and an "endpoint", and

    peer   a ZeroMQ peer, with "keys": the server's public one, own public, own secret, hexadecimal; or none: plain text.
           It sends "message", if any, as ps-lite's worker 9. Got: whether the handshake succeeded, how many messages came
    raw    a TCP peer that sends "chunks", hexadecimal, each after what the last one brought. Got: all that came back
"""

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

LIMIT_S = 40.0  # libzmq itself drops a handshake that does not go on after 30 s
ANSWER_S = 0.3  # for an answer between chunks, and for messages once the handshake is over
ENDINGS = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    zmq.EVENT_DISCONNECTED,
}


def knock(endpoint: str, keys: list[str], message: str) -> dict[str, object]:
    """As a ZeroMQ peer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        if keys:
            options = (zmq.CURVE_SERVERKEY, zmq.CURVE_PUBLICKEY, zmq.CURVE_SECRETKEY)
            for option, key in zip(options, keys, strict=True):
                dealer.setsockopt(option, bytes.fromhex(key))
        if message:
            dealer.setsockopt(zmq.IDENTITY, b"ps9")
        with dealer.get_monitor_socket() as monitor:
            dealer.connect(endpoint)
            if message:
                with suppress(zmq.Again):  # turned away already: nobody is left to send to, ever
                    dealer.send(bytes.fromhex(message), zmq.DONTWAIT)
            seen: set[int] = set()
            end_s = time.monotonic() + LIMIT_S
            while not seen & ENDINGS and monitor.poll(max(0, (end_s - time.monotonic()) * 1000)):
                seen.add(int(parse_monitor_message(monitor.recv_multipart())["event"]))
            messages = 0
            while dealer.poll(ANSWER_S * 1000):
                dealer.recv_multipart()
                messages += 1
            dealer.disable_monitor()
    return {"let_in": zmq.EVENT_HANDSHAKE_SUCCEEDED in seen, "ended": bool(seen & ENDINGS), "messages": messages}


def talk(endpoint: str, chunks: list[str]) -> str:
    """As a TCP peer, until the other side hangs up."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    received = bytearray()
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        try:
            for chunk in chunks:
                connection.sendall(bytes.fromhex(chunk))
                connection.settimeout(ANSWER_S)
                with suppress(TimeoutError):
                    received += connection.recv(65536)
            connection.settimeout(LIMIT_S)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(65536):
                received += data
        except TimeoutError:  # it neither answers nor hangs up
            raise
        except OSError:  # it hung up on us
            pass
    return received.hex()


def attack(order: dict) -> object:
    """One of the orders."""
    if order["how"] == "raw":
        return talk(order["endpoint"], order["chunks"])
    return knock(order["endpoint"], order["keys"], order["message"])


if __name__ == "__main__":
    orders = json.load(sys.stdin)
    with ThreadPoolExecutor(len(orders)) as pool:
        print(json.dumps(list(pool.map(attack, orders))), flush=True)
