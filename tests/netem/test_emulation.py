"""Real networks: they carry what the file says, change while packets flow, and stand side by side."""

import dataclasses
import importlib.machinery
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from nalb.errors import InputError, MachineError
from nalb.units import bytes_per_s_to_mbps
from netem import build, cpu_limits, namespaces, shaping, verify
from netem.emulation import attach, is_up, leave_up, network_up
from netem.network_file import find_network, load_network
from tests.netem.conftest import SITE_OF_B, TWO_NODES, leftovers, network_of
from tests.netem.test_teardown import ended, wait_until

pytestmark = pytest.mark.root

CAPPED = """
[[nodes]]
name = "n1"
up_mbps = 40
down_mbps = 200
[[nodes]]
name = "n2"
up_mbps = 150
down_mbps = 150
[[nodes]]
name = "n5"
up_mbps = 120
down_mbps = 60
[[links]]
src = "n2"
dst = "n5"
mbps = 25
"""


def flow(emulation, source: str, target: str, configured_mbps: float) -> verify.Flow:
    return verify.Flow(
        f"{source} -> {target}",
        emulation.namespace(source),
        emulation.namespace(target),
        emulation.address(target),
        configured_mbps,
    )


def assert_close(measurement: verify.Measurement) -> None:
    assert abs(measurement.deviation) <= verify.TOLERANCE, measurement


def carried(file: str, name: str):
    """A carried network under a name of this run."""
    return replace(load_network(find_network(file)), name=name)


def test_a_static_network_carries_its_rates(name: str):
    seen: list[verify.Measurement] = []
    with network_up(carried("wan4-static", name)) as emulation:
        assert verify.verify(emulation, seen.append) == seen
    assert [each.label for each in seen] == [f"n{index} {way}" for way in ("up", "down") for index in range(4)]
    for measurement in seen:
        assert_close(measurement)
    assert leftovers(name) == []


def test_an_asymmetric_network_carries_its_rates_and_caps(name: str):
    with network_up(network_of(name, CAPPED)) as emulation:
        for measurement in verify.verify(emulation, lambda _: None):
            assert_close(measurement)
        assert_close(verify.measure_patiently(flow(emulation, "n5", "n2", 120)))  # the cap is of one direction
        pair, rest = flow(emulation, "n2", "n5", 25), flow(emulation, "n2", "n1", 125)
        for _ in range(verify.REPEATS):
            with ThreadPoolExecutor(2) as pool:
                together = list(pool.map(verify.measure, (pair, rest)))
            if all(measurement.passed for measurement in together):
                break
        assert_close(together[0])  # a capped pair has its part,
        assert_close(together[1])  # and the rest of the uplink is used


def test_datagrams_show_the_rate_of_a_way(name: str):
    with network_up(network_of(name, TWO_NODES)) as emulation:
        emulation.set_rates({"a": (30, 80), "b": (100, 20)})
        lossless = shaping.Impairment(1, 0, 0)
        for source, target, mbps in (("a", "b", 20), ("b", "a", 80)):
            assert_close(verify.measure_patiently(replace_flow(flow(emulation, source, target, mbps), lossless)))
        loses_half = replace_flow(flow(emulation, "a", "b", 40), shaping.Impairment(1, 0, 50))
        measured = verify.measure_patiently(loses_half)
        assert_close(measured)
        assert measured.configured_mbps == pytest.approx(20, rel=0.02), "half of it may have been lost on the way"


@contextmanager
def datagrams_to_b(emulation, limit_s: float):
    """UDP sockets: one in a's namespace to send, and one in b's that waits at most limit_s for a packet."""

    def new_socket() -> socket.socket:
        return socket.socket(type=socket.SOCK_DGRAM)

    with (
        namespaces.inside(emulation.namespace("a"), new_socket) as sender,
        namespaces.inside(emulation.namespace("b"), new_socket) as receiver,
    ):
        receiver.bind((emulation.address("b"), 0))
        receiver.settimeout(limit_s)
        yield sender, receiver


