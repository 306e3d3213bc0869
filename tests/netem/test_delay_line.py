"""The delay line: what it does to packets over real links, and what its numbers are."""

import hashlib
import itertools
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from nalb.errors import MachineError
from netem import delay_line, namespaces, verify, verify_delay
from netem.delay_line import Counters, Library
from netem.emulation import Emulation, network_up
from netem.network import Network
from netem.wires import NODE_INTERFACE, wires
from tests.netem.conftest import leftovers, network_of

LINK = """
[defaults]
up_mbps = 100
down_mbps = 100
[[nodes]]
name = "a"
{}
[[nodes]]
name = "b"
"""
SOL_PACKET, PACKET_VNET_HDR = 263, 15  # linux/if_packet.h
LOSS_STREAM = 1 << 60  # LOSS of delay_line.c
MOST_EARLIER = 60  # packets of a's before the test's own: of the connection that `build` tries


def splitmix64(seed: int, index: int) -> float:
    """Written once more, from the paper."""
    mask = 2**64 - 1
    mixed = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return ((mixed ^ (mixed >> 31)) >> 11) / 2**53


def test_random_numbers_are_those_of_seed_and_index():
    library = Library.load()
    for seed in (0, 7, 2**64 - 1):
        for index in (0, 1, 10**6, 2**40):
            assert library.uniform(seed, index) == splitmix64(seed, index)


def test_seeds_follow_the_file_the_link_and_the_direction_alone():
    def seeds(text: str, name: str = "x") -> list[int]:
        links = wires(network_of(name, text)).values()
        return [seed for wire in links if wire.joint is not None for seed in wire.joint.seeds]

    one = seeds(LINK.format("loss_percent = 1"))
    assert len(set(one)) == 2
    assert one == seeds(LINK.format("loss_percent = 2\nqueue_ms = 10"), "y")
    assert not set(one) & set(seeds("seed = 1\n" + LINK.format("loss_percent = 1")))


def test_what_a_line_could_not_do_is_one_line():
    assert delay_line.shortfall(Counters(packets=9000, bunches=1000, lost=90, late=10, worst_late_ns=600_000)) is None
    said = delay_line.shortfall(Counters(bunches=1000, late=11, worst_late_ns=2_340_000, overrun=3, refused=4))
    assert said is not None
    assert "11 of 1000 bunches" in said
    assert "2.3 ms" in said
    assert "7 were dropped" in said
    assert "\n" not in said


def a_network(name: str, fields: str) -> Network:
    return network_of(name, LINK.format(fields))


@contextmanager
def datagrams(emulation: Emulation) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket of a's that is connected to one of b's, whose queue is long."""
    with ExitStack() as stack:
        a, b = (
            stack.enter_context(
                namespaces.inside(emulation.namespace(node), lambda: socket.socket(type=socket.SOCK_DGRAM))
            )
            for node in ("a", "b")
        )
        b.bind((emulation.address("b"), 0))
        b.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        b.settimeout(2)
        a.connect(b.getsockname())
        a.send(b"first")  # the neighbour's address is found
        b.recv(100)
        yield a, b


def numbers_that_arrive(emulation: Emulation, numbers: Iterable[int], gap_s: float = 0.0) -> list[int]:
    """Send numbered packets from a to b; the numbers in the order of arrival."""
    with datagrams(emulation) as (a, b):
        for number in numbers:
            a.send(number.to_bytes(4, "big"))
            time.sleep(gap_s)
        b.settimeout(1)
        arrived = []
        try:
            while True:
                arrived.append(int.from_bytes(b.recv(100), "big"))
        except TimeoutError:
            return arrived


@pytest.mark.root
def test_equal_seeds_lose_the_same_packets(name: str):
    network = a_network(name, "loss_percent = 10")
    with network_up(network) as emulation:
        arrived = numbers_that_arrive(emulation, range(2000))
    joint = wires(network)["a"].joint
    assert joint is not None
    library, seed = Library.load(), joint.seeds[0] ^ LOSS_STREAM
    is_lost = [library.uniform(seed, index) < 0.1 for index in range(2000 + MOST_EARLIER)]
    predicted = [[n for n in range(2000) if not is_lost[n + earlier]] for earlier in range(MOST_EARLIER)]
    assert arrived in predicted
    assert leftovers(name) == []


@pytest.mark.root
def test_a_network_that_loses_its_first_packets_comes_up(name: str):
    """The kernel's first packets towards the hub are among them."""
    library = Library.load()

    def loses_the_first(network: Network) -> bool:
        joint = wires(network)["a"].joint
        assert joint is not None
        return all(library.uniform(joint.seeds[0] ^ LOSS_STREAM, index) < 0.3 for index in range(4))

    networks = (network_of(name, f"seed = {seed}\n" + LINK.format("loss_percent = 30")) for seed in range(10_000))
    with network_up(next(filter(loses_the_first, networks))):
        pass
    assert leftovers(name) == []


