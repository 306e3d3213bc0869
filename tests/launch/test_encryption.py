"""Real jobs with and without encryption, a spy on the link, and intruder processes while the job runs."""

import importlib.util
import json
import os
import random
import secrets
import socket
import stat
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import psutil
import pytest

from nalb.launch.machine_env import BOOTSTRAP
from nalb.launch.ports import free_pair
from nalb.launch.roles import Place, process_specs
from nalb.options import JobOptions
from nalb.transport.keys import NodeKeys, load_keys, make_keys, write_keys
from tests.launch.capture import Capture, capturing
from tests.launch.conftest import ROOT, START_LIMIT_S, Launch, Launched

PATTERN_WORKER = [sys.executable, str(Path(__file__).with_name("pattern.py"))]
INTRUDER = [sys.executable, str(Path(__file__).with_name("intruder.py"))]
GREETING = 64  # bytes that any ZMTP 3 peer tells everyone: its version and the mechanism
HELLO = 202
ERROR = 40  # a little more than any ERROR command
WELCOME = 170  # CURVE's answer to a right HELLO, replayed or not: readable only by who made the HELLO
Door = tuple[str, int]  # address and port where a process of the job listens
HALF_OPEN = 40  # connections that say a little and then nothing
pytestmark = [
    pytest.mark.mxnet,
    pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed"),
]


@pytest.fixture
def pattern() -> str:
    """What no other traffic on this machine has."""
    return secrets.token_hex(8)


def start(launch: Launch, tmp_path: Path, pattern: str, *flags: str) -> Launched:
    """A job of two nodes that pushes the pattern until the file `stop` is there."""
    command = [*PATTERN_WORKER, "--pattern", pattern, "--stop", str(tmp_path / "stop")]
    job = launch("--local", "2", *flags, "--", *command)
    job.wait_for("step 3", 2)
    return job


def finish(job: Launched, tmp_path: Path) -> None:
    """Tell the job to stop; it ends well and every sum was right."""
    (tmp_path / "stop").touch()
    code, _ = job.end(START_LIMIT_S)
    assert code == 0, job.output
    assert sum("every sum was right" in line for line in job.lines) == 2
    job.assert_nothing_left()


def listening(job: Launched) -> dict[str, list[Door]]:
    """Where the job's processes listen on TCP, by role."""
    roles = {pid: one.get("DMLC_ROLE", "") for pid, one in job.processes().items()}
    found: dict[str, list[Door]] = {}
    for connection in psutil.net_connections("tcp4"):
        if connection.status == psutil.CONN_LISTEN and roles.get(connection.pid or -1):
            found.setdefault(roles[connection.pid], []).append((connection.laddr.ip, connection.laddr.port))
    return found