def test_a_full_queue_holds_what_the_file_says(name: str):
    """Of many datagrams sent at once, what the bucket lets through and what the queue holds arrives."""
    with network_up(network_of(name, TWO_NODES)) as emulation:
        emulation.set_rates({"a": (1, 80)})
        with datagrams_to_b(emulation, 1.0) as (sender, receiver):  # a packet takes 12 ms
            for _ in range(60):
                sender.sendto(bytes(1472), receiver.getsockname())
            arrived = 0
            with suppress(TimeoutError):
                while receiver.recv(2000):
                    arrived += 1
        held = (shaping.MIN_BURST_BYTES + shaping.MIN_QUEUE_BYTES) // shaping.FRAME_BYTES
        # the kernel rounds the bucket down, and packets leave while others are sent
        assert held - 1 <= arrived <= held + 2


def replace_flow(flow: verify.Flow, impairment: shaping.Impairment) -> verify.Flow:
    return dataclasses.replace(flow, impairment=impairment)


def test_rates_change_under_a_running_connection(name: str):
    """One TCP connection that outlives each change, and carries the new rate each time."""
    with network_up(network_of(name, CAPPED)) as emulation, connected(emulation, "n2", "n5") as carries:
        for up_mbps, cap_mbps, expected_mbps in ((150, 25, 25), (150, 50, 50), (20, 50, 20), (100, 40, 40)):
            emulation.set_rates({"n2": (up_mbps, 150)}, {("n2", "n5"): cap_mbps})
            assert carries(expected_mbps)
        emulation.set_rates({"n5": (120, 10)})
        assert carries(10)
        assert emulation.rates()["n5"] == (120, 10)
        assert emulation.pair_caps() == {("n2", "n5"): 40}


FALLING = """
[[nodes]]
name = "a"
up_mbps = 200
down_mbps = 200
[[nodes]]
name = "b"
up_mbps = 200
down_mbps = 200
[[changes]]
at_s = 1000
node = "b"
up_mbps = 40
down_mbps = 40
"""


def test_a_full_link_carries_on_when_its_rate_falls(name: str):
    """Bunches that wait in a token bucket whose burst shrinks below them would block it for ever."""
    with network_up(network_of(name, FALLING)) as emulation, connected(emulation, "a", "b") as carries:
        for mbps in (200, 40, 20, 200, 20):
            emulation.set_rates({"b": (mbps, mbps)})
            assert carries(mbps)


def test_a_change_keeps_the_packets_that_wait(name: str):
    """UDP has no second try: what is lost stays lost."""
    with network_up(network_of(name, TWO_NODES)) as emulation:
        emulation.set_rates({"a": (1, 80)})
        with datagrams_to_b(emulation, 10) as (sender, receiver):
            for number in range(8):  # 8 frames of 1,242 bytes: 80 ms at 1 Mbit/s, so most of them wait
                sender.sendto(bytes([number]) * 1200, receiver.getsockname())
            emulation.set_rates({"a": (50, 80)})
            assert [receiver.recv(2000)[0] for _ in range(8)] == list(range(8))


def test_timed_changes_are_applied(name: str):
    body = TWO_NODES + '[[changes]]\nat_s = 0.05\nnode = "a"\nup_mbps = 5\n'
    applied, seen = threading.Event(), []

    def on_change(elapsed_s: float, description: dict) -> None:
        seen.append((elapsed_s, description))
        applied.set()

    with network_up(network_of(name, body)) as emulation, emulation.start_changes(on_change):
        assert applied.wait(10)
        assert emulation.rates()["a"] == (5, 80)
        assert_close(verify.measure_patiently(flow(emulation, "a", "b", 5)))
    assert [description["nodes"] for _, description in seen] == [{"a": {"up_mbps": 5, "down_mbps": 80}}]


def test_two_networks_at_once_share_addresses_and_nothing_else(name: str):
    other = f"{name}b"
    with network_up(network_of(name, TWO_NODES)) as one, network_up(network_of(other, TWO_NODES)) as two:
        assert one.address("a") == two.address("a")
        two.set_rates({"a": (10, 10)})
        with ThreadPoolExecutor(2) as pool:
            flows = (flow(one, "a", "b", 80), flow(two, "a", "b", 10))
            for measurement in pool.map(verify.measure_patiently, flows):
                assert_close(measurement)
        build.take_down(other)
        assert is_up(name)
        assert not is_up(other)


