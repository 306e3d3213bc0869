"""Real transfers, both ways at once: data per byte that the kernel's shapers count is as predicted."""

import socket
import threading
from collections.abc import Callable

import pytest

from nalb.planning.goodput import goodput_part
from netem import build, namespaces, qdiscs, shaping, wires
from netem.emulation import Emulation, network_up
from tests.netem.conftest import network_of

pytestmark = pytest.mark.root

DATA_BYTES = 8_000_000  # each way
READ_BYTES = 500_000  # at a time: packets that come while a process reads are acknowledged together
TOLERANCE = 0.0015  # the packets that begin and end a connection, packets that are not full, packets sent again
# Packets that come one by one are acknowledged two at a time, or each by itself on a machine that is busy.
EVERY_ONE = 1
SLOW_RECEIVER = (
    '[[nodes]]\nname = "a"\nup_mbps = 200\ndown_mbps = 200\n[[nodes]]\nname = "b"\nup_mbps = 60\ndown_mbps = 60\n'
)
ALIKE = SLOW_RECEIVER.replace("60", "200")
CASES = {  # with the packets that are acknowledged at once, of each node's data
    "buckets of 16 frames and more": (ALIKE, 16, 16),
    "buckets of 4 frames": (SLOW_RECEIVER.replace("200", "60"), 4, 4),
    "rates that change": (f'{ALIKE}[[changes]]\nat_s = 1000\nnode = "a"\nup_mbps = 100\n', 4, 4),
    "a capped pair": (f'{ALIKE}[[links]]\nsrc = "a"\ndst = "b"\nmbps = 100\n', 4, 16),
    "a bucket that takes bunches apart": (SLOW_RECEIVER, 4, 4),
}


def carried_bytes(emulation: Emulation) -> dict[str, int]:
    """What each node's two shapers have let through, as tc counts it."""

    def counted(namespace: str, interface: str) -> int:
        def count(netlink: qdiscs.IPRoute) -> int:
            found = netlink.get_qdiscs(index=build.interface_index(netlink, interface))
            root = next(qdisc for qdisc in found if qdisc["parent"] == qdiscs.TC_H_ROOT)
            return int(root.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")["bytes"])

        return namespaces.with_netlink(namespace, count)

    names, hub = emulation.network.node_names(), emulation.hub_namespace()
    up = {f"{name} up": counted(emulation.namespace(name), wires.NODE_INTERFACE) for name in names}
    return up | {f"{name} down": counted(hub, wires.port_name(emulation.network, name)) for name in names}


def transfer(emulation: Emulation, source: str, target: str) -> list[threading.Thread]:
    """Two threads that have begun to send and to receive DATA_BYTES over a connection of their own."""
    address = emulation.address(target)
    with namespaces.inside(emulation.namespace(target), lambda: socket.create_server((address, 0))) as server:
        place = address, server.getsockname()[1]
        sender = namespaces.inside(emulation.namespace(source), lambda: socket.create_connection(place, 30))
        receiver, _ = server.accept()

    def send() -> None:
        with sender:
            sender.sendall(bytes(DATA_BYTES))

    def receive() -> None:
        with receiver:
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, READ_BYTES)
            while receiver.recv(READ_BYTES):
                pass

    actions: list[Callable[[], None]] = [send, receive]
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("case", CASES)
def test_shapers_carry_data_and_as_many_headers_and_acknowledgements_as_predicted(case: str, name: str):
    body, at_once_of_a, at_once_of_b = CASES[case]
    network = network_of(name, body)
    assert shaping.segments_at_once(network)[0][1] == at_once_of_a
    assert shaping.segments_at_once(network)[1][0] == at_once_of_b
    with network_up(network) as emulation:
        before = carried_bytes(emulation)
        for thread in [*transfer(emulation, "a", "b"), *transfer(emulation, "b", "a")]:
            thread.join(30)
            assert not thread.is_alive(), "nothing arrives"
        carried = {way: count - before[way] for way, count in carried_bytes(emulation).items()}
    at_once = {"a up": at_once_of_b, "a down": at_once_of_a, "b up": at_once_of_a, "b down": at_once_of_b}
    for way, segments in at_once.items():
        predicted = goodput_part(segments)
        comes_apart = body == SLOW_RECEIVER and way in ("b up", "a down")
        least = goodput_part(EVERY_ONE) if comes_apart else predicted
        measured = DATA_BYTES / carried[way]
        assert least * (1 - TOLERANCE) < measured < predicted * (1 + TOLERANCE), (way, measured, predicted)