def intrude(orders: list[dict]) -> list:
    """What one intruder process got for each of its attacks."""
    done = subprocess.run(INTRUDER, input=json.dumps(orders), capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def peer(door: Door, server: bytes | None = None, own: NodeKeys | None = None, message: bytes = b"") -> dict:
    """An attack of a ZeroMQ peer; without keys in plain text."""
    keys = [server.hex(), own.public.hex(), own.secret.hex()] if server and own else []
    return {"how": "peer", "endpoint": f"tcp://{door[0]}:{door[1]}", "keys": keys, "message": message.hex()}


def raw(door: Door, chunks: list[bytes]) -> dict:
    """An attack of a TCP peer."""
    return {"how": "raw", "endpoint": f"tcp://{door[0]}:{door[1]}", "chunks": [chunk.hex() for chunk in chunks]}


def junk(seed: int) -> list[list[bytes]]:
    """Sequences of chunks that are no handshake, or begin one and go wrong."""
    generator = random.Random(seed)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01"
    curve, null = (greeting + name.ljust(20, b"\0") + bytes(32) for name in (b"CURVE", b"NULL"))
    hello = b"\x04\xc8\x05HELLO\x01\x00" + bytes(72) + generator.randbytes(120)
    return [
        [b"GET / HTTP/1.0\r\n\r\n"],
        [generator.randbytes(4096)],
        [bytes(4096)],
        [null, b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\6DEALER"],
        [curve, hello],  # right in form, but its box opens with no key
        [curve, hello[:50]],
        [curve[:40], curve[40:] + hello, hello],
        [curve, b"\x06" + b"\x7f" * 8 + b"\x05HELLO"],  # a command of 2^62 bytes
        [curve, b"\x00\x05hello"],  # a message before any handshake
        [greeting[:9]],
    ]


@pytest.mark.root
def test_a_spy_sees_gradients_of_a_plain_job(launch: Launch, tmp_path: Path, pattern: str) -> None:
    with spy(pattern) as capture:
        finish(start(launch, tmp_path, pattern, "--plain"), tmp_path)
    assert capture.hits > 100


def spy(pattern: str) -> AbstractContextManager[Capture]:
    """A capture; skips where it is not allowed."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        pytest.skip("needs CAP_NET_RAW: a packet socket")
    return capturing(pattern.encode("ascii"))


@pytest.mark.root
def test_spies_and_intruders_get_nothing_of_an_encrypted_job(launch: Launch, tmp_path: Path, pattern: str) -> None:
    with ExitStack() as stack:
        capture = stack.enter_context(spy(pattern))
        job = start(launch, tmp_path, pattern, "--encrypt")
        folder = job.run_dir / "keys"
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
        assert modes == {"keys": 0o700, "n0.keys": 0o600, "n1.keys": 0o600}
        assert stat.S_IMODE((job.run_dir / "observers").stat().st_mode) == 0o600
        keys = load_keys(folder / "n0.keys", "n0")
        doors = listening(job)
        assert {role: len(where) for role, where in doors.items()} == {"scheduler": 2, "server": 2, "worker": 2}
        recorded = {door: recording(capture, door) for where in doors.values() for door in where}
        own_bytes = capture.payload_bytes  # before any intruder's
        for door in recorded:
            for _ in range(HALF_OPEN):  # held to the end: nobody may wait for them
                connection = stack.enter_context(socket.create_connection(door, timeout=10))
                connection.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE")
        assert_shut(list(recorded), keys)
        assert_replays_fail(recorded)
        assert job.popen.poll() is None, job.output
        finish(job, tmp_path)
    assert not folder.exists()
    assert own_bytes > 10 * 16 * 4096  # as much went over the link, and it was seen
    assert capture.hits == 0


def recording(capture: Capture, door: Door) -> bytes:
    """What a node of the job sent when it came in at this door."""
    conversations = [
        (capture.beginning(flow), capture.beginning((*flow[2:], *flow[:2]))) for flow in capture.flows_to(*door)
    ]
    sent, answered = max(conversations, key=lambda one: len(one[1]))
    assert len(answered) > GREETING + WELCOME + ERROR  # it was let in
    return sent


def assert_shut(doors: list[Door], keys: NodeKeys) -> None:
    """The job's own keys open each door; nothing else does."""
    stranger = make_keys(keys.addresses())["n0"]  # of another job on the same nodes
    message = b"\x08\x01"  # whatever it is: it must not arrive
    public = {one.address: one.public for one in keys.peers}
    foreign = {one.address: one.public for one in stranger.peers}
    welcome = [peer(door, public[door[0]], keys) for door in doors]
    others = [
        attack
        for door in doors
        for attack in (
            peer(door, None, None, message),
            peer(door, public[door[0]], stranger, message),  # knows the server, is nobody's peer
            peer(door, foreign[door[0]], keys, message),
            peer(door, foreign[door[0]], stranger, message),
        )
    ]
    garbage = [raw(door, chunks) for door in doors for chunks in junk(seed=7)]
    got = intrude(welcome + others + garbage)
    assert got[: len(welcome)] == [{"let_in": True, "ended": True, "messages": 0}] * len(welcome)
    assert got[len(welcome) : -len(garbage)] == [{"let_in": False, "ended": True, "messages": 0}] * len(others)
    for received in got[-len(garbage) :]:
        assert len(bytes.fromhex(received)) <= GREETING + ERROR


def assert_replays_fail(recorded: dict[Door, bytes]) -> None:
    """The recorded handshake sent again, at once and step by step: a WELCOME that only its HELLO's maker can read, no more."""
    hello_end = GREETING + HELLO
    got = intrude(
        [raw(door, [sent]) for door, sent in recorded.items()]
        + [raw(door, [sent[:GREETING], sent[GREETING:hello_end], sent[hello_end:]]) for door, sent in recorded.items()]
    )
    received = [bytes.fromhex(one) for one in got]
    assert all(one[GREETING:].startswith(b"\x04\xa8\x07WELCOME") for one in received[len(recorded) :])
    assert max(map(len, received)) <= GREETING + WELCOME + ERROR


CREATE = "import mxnet; mxnet.kv.create('dist_sync')"


@pytest.mark.parametrize("scheme", ["stock", "p3", "exact"])
@pytest.mark.parametrize("role", ["scheduler", "server", "worker"])
def test_with_keys_and_without_the_shim_nobody_listens(tmp_path: Path, scheme: str, role: str) -> None:
    """Each process by itself, as another launcher may start it that loses LD_PRELOAD on the way."""
    write_keys(tmp_path / "keys", make_keys({"n0": "127.0.0.1"}))
    with free_pair("127.0.0.1") as port:
        options = JobOptions(port, scheme=scheme, transport="pyzmq")
        specs = process_specs(
            [Place("n0", "127.0.0.1")], [sys.executable, "-c", CREATE], options, {}, str(tmp_path / "keys")
        )
    (spec,) = [one for one in specs if one.role == role]
    path = os.pathsep.join([str(BOOTSTRAP), str(ROOT)] if role == "worker" else [str(ROOT)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path} | spec.environment
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(spec.argv, env=environment, stdout=log, stderr=log)
    try:
        end_s = time.monotonic() + START_LIMIT_S
        while process.poll() is None:
            assert time.monotonic() < end_s
            doors = [one for one in psutil.net_connections("tcp") if one.pid == process.pid and one.status == "LISTEN"]
            assert doors == []
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    lines = (tmp_path / "log").read_text().splitlines()
    assert process.returncode in (1, 3), lines
    assert "the shim is not preloaded in this process" in lines[-1]
    assert len(lines) == 1 or role == "worker"  # a script shows its trace