@pytest.mark.root
def test_a_round_trip_takes_the_delay_of_both_directions(name: str):
    """A machine that stands still makes some packets late, and says so; a line that waits too long makes most of them late."""
    with network_up(a_network(name, "delay_ms = 40")) as emulation, datagrams(emulation) as (a, b):
        for _ in range(1000):
            a.send(b"one of many")
            time.sleep(0.001)
        for _ in range(1000):
            b.recv(100)
        shortest_s = 1.0
        for _ in range(20):
            begin_s = time.monotonic()
            a.send(b"to")
            b.sendto(b"back", b.recvfrom(100)[1])
            a.recv(100)
            shortest_s = min(shortest_s, time.monotonic() - begin_s)
        counters = delay_line.read_counters(emulation.hub_namespace())
    assert 0.0795 <= shortest_s <= 0.085
    assert counters.late < counters.bunches / 2
    assert counters.overrun == counters.refused == 0


@pytest.mark.root
def test_a_line_that_stood_still_says_so(name: str):
    with network_up(a_network(name, "delay_ms = 1")) as emulation, datagrams(emulation) as (a, b):
        hub = emulation.hub_namespace()
        (line,) = namespaces.processes_by_namespace([hub])[hub]
        for _ in range(20):
            os.kill(line, signal.SIGSTOP)
            while psutil.Process(line).status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)
            a.send(b"held up")
            time.sleep(0.02)
            os.kill(line, signal.SIGCONT)
            b.recv(100)
        counters = delay_line.read_counters(hub)
        assert counters.late >= 20
        assert counters.worst_late_ns >= 10_000_000
        assert f"could not keep up with real-time priority: {counters.late} of" in str(emulation.delay_shortfall())
    assert delay_line.shortfall(Counters(bunches=1000, late=10)) is None


def noted_until_after(change: threading.Thread, sent: list[int]) -> Iterator[int]:
    """Numbers for 200 packets before the change, those amid it, and 200 after it."""
    for number in itertools.count():
        if number == 200:
            change.start()
        if number < 200 or change.is_alive():
            last = number + 200
        if number > last:
            return
        sent.append(number)
        yield number


@pytest.mark.root
def test_a_delay_that_falls_keeps_the_order(name: str):
    with network_up(a_network(name, "delay_ms = 100")) as emulation:
        lowered = [delay_line.Rule(0, way, None, 5) for way in (0, 1)]
        lowering = threading.Thread(target=delay_line.set_rules, args=(emulation.hub_namespace(), lowered))
        sent: list[int] = []
        arrived = numbers_that_arrive(emulation, noted_until_after(lowering, sent), 0.001)
        lowering.join()
    assert arrived == sent


@pytest.mark.root
def test_jitter_keeps_the_order_and_reordering_does_not(name: str):
    with network_up(a_network(name, "delay_ms = 20\njitter_ms = 20")) as emulation:
        assert numbers_that_arrive(emulation, range(300), 0.001) == list(range(300))
    with network_up(a_network(name, "delay_ms = 20\nreorder_percent = 10")) as emulation:
        arrived = numbers_that_arrive(emulation, range(300), 0.001)
    assert sorted(arrived) == list(range(300))
    overtaking = [
        number for place, number in enumerate(arrived) if any(earlier < number for earlier in arrived[place:])
    ]
    assert 10 <= len(overtaking) <= 60


