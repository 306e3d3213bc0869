"""The coordinator's port: what a stranger who can reach it can make it keep."""

import socket
import struct
from pathlib import Path

from nalb.launch.ports import free_pair
from nalb.protocol import messages as m
from nalb.settings import from_environment
from nalb.transport.keys import VARIABLE, key_path, make_keys, write_keys
from nalb.transport.server import CoordinatorThread
from tests.protocol.test_state import ENVIRONMENT

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)  # ZMTP 3.1
LONG_COMMAND = 6
PIECE = bytes(1 << 20)
QUEUED_MOST = 24 << 20  # what two kernels hold of a connection at most, and a little


def taken_bytes(port: int, said: int, most: int) -> int:
    """How much of a handshake message, which says that it has `said` bytes, a stranger gets rid of before it is sent away."""
    with socket.create_connection(("127.0.0.1", port), 30) as stranger:
        stranger.sendall(GREETING)
        stranger.sendall(struct.pack(">BQ", LONG_COMMAND, said))
        sent = 0
        try:
            while sent < most:
                sent += stranger.send(PIECE)
        except ConnectionError:
            pass
        return sent


def test_a_handshake_message_that_does_not_end_is_not_kept(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", make_keys({"n0": "127.0.0.1"}))
    with free_pair("127.0.0.1") as root_port:
        environment = {
            **ENVIRONMENT, "DMLC_PS_ROOT_PORT": str(root_port), VARIABLE: str(key_path(tmp_path / "keys", "n0")),
        }  # fmt: skip
        with CoordinatorThread(from_environment(environment, "n0")):
            assert taken_bytes(root_port + 1, 300 << 20, 100 << 20) < QUEUED_MOST
            assert taken_bytes(root_port + 1, m.FRAME_MOST, 100 << 20) < m.FRAME_MOST + QUEUED_MOST
