"""What the kernel says of this process's connections, of real ones."""

import socket

from nalb.control.wires import wires


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


def test_connections_that_end_meanwhile_are_left_out():
    with socket.socket() as unconnected, socket.create_server(("127.0.0.1", 0)) as door:
        made = socket.create_connection(door.getsockname())
        made.close()
        assert door.getsockname() not in [wire.peer for wire in wires()]
        assert unconnected.fileno() > 0