@pytest.mark.root
def test_a_bunch_that_loses_packets_goes_on_without_them(name: str):
    """TCP gets every byte right, and bunches have several packets: so the rest of a bunch has sound headers."""
    sent = os.urandom(1 << 22)
    with (
        network_up(a_network(name, "delay_ms = 1\nloss_percent = 2")) as emulation,
        namespaces.inside(
            emulation.namespace("b"), lambda: socket.create_server((emulation.address("b"), 0))
        ) as server,
        namespaces.inside(emulation.namespace("a"), lambda: socket.create_connection(server.getsockname(), 10)) as a,
        server.accept()[0] as b,
    ):
        b.settimeout(20)
        sending = threading.Thread(target=lambda: (a.sendall(sent), a.shutdown(socket.SHUT_WR)))
        sending.start()
        digest = hashlib.sha256()
        while chunk := b.recv(1 << 16):
            digest.update(chunk)
        sending.join()
        counters = delay_line.read_counters(emulation.hub_namespace())
    assert digest.digest() == hashlib.sha256(sent).digest()
    assert counters.lost > 20
    assert counters.bunches < counters.packets
    assert counters.refused == counters.overrun == 0


@pytest.mark.root
def test_what_is_left_of_a_bunch_is_sent_whatever_its_memory_looks_like(name: str):
    """The kernel tells how much of a bunch lies in one piece, and takes that for the headers of what is sent."""
    segment_bytes, segments, bunches = 1000, 4, 200
    with network_up(a_network(name, "delay_ms = 1\nloss_percent = 20")) as emulation:
        source, target = (socket.inet_aton(emulation.address(node)) for node in "ab")
        ip = struct.pack(
            "!BBHHHBBH4s4s", 0x45, 0, 40 + segments * segment_bytes, 0, 0, 64, socket.IPPROTO_TCP, 0, source, target
        )
        tcp = struct.pack("!HHIIBBHHH", 9, 9, 0, 0, 5 << 4, 0x10, 1000, 0, 0)
        frame = b"\xff" * 6 + bytes(6) + b"\x08\x00" + ip + tcp + bytes(segments * segment_bytes)
        needs_checksum, tcp_ipv4 = 1, 1
        offload = struct.pack("=BBHHHH", needs_checksum, tcp_ipv4, len(frame), segment_bytes, 34, 16)
        with namespaces.inside(
            emulation.namespace("a"), lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        ) as sender:
            sender.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
            sender.bind((NODE_INTERFACE, 0))
            before = delay_line.read_counters(emulation.hub_namespace())
            for _ in range(bunches):
                sender.send(offload + frame)
                time.sleep(0.001)  # the bucket of 100 Mbit/s holds a few
        time.sleep(0.1)
        counters = delay_line.read_counters(emulation.hub_namespace())
    assert counters.packets - before.packets >= bunches * segments
    assert counters.lost > bunches * segments / 10
    assert counters.refused == 0


@pytest.mark.root
def test_capped_pairs_have_delays_of_their_own(name: str):
    body = LINK.format("delay_ms = 5") + '[[links]]\nsrc = "a"\ndst = "b"\nmbps = 50\ndelay_ms = 30\n'
    with network_up(network_of(name, body)) as emulation, datagrams(emulation) as (a, b):
        begin_s = time.monotonic()
        a.send(b"to")
        b.recv(100)
        assert time.monotonic() - begin_s >= 0.0345
        flow = verify.Flow("a -> b", emulation.namespace("a"), emulation.namespace("b"), emulation.address("b"), 50)
        assert verify.measure_patiently(flow).passed