def test_commands_run_inside_with_their_own_pid(name: str):
    script = "import os; print(os.getpid(), os.readlink('/proc/self/ns/net'))"
    with network_up(network_of(name, TWO_NODES)) as emulation:
        places = set()
        for argv in (
            emulation.command("a", [sys.executable, "-c", script]),
            emulation.command("b", [sys.executable, "-c", script]),
            namespaces.inside_argv(emulation.hub_namespace(), [sys.executable, "-c", script]),
        ):
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
                pid, place = process.communicate()[0].split()
            assert int(pid) == process.pid
            places.add(place)
        assert len(places) == 3
        assert os.readlink("/proc/self/ns/net") not in places
        with pytest.raises(InputError, match="no node 'z'"):
            emulation.command("z", ["true"])


@pytest.mark.parametrize("are_many", [True, False])
def test_many_neighbours_are_permanent_and_so_do_not_fill_the_machines_table(name: str, monkeypatch, are_many: bool):
    if are_many:
        monkeypatch.setattr(build, "NEIGHBOURS_MOST", 2)
    with network_up(network_of(name, TWO_NODES + SITE_OF_B)) as emulation:
        places = {name: emulation.ends(name)[0] for name in ("a", "b", "s")}
        places["hub"] = emulation.hub_namespace(), emulation.hub_address
        for namespace, own in places.values():
            found = namespaces.with_netlink(
                namespace, lambda netlink: list(netlink.get_neighbours(family=socket.AF_INET))
            )
            permanent = {each.get_attr("NDA_DST") for each in found if each["state"] == build.NUD_PERMANENT}
            assert permanent == ({address for _, address in places.values() if address != own} if are_many else set())


@pytest.mark.parametrize(("line", "value"), [("", "1"), ("slow_start_after_idle = false", "0")])
def test_a_file_says_whether_tcp_starts_slowly_after_a_pause(name: str, line: str, value: str):
    with network_up(network_of(name, f"{line}\n{TWO_NODES}")) as emulation:
        for node in ("a", "b"):
            argv = emulation.command(node, ["cat", "/proc/sys/net/ipv4/tcp_slow_start_after_idle"])
            assert subprocess.run(argv, capture_output=True, text=True).stdout.strip() == value


@pytest.mark.parametrize(
    ("line", "used"), [("", "cubic"), *((f'congestion_control = "{it}"', it) for it in ("reno", "bbr"))]
)
def test_a_file_names_the_congestion_control_of_tcp(name: str, line: str, used: str):
    offered = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    network = network_of(name, f"{line}\n{TWO_NODES}")
    if used not in offered and line:
        with pytest.raises(MachineError, match=f"not {used}: run `modprobe tcp_{used}`"), network_up(network):
            pass
        assert leftovers(name) == []
        return
    with network_up(network) as emulation:
        place = emulation.address("b")
        with namespaces.inside(emulation.namespace("b"), lambda: socket.create_server((place, 0))) as server:
            to = server.getsockname()
            with namespaces.inside(emulation.namespace("a"), lambda: socket.create_connection(to)) as connection:
                found = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    assert found.rstrip(b"\0").decode() == used


def test_sensible_rates_only(name: str):
    with network_up(network_of(name, TWO_NODES)) as emulation:
        for rates, caps in (
            ({"z": (1, 1)}, {}),
            ({"a": (0, 1)}, {}),
            ({"a": (1, float("nan"))}, {}),
            ({}, {("a", "b"): 1}),
        ):
            with pytest.raises(InputError):
                emulation.set_rates(rates, caps)
        assert emulation.rates()["a"] == (100, 80)


