"""What the kernel says of this process's connections, of real ones."""

import socket
import struct

import pytest

from nalb.control.wires import SO_MAX_PACING_RATE, wires


def test_a_connection_that_this_process_made_and_what_is_queued_on_it():
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        taken, _ = door.accept()
        with taken:
            peer = door.getsockname()

            def look():
                return [wire for wire in wires() if wire.peer in (peer, made.getsockname())]

            taken.sendall(b"a farewell that nobody reads")  # ps-lite reads nothing here either: nothing is under way
            made.recv(1)
            assert [(wire.peer, wire.is_doubtful, wire.queued_bytes) for wire in look()] == [(peer, False, 0)]
            made.setblocking(False)
            sent = 0
            try:
                while True:
                    sent += made.send(bytes(100_000))
            except BlockingIOError:
                pass
            (wire,) = look()
            assert not wire.is_doubtful  # who reads nothing is there all the same
            assert 0 < wire.queued_bytes <= sent


@pytest.mark.parametrize("paced", [False, True])
def test_how_far_a_peer_is_and_whether_the_kernel_paces(paced):
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        taken, _ = door.accept()
        with taken:
            peer = door.getsockname()
            made.sendall(b"a push")
            taken.recv(6)
            asked = []
            (wire,) = [one for one in wires(lambda one: asked.append(one) or paced) if one.peer == peer]
            assert wire in asked
            assert 0 < wire.round_trip_s < 0.1
            limit = made.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE).to_bytes(4, "little", signed=True)
            assert limit == (b"\xfe\xff\xff\xff" if paced else b"\xff\xff\xff\xff")


def test_connections_that_end_meanwhile_are_left_out():
    """Whoever holds them still has a socket, but the kernel knows no peer of it."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as made:
        taken, _ = door.accept()
        assert door.getsockname() in [wire.peer for wire in wires()]
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close resets
        taken.close()
        with pytest.raises(ConnectionResetError):
            made.recv(1)
        with socket.socket():  # one that never was connected
            assert door.getsockname() not in [wire.peer for wire in wires()]