@pytest.mark.root
def test_a_pair_with_a_longer_delay_holds_up_no_other_pair(name: str):
    body = (
        LINK.format("delay_ms = 5")
        + '[[nodes]]\nname = "c"\n[[links]]\nsrc = "a"\ndst = "b"\nmbps = 50\ndelay_ms = 30\n'
    )
    with network_up(network_of(name, body)) as emulation, datagrams(emulation) as (a, b), ExitStack() as stack:
        inside = emulation.namespace("c")
        c = stack.enter_context(namespaces.inside(inside, lambda: socket.socket(type=socket.SOCK_DGRAM)))
        c.bind((emulation.address("c"), 0))
        c.settimeout(2)
        to_b, to_c = b.getsockname(), c.getsockname()
        a.sendto(b"first", to_c)  # the neighbour's address is found
        c.recv(100)
        overtook = 0
        for _ in range(20):
            a.sendto(b"the long way", to_b)
            a.sendto(b"the short way", to_c)
            came, _, _ = select.select([b, c], [], [], 2)
            overtook += came == [c]
            b.recv(100)
            c.recv(100)
    assert overtook > 10, "a busy machine may hide some"


@pytest.mark.root
def test_a_line_that_carries_nothing_rests(name: str):
    with network_up(a_network(name, "delay_ms = 20")) as emulation, datagrams(emulation):
        hub = emulation.hub_namespace()
        (line,) = namespaces.processes_by_namespace([hub])[hub]
        before = naps(line)
        time.sleep(1)
        assert naps(line) - before < 500  # a line at work looks for packets 5,000 times a second


def naps(pid: int) -> int:
    """How often the threads of a process have gone to sleep."""
    told = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(one.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for one in told)


@pytest.mark.root
def test_the_line_ends_with_the_network_and_its_end_is_said(name: str, caplog: pytest.LogCaptureFixture):
    with network_up(a_network(name, "delay_ms = 1")) as emulation:
        hub = emulation.hub_namespace()
        (line,) = namespaces.processes_by_namespace([hub])[hub]
    assert namespaces.identity_of_process(line) is None
    said = [record.message for record in caplog.records]
    assert [one for one in said if "could not keep up" not in one] == [], "a busy machine may slow the line"
    caplog.clear()
    with network_up(a_network(name, "delay_ms = 1")) as emulation:
        (line,) = namespaces.processes_by_namespace([hub])[hub]
        os.kill(line, signal.SIGKILL)
        with pytest.raises(MachineError, match="does not answer"):
            delay_line.read_counters(hub)
    assert "does not answer" in caplog.text
    assert leftovers(name) == []


@pytest.mark.root
def test_verify_tells_right_from_wrong(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verify_delay, "LOSS_PACKETS", 20_000)
    network = a_network(name, "delay_ms = 20\njitter_ms = 2\nloss_percent = 5")
    with network_up(network) as emulation:
        found = verify_delay.verify_delay(emulation, lambda _: None)
        assert [one.label for one in found] == ["a round trip", "a up loss", "a down loss"]
        assert all(one.passed for one in found), found
        delay_line.set_rules(emulation.hub_namespace(), [delay_line.Rule(0, 1, None, 30, 2, 10)])
        monkeypatch.setattr(verify_delay, "REPEATS", 2)
        found = verify_delay.verify_delay(emulation, lambda _: None)
        assert [one.passed for one in found] == [False, True, False], found
        assert found[0].measured == pytest.approx(50, rel=0.1)


@pytest.mark.root
def test_many_small_packets_under_way_are_not_lost(name: str, monkeypatch: pytest.MonkeyPatch):
    """1,500 of them are: full packets so many would be far more than the link carries and its queue holds."""
    monkeypatch.setattr(verify_delay, "LOSS_PACKETS", 20_000)
    network = a_network(name, "up_mbps = 25\ndown_mbps = 25\ndelay_ms = 60\nloss_percent = 1")
    with network_up(network) as emulation:
        found = verify_delay.verify_delay(emulation, lambda _: None)
    assert all(one.passed for one in found), found