def test_one_that_is_up_is_refused_attached_to_and_taken_down_once(name: str):
    network = network_of(name, TWO_NODES)
    with pytest.raises(InputError, match="is not up"):
        attach(network)
    leave_up(network)
    with pytest.raises(InputError, match="already up"):
        leave_up(network)
    with pytest.raises(InputError, match="already up, and a job may run in it: end that job"), network_up(network):
        pass
    assert is_up(name), "the refusal must not remove the other's network"
    assert attach(network).rates() == {"a": (100, 80), "b": (100, 80)}
    with pytest.raises(InputError, match="another file"):
        attach(network_of(name, TWO_NODES.replace("100", "90")))
    namespaces.remove([namespaces.node_namespace(name, "a")])
    with pytest.raises(InputError, match=r"is not whole, as after a `nalb net down` that was cut short: run it again"):
        attach(network)
    assert len(build.take_down(name)) == 2
    with network_up(network), pytest.raises(InputError, match="a job may run in it: end that job"):
        attach(network)
    assert build.take_down(name) == []
    assert leftovers(name) == []


def test_a_link_with_delay_carries_its_rate(name: str):
    """Or the delay line says that the machine leaves it too little CPU."""
    network = network_of(name, TWO_NODES + "delay_ms = 5\n")
    with network_up(network) as emulation, connected(emulation, "b", "a") as carries:
        assert any(carries(80) for _ in range(5)) or emulation.delay_shortfall()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("netem.delay_line", "the delay line of nalb-"),
        ("netem.duty_cycle", "the duty cycle of nalb-"),
        ("netem.ballast", "the competing process of b"),
    ],
)
def test_a_process_that_the_network_needs_has_ended(name: str, program: str, says: str):
    network = network_of(name, TWO_NODES + "delay_ms = 5\ncpu_quota = 0.5\nmemory_mb = 1\n")
    with network_up(network, cpu_limits.DutyCycleLimits(network, "on trial")) as emulation:
        inside = namespaces.processes_by_namespace(namespaces.standing(name))
        pids = [pid for pids in inside.values() for pid in pids]
        emulation.check()
        (process,) = [one for one in map(psutil.Process, pids) if program in one.cmdline()]
        assert process.cmdline()[1:3] == ["-P", "-m"]
        process.kill()
        wait_until(lambda: ended(process.pid))
        with pytest.raises(MachineError, match=rf"^{says}.* has ended, killed by .*: start again$"):
            emulation.check()
    assert leftovers(name) == []


def test_the_networks_guardian_has_a_successor(name: str):
    def guardians() -> set[psutil.Process]:
        found = set()
        for one in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # it has ended
                if "netem.guardian" in one.cmdline():
                    found.add(one)
        return found

    with network_up(network_of(name, TWO_NODES)) as emulation:
        (first,) = guardians()
        first.kill()

        def has_successor() -> bool:
            emulation.check()  # starts one once the last thread of the first is gone
            return len(guardians() - {first}) == 1

        wait_until(has_successor)
    assert guardians() == set()
    assert leftovers(name) == []


def test_what_is_missing_is_said_before_anything_is_built(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.machinery, "EXTENSION_SUFFIXES", [])  # none of ours is found
    monkeypatch.setattr(namespaces, "create", lambda name: pytest.fail(f"{name} was made"))
    network = network_of(name, TWO_NODES + "delay_ms = 5\n")
    with pytest.raises(MachineError, match="delay line is not built"), network_up(network):
        pass


@contextmanager
def connected(emulation, source: str, target: str):
    """A TCP connection that sends all the time; gives a function that says whether a rate arrives."""
    address = emulation.address(target)
    server = namespaces.inside(emulation.namespace(target), lambda: socket.create_server((address, 0)))
    with server:
        sender = namespaces.inside(
            emulation.namespace(source), lambda: socket.create_connection(server.getsockname(), 10)
        )
        receiver, _ = server.accept()
    with sender, receiver:
        receiver.settimeout(10)
        sending = threading.Thread(target=verify.keep_sending, args=(sender,))
        sending.start()

        def carries(expected_mbps: float) -> bool:
            for _ in range(verify.REPEATS):
                arrived_bytes, elapsed_s = verify.count_arrived(receiver, 0.7, 0.8)
                goodput_mbps = bytes_per_s_to_mbps(arrived_bytes / elapsed_s)
                if verify.Measurement(target, expected_mbps, goodput_mbps).passed:
                    return True
            return False

        try:
            yield carries
        finally:
            receiver.close()
            sending.join()
