"""CURVE on the control plane: who shakes hands with the ROUTER, and that without its ZAP handler nobody does."""

from contextlib import ExitStack, closing

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from nalb.errors import InputError, PeerError
from nalb.failures import Cause
from nalb.protocol import wire
from nalb.protocol.session import Session, pack
from nalb.services.composition import new_coordinator
from nalb.settings import from_environment
from nalb.transport.conversations import Conversations
from nalb.transport.curvezmq import door_kept, knock, node_of_user, secure_client, secure_server
from nalb.transport.keys import NodeKeys, make_keys
from nalb.transport.server import receive_signed, take_message
from tests.protocol.test_coordinator import ENVIRONMENT

NODES = {"n0": "127.0.0.1", "n1": "10.0.0.1"}
LIMIT_MS = 30_000
DECIDED = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: True,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: False,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: False,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: False,
    zmq.EVENT_DISCONNECTED: False,
}


def is_let_in(server: NodeKeys, client: NodeKeys | None, kept: bool = True) -> bool:
    """Whether a client gets through the handshake with a ROUTER of `server`."""
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())  # of its own: a handler's address is freed some time after its end
        if kept:
            stack.enter_context(door_kept(context, server))
        router = stack.enter_context(closing(context.socket(zmq.ROUTER)))
        secure_server(router, server)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer = stack.enter_context(closing(stack.enter_context(zmq.Context()).socket(zmq.DEALER)))
        dealer.setsockopt(zmq.LINGER, 0)
        endpoint = f"tcp://127.0.0.1:{port}"
        if client is not None:
            secure_client(dealer, client, endpoint)
        monitor = stack.enter_context(closing(dealer.get_monitor_socket()))
        dealer.connect(endpoint)
        while monitor.poll(LIMIT_MS):
            event = parse_monitor_message(monitor.recv_multipart())["event"]
            if event in DECIDED:
                dealer.disable_monitor()
                return DECIDED[event]
    raise AssertionError("no decision")


def test_the_jobs_nodes_are_let_in_and_nobody_else() -> None:
    job, other = make_keys(NODES), make_keys(NODES)
    stranger = NodeKeys("n0", other["n0"].public, other["n0"].secret, job["n0"].peers)  # knows the right server key
    mistaken = NodeKeys("n0", job["n0"].public, job["n0"].secret, other["n0"].peers)  # expects another server
    assert is_let_in(job["n0"], job["n0"])
    assert is_let_in(job["n0"], job["n1"])
    assert not is_let_in(job["n0"], stranger)
    assert not is_let_in(job["n0"], mistaken)
    assert not is_let_in(job["n0"], other["n0"])
    assert not is_let_in(job["n0"], None)


def test_without_a_handler_nobody_is_let_in() -> None:
    job = make_keys(NODES)
    assert not is_let_in(job["n0"], job["n1"], kept=False)


def test_an_address_without_a_key_is_an_error() -> None:
    with (
        zmq.Context() as context,
        closing(context.socket(zmq.DEALER)) as dealer,
        pytest.raises(InputError, match=r"no key for 10\.0\.0\.9"),
    ):
        secure_client(dealer, make_keys(NODES)["n0"], "tcp://10.0.0.9:9092")


def test_a_wrong_key_is_told_at_once() -> None:
    job, other = make_keys(NODES), make_keys(NODES)
    stranger = NodeKeys("n1", other["n1"].public, other["n1"].secret, job["n0"].peers)
    mistaken = NodeKeys("n1", job["n1"].public, job["n1"].secret, other["n0"].peers)
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        stack.enter_context(door_kept(context, job["n0"]))
        router = stack.enter_context(closing(context.socket(zmq.ROUTER)))
        secure_server(router, job["n0"])
        endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        knock(job["n1"], endpoint, 60.0)
        for wrong in (stranger, mistaken):
            with pytest.raises(PeerError, match=r"node n1: the coordinator at .* does not take this node's key"):
                knock(wrong, endpoint, 60.0)


def test_a_member_speaks_for_its_own_node_alone() -> None:
    job = make_keys({"n0": "127.0.0.1", "n1": "10.0.0.1"})
    seen = []
    for claims in ("n1", "n0"):
        with ExitStack() as stack:
            context = stack.enter_context(zmq.Context())
            stack.enter_context(door_kept(context, job["n0"]))
            router = stack.enter_context(closing(context.socket(zmq.ROUTER)))
            secure_server(router, job["n0"])
            port = router.bind_to_random_port("tcp://127.0.0.1")
            dealer = stack.enter_context(closing(stack.enter_context(zmq.Context()).socket(zmq.DEALER)))
            secure_client(dealer, job["n1"], f"tcp://127.0.0.1:{port}")
            dealer.connect(f"tcp://127.0.0.1:{port}")
            hello = wire.encode(wire.Hello(wire.VERSION, "worker", claims, 0, 1))
            dealer.send_multipart([pack(Session[bytes]().keep(hello)), hello])
            assert router.poll(LIMIT_MS)
            frames, node = receive_signed(router, node_of_user(job["n0"]))
            state = new_coordinator(from_environment(ENVIRONMENT, "host"), 0.0)
            take_message(Conversations(router), state, frames, node)
            seen.append(state.verdict)
    assert seen[0] is None
    assert seen[1].cause is Cause.IDENTITY
