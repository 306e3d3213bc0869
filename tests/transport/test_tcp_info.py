"""What the kernel says of this process's connections, of real ones."""

import ctypes
import itertools
import os
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from nalb.transport import tcp_info
from nalb.transport.tcp_info import SO_MAX_PACING_RATE, connections, start_anew, starves


def test_a_connection_that_this_process_made_and_what_is_queued_on_it():
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        taken, _ = door.accept()
        with taken:
            peer = door.getsockname()

            def look():
                found = [connection for connection in connections() if connection.peer in (peer, made.getsockname())]
                assert [one.is_accepted for one in found] == [one.peer != peer for one in found]
                return [one for one in found if not one.is_accepted]

            taken.sendall(b"a farewell that nobody reads")  # ps-lite reads nothing here either: nothing is under way
            made.recv(1)
            assert [(connection.peer, connection.is_doubtful, connection.queued_bytes) for connection in look()] == [
                (peer, False, 0)
            ]
            made.setblocking(False)
            sent = 0
            try:
                while True:
                    sent += made.send(bytes(100_000))
            except BlockingIOError:
                pass
            (connection,) = look()
            assert not connection.is_doubtful  # who reads nothing is there all the same
            assert 0 < connection.queued_bytes <= sent


@pytest.mark.parametrize("paced", [False, True])
def test_how_far_a_peer_is_and_whether_the_kernel_paces(paced):
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        taken, _ = door.accept()
        with taken:
            peer = door.getsockname()
            made.sendall(b"a push")
            taken.recv(6)
            asked = []
            (connection,) = [one for one in connections(lambda one: asked.append(one) or paced) if one.peer == peer]
            assert connection in asked
            assert 0 < connection.round_trip_s < 0.1
            limit = made.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE).to_bytes(4, "little", signed=True)
            assert limit == (b"\xfe\xff\xff\xff" if paced else b"\xff\xff\xff\xff")


def test_connections_that_end_meanwhile_are_left_out():
    """Whoever holds them still has a socket, but the kernel knows no peer of it."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        taken, _ = door.accept()
        assert door.getsockname() in [connection.peer for connection in connections()]
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets
        taken.close()
        with pytest.raises(ConnectionResetError):
            made.recv(1)
        with socket.socket():  # one that never was connected
            assert door.getsockname() not in [connection.peer for connection in connections()]


def test_the_scripts_sockets_stay_as_they_are_whatever_its_default_timeout():
    """What O_NONBLOCK says is shared by all copies of a descriptor: the script's own, and a C library's."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        taken, _ = door.accept()
        with taken:
            socket.setdefaulttimeout(60.0)
            try:
                assert door.getsockname() in [connection.peer for connection in connections()]
            finally:
                socket.setdefaulttimeout(None)
            assert all(os.get_blocking(one.fileno()) for one in (door, made, taken))
            late = threading.Timer(0.2, taken.sendall, [b"a sum"])
            late.start()
            assert made.recv(5) == b"a sum"  # it waits: nothing was there yet
            late.join()


def test_whatever_sockets_there_are_no_descriptor_is_left_open():
    families = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
    with ExitStack() as stack:
        for family, kind in itertools.product(families, (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
            with suppress(OSError):  # a kernel without it
                stack.enter_context(socket.socket(family, kind))
        before = os.listdir("/proc/self/fd")
        connections()
        assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("queued_bytes", "pace", "now_s", "packets", "expected"),
    [
        (100_000, 50_000.0, 0.2, 9, True),  # two seconds, and nothing else on the link
        (15_000, 50_000.0, 0.2, 9, False),  # one and a half round trips
        (100_000, 50_000.0, 0.25, 9, False),  # others are in the queue
        (100_000, 5_000.0, 0.4, 3, True),  # acknowledged late
        (0, 0.0, 0.2, 0, False),
    ],
)
def test_what_a_starved_connection_is(queued_bytes, pace, now_s, packets, expected):
    assert starves(queued_bytes, pace, 0.2, now_s, packets) is expected
    assert not starves(queued_bytes, pace, 0.0, now_s, packets)  # nothing acknowledged yet


def test_bbr_starts_anew():
    """The kernel's own word for it: the rate that it paces with is that of a new connection again."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        except OSError:
            pytest.skip("this kernel has no BBR")
        taken, _ = door.accept()
        with taken:
            made.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 100_000)
            for _ in range(20):
                made.sendall(bytes(5_000))
                taken.recv(5_000, socket.MSG_WAITALL)
            slow = pace_of(made)
            made.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 1_000_000_000)
            (connection,) = [one for one in connections() if one.peer == door.getsockname()]
            assert connection.is_bbr
            assert pace_of(made) == slow
            start_anew(made)
            assert pace_of(made) > 10 * slow


@pytest.mark.root
def test_a_congestion_control_that_only_root_may_set_stays(monkeypatch):
    """A route may have it, so that connections of other users use it too."""
    available, allowed = (
        set(Path(f"/proc/sys/net/ipv4/tcp_{kind}_congestion_control").read_bytes().split())
        for kind in ("available", "allowed")
    )
    if not available - allowed:
        pytest.skip("everybody may set all congestion controls of this kernel")
    name = min(available - allowed)
    monkeypatch.setattr(tcp_info, "BBR", name)

    def start_anew_as_another_user(one):
        version, no_capabilities = 0x20080522, 6 * ctypes.c_uint32
        header = (ctypes.c_uint32 * 2)(version, 0)
        assert ctypes.CDLL(None).capset(header, no_capabilities()) == 0  # of this thread alone
        with pytest.raises(PermissionError):
            start_anew(one)

    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
        with ThreadPoolExecutor(1) as another:
            another.submit(start_anew_as_another_user, made).result()
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == name


def pace_of(one):
    """Bytes/s."""
    return struct.unpack_from("=Q", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 112), 104)[0]
