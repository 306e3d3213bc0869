"""Encrypts the control plane's sockets by CURVE, as kvstore_patch/shim/curve.h does for ps-lite's sockets.

The ROUTER is a CURVE server with its node's key pair. A DEALER is a client with its own pair, and expects the key that its key
file gives for the coordinator's address. pyzmq's ZAP handler refuses the keys of strangers. Without the handler libzmq refuses
everyone, because the socket enforces its ZAP domain. The options must be set before bind or connect, when libzmq copies them.
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
HANG_UPS = 5  # hang-ups in the handshake that count as a refusal: a single one may come from a coordinator that ends
_REFUSED = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


class _AllowedKeys:
    """The answers to ThreadAuthenticator, which asks about keys in Z85."""

    def __init__(self, keys: NodeKeys):
        self._publics = {zmq.utils.z85.encode(peer.public) for peer in keys.peers}

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a peer with this public key may connect."""
        del domain
        return key in self._publics


@contextmanager
def door_kept(context: "zmq.Context[zmq.Socket[bytes]]", keys: NodeKeys) -> Iterator[None]:
    """Run a ZAP handler for the context's CURVE servers during the with block; it admits the job's peers only."""
    authenticator = ThreadAuthenticator(context)
    authenticator.configure_curve_callback(ZAP_DOMAIN.decode(), _AllowedKeys(keys))
    authenticator.start()
    try:
        yield
    finally:
        authenticator.stop()


def node_of_user(keys: NodeKeys) -> dict[str, str]:
    """The node of each key, by the User-Id that the ZAP handler gives the key. A process may speak for its own node only."""
    return {zmq.utils.z85.encode(peer.public).decode("ascii"): peer.name for peer in keys.peers}


def secure_server(socket: "zmq.Socket[bytes]", keys: NodeKeys) -> None:
    """Make the socket accept the job's peers only, at the addresses that it binds afterwards."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_client(socket: "zmq.Socket[bytes]", keys: NodeKeys, endpoint: str) -> None:
    """Make the socket connect as this node, and only to the node at `endpoint`, tcp://ADDRESS:PORT.

    Raises InputError where the keys have none for that address.
    """
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
    """Shake hands with the coordinator and leave, so that a wrong key is reported at once; ps-lite would wait for ever.

    Waits for the coordinator for at most `limit_s`; after that the Client reports a silent coordinator. Raises PeerError where the
    coordinator refuses the key, or has another key than the key file says.
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
