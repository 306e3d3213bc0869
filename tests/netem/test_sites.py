"""Sites on real networks: machines share their site's uplink, and nothing of it within the site."""

import socket
import threading
import time

import pytest

from nalb.errors import InputError
from netem import build, namespaces, verify
from netem.emulation import Emulation, attach, leave_up, network_up
from tests.netem.conftest import leftovers, network_of
from tests.netem.test_emulation import assert_close, connected, flow

pytestmark = pytest.mark.root

SITES = """
[defaults]
up_mbps = 60
down_mbps = 60
[[sites]]
name = "s"
up_mbps = 20
down_mbps = 40
[[sites]]
name = "t"
up_mbps = 30
down_mbps = 25
[[nodes]]
name = "a"
site = "s"
[[nodes]]
name = "b"
[[nodes]]
name = "c"
site = "t"
[[nodes]]
name = "d"
site = "s"
"""


def test_a_network_of_sites_carries_its_rates(name: str):
    with network_up(network_of(name, SITES)) as emulation:
        seen = {each.label: each for each in verify.verify(emulation, lambda _: None)}
    for measurement in seen.values():
        assert_close(measurement)
    assert [(label, one.configured_mbps) for label, one in seen.items() if one.configured_mbps != 60] == [
        ("s up, 2 at once", 20),
        ("t up, 1 at once", 30),
        ("s down, 2 at once", 40),
        ("t down, 1 at once", 25),
        ("a -> b", 20),
        ("b -> c", 25),
        ("c -> d", 30),
    ]
    assert {"a up", "d down", "a -> d", "d -> a"} <= seen.keys(), "within the site at the rate of the LAN"
    assert leftovers(name) == []


def test_a_capped_pair_of_two_sites(name: str):
    network = network_of(name, SITES + '[[links]]\nsrc = "a"\ndst = "c"\nmbps = 8\n')
    with network_up(network) as emulation:
        [pair] = [one for batch in verify.flows_of(emulation) for one in batch if one.label == "a -> c"]
        assert pair.configured_mbps == 8
        assert_close(verify.measure_patiently(pair))


def test_rates_of_a_site_change_under_a_running_connection(name: str):
    body = SITES + '[[changes]]\nat_s = 0.05\nsite = "s"\nup_mbps = 5\n'
    applied = threading.Event()
    with network_up(network_of(name, body)) as emulation:
        with connected(emulation, "a", "c") as carries:
            with emulation.start_changes(lambda *_: applied.set()):
                assert applied.wait(10)
                assert emulation.site_rates() == {"s": (5, 40), "t": (30, 25)}
                assert carries(5)
            emulation.set_rates({"s": (60, 40), "t": (30, 12)})
            assert carries(12)
            emulation.reset_rates()
            assert carries(20)
        # the connection, which goes on until nobody takes what it sends, would share a's link
        assert_close(verify.measure_patiently(flow(emulation, "a", "d", 60)))
        with pytest.raises(InputError, match="no node 'z'"):
            emulation.set_rates({"z": (1, 1)})


def test_a_site_is_a_namespace_that_comes_and_goes_with_its_network(name: str):
    network = network_of(name, SITES)
    leave_up(network)
    assert f"nalb-{name}.s" in namespaces.standing(name)
    assert attach(network).site_rates() == {"s": (20, 40), "t": (30, 25)}
    namespaces.remove([f"nalb-{name}.t"])
    with pytest.raises(InputError, match="not whole"):
        attach(network)
    build.take_down(name)
    assert leftovers(name) == []


FAR = SITES.replace('"s"\nup_mbps', '"s"\ndelay_ms = 20\nup_mbps').replace(
    '"t"\nup_mbps', '"t"\ndelay_ms = 10\nup_mbps'
)


def shortest_round_trip_ms(emulation: Emulation, source: str, target: str) -> float:
    """Of ten connections that are made one after the other."""
    took_s = []
    with namespaces.inside(
        emulation.namespace(target), lambda: socket.create_server((emulation.address(target), 0), backlog=16)
    ) as server:
        place = server.getsockname()
        for _ in range(10):
            start_s = time.monotonic()
            namespaces.inside(emulation.namespace(source), lambda: socket.create_connection(place, 10)).close()
            took_s.append(time.monotonic() - start_s)
    return 1000 * min(took_s)


def test_delays_of_sites_add_up_between_them_and_not_within(name: str):
    with network_up(network_of(name, FAR)) as emulation:
        for source, target, expected_ms in (("a", "c", 60), ("c", "b", 20), ("a", "d", 0)):
            assert expected_ms <= shortest_round_trip_ms(emulation, source, target) < expected_ms + 10
        between = [one for batch in verify.flows_of(emulation) for one in batch if one.label == "c -> d"]
        assert_close(verify.measure_patiently(between[0]))