def test_pairs_are_verified_by_all_that_lies_between(name: str):
    body = """
[defaults]
up_mbps = 100
down_mbps = 100
[[sites]]
name = "s"
up_mbps = 50
down_mbps = 60
delay_ms = 30
loss_percent = 50
[[nodes]]
name = "a"
delay_ms = 5
[[nodes]]
name = "b"
site = "s"
delay_ms = 1
[[links]]
src = "a"
dst = "b"
mbps = 20
delay_ms = 7
loss_percent = 10
"""
    nodes_and_site = {"a": (5, 0), "b": (1, 0), "s": (30, 50)}
    *each, pair = verify_delay.ends_of(Emulation(network_of(name, body)))
    assert {one.label: (one.there.delay_ms, one.back.loss_percent) for one in each} == nodes_and_site
    assert (pair.label, pair.mbps) == ("a -> b", 20)
    assert (pair.there.delay_ms, pair.there.loss_percent) == (5 + 7 + 30 + 1, pytest.approx(55))
    assert (pair.back.delay_ms, pair.back.loss_percent) == (1 + 30 + 5, pytest.approx(50))


@pytest.mark.root
def test_probes_that_overtake_others_do_not_shorten_the_round_trip(name: str):
    with network_up(a_network(name, "delay_ms = 20\nreorder_percent = 40")) as emulation:
        found = verify_delay.verify_delay(emulation, lambda _: None)
    assert [one.passed for one in found] == [True], found


def test_a_pair_of_two_sites_is_verified_at_what_the_sites_carry(name: str):
    sites = "".join(
        f"[[sites]]\nname = '{site}'\nup_mbps = {mbps}\ndown_mbps = 80\n" for site, mbps in (("s", 5), ("t", 60))
    )
    nodes = "[[nodes]]\nname = 'a'\nsite = 's'\n[[nodes]]\nname = 'b'\nsite = 't'\n"
    link = "[[links]]\nsrc = 'a'\ndst = 'b'\nmbps = 100\ndelay_ms = 7\n"
    network = network_of(name, f"[defaults]\nup_mbps = 200\ndown_mbps = 200\n{sites}{nodes}{link}")
    *_, pair = verify_delay.ends_of(Emulation(network))
    assert (pair.label, pair.mbps) == ("a -> b", 5)


def test_machines_of_a_site_share_its_rate_as_their_own_allow():
    assert verify.shared_rates(60, [400, 5]) == [55, 5]
    assert verify.shared_rates(60, [20, 20, 400]) == [20, 20, 20]
    assert verify.shared_rates(90, [20, 400, 400]) == [20, 35, 35]
    assert verify.shared_rates(900, [20, 400]) == [20, 400]


FEW_HEADER_WORDS = r"""
#include "delay_line.c"
#include <assert.h>
int main(void)
{
    for (unsigned ip_words = 0; ip_words < 16; ip_words++)
        for (unsigned tcp_words = 0; tcp_words < 16; tcp_words++)
            for (uint32_t frame_bytes = ETH_HLEN; frame_bytes < 200; frame_bytes++) {
                struct nalb_line *line = nalb_line_new(1);
                struct nalb_impairment lossy = {.loss_part = 0.5};
                struct virtio_net_hdr offload = {.gso_type = VIRTIO_NET_HDR_GSO_TCPV4, .gso_size = 1};
                unsigned char *frame = calloc(1, frame_bytes);
                assert(line && frame && !nalb_line_set(line, 0, 0, &lossy));
                if (frame_bytes > ETH_HLEN)
                    frame[ETH_HLEN] = (unsigned char)(0x40 | ip_words);
                if (frame_bytes > ETH_HLEN + ip_words * 4 + 12)
                    frame[ETH_HLEN + ip_words * 4 + 12] = (unsigned char)(tcp_words << 4);
                struct bunch bunch = bunch_of(&offload, frame, frame_bytes);
                take(line, 0, &bunch, 0);
                free(frame);
            }
    return 0;
}
"""


@pytest.mark.jobs
def test_headers_that_are_too_short_to_be_any_overflow_nothing(tmp_path):
    """A node of the network may send any bytes. Of all header lengths, with AddressSanitizer."""
    (tmp_path / "few.c").write_text(FEW_HEADER_WORDS)
    folder = Path(delay_line.__file__).parent
    flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{folder}", "-pthread", "-lm"]
    subprocess.run(["gcc", str(tmp_path / "few.c"), *flags, "-o", str(tmp_path / "few")], check=True)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run([tmp_path / "few"], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
