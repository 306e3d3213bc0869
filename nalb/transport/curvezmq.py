"""CURVE on the control plane's sockets, as kvstore_patch/shim/curve.h has it on ps-lite's.

The ROUTER is a CURVE server with its node's pair; a DEALER is a client with its own and expects the key that its file gives for the
coordinator's address. Keys of strangers are refused by pyzmq's ZAP handler; where it is gone libzmq refuses everyone, because
the socket enforces its ZAP domain. Set the options before bind or connect: libzmq copies them then.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from nalb.errors import InputError, PeerError
from nalb.transport.keys import NodeKeys

ZAP_DOMAIN = b"nalb"
HANG_UPS = 5  # in a row, during the handshake; one may be a coordinator that is just ending
_REFUSED = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


class _AllowedKeys:
    """What ThreadAuthenticator asks; keys come in Z85."""

    def __init__(self, keys: NodeKeys):
        self._publics = {zmq.utils.z85.encode(peer.public) for peer in keys.peers}

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a peer with this public key may come in."""
        del domain
        return key in self._publics


@contextmanager
def door_kept(context: "zmq.Context[zmq.Socket[bytes]]", keys: NodeKeys) -> Iterator[None]:
    """A ZAP handler for the context's CURVE servers while the with block runs."""
    authenticator = ThreadAuthenticator(context)
    authenticator.configure_curve_callback(ZAP_DOMAIN.decode(), _AllowedKeys(keys))
    authenticator.start()
    try:
        yield
    finally:
        authenticator.stop()


def node_of_user(keys: NodeKeys) -> dict[str, str]:
    """Who has which key, as the ZAP handler's User-Id has it: a member speaks for its own node alone."""
    return {zmq.utils.z85.encode(peer.public).decode("ascii"): peer.name for peer in keys.peers}


def secure_server(socket: "zmq.Socket[bytes]", keys: NodeKeys) -> None:
    """What is bound from now on takes the job's peers only."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_client(socket: "zmq.Socket[bytes]", keys: NodeKeys, endpoint: str) -> None:
    """Connect as this node to the node at `endpoint`, tcp://ADDRESS:PORT, and to no other. InputError: it has no key."""
    address = endpoint.removeprefix("tcp://").rpartition(":")[0]
    public = next((peer.public for peer in keys.peers if peer.address == address), None)
    if public is None:
        raise InputError(
            f"no key for {address} in the keys of {keys.node}: make keys for the addresses that the job uses"
        )
    socket.setsockopt(zmq.CURVE_SERVERKEY, public)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)


def knock(keys: NodeKeys, endpoint: str, limit_s: float) -> None:
    """Shake hands with the coordinator and leave: a wrong key is told at once, while ps-lite would wait for ever.

    Waits for the coordinator for at most `limit_s`; what happens after that, the Client tells. PeerError: it refuses the key, or
    is not who the key file says.
    """
    with zmq.Context() as context, closing(context.socket(zmq.DEALER)) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        secure_client(dealer, keys, endpoint)
        hang_ups, end_s = 0, time.monotonic() + limit_s
        with closing(dealer.get_monitor_socket()) as monitor:
            dealer.connect(endpoint)
            while monitor.poll(max(0, int((end_s - time.monotonic()) * 1000))):
                event = parse_monitor_message(monitor.recv_multipart())["event"]
                hang_ups += event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
                if event in _REFUSED or hang_ups == HANG_UPS:
                    raise PeerError(
                        f"node {keys.node}: the coordinator at {endpoint} does not take this node's key, or has another than the "
                        "key file says: give all nodes the keys of one `nalb keys`"
                    )
                if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    break
            dealer.disable_monitor()
