"""The coordinator's shell: its file of events, and what a stranger who can reach its port can make it keep."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from nalb.errors import InputError, MachineError, PeerError
from nalb.events import FailureEvent, ReadyEvent
from nalb.failures import Cause, Failure
from nalb.launch.ports import free_pair
from nalb.launch.run_dir import append_event
from nalb.protocol import wire
from nalb.reporting.run_file import read_events
from nalb.settings import from_environment
from nalb.transport.keys import VARIABLE, key_path, make_keys, write_keys
from nalb.transport.server import CoordinatorThread, flush, open_log
from tests.failures import AS_LAUNCHED, told_in, who
from tests.process.test_line_file import files_of_at_most
from tests.protocol.test_coordinator import ENVIRONMENT

READY = ReadyEvent(at_s=1.0, nodes=["n0"], servers=["n0"])
FAILURE = FailureEvent(at_s=2.0, failure=Failure(cause=Cause.SILENT, detail="x", role="worker", node="n0"))


def test_an_event_that_does_not_fit_is_an_error_and_what_follows_is_read(tmp_path, caplog):
    path = tmp_path / "samples.jsonl"
    state = SimpleNamespace(outbox=deque(), events=[READY])
    log = open_log(SimpleNamespace(samples_path=str(path)))
    flush(None, state, log)
    log.finish(10.0)
    log = open_log(SimpleNamespace(samples_path=str(path)))
    state.events.append(READY)
    with files_of_at_most(path.stat().st_size + 20):
        flush(None, state, log)
        with pytest.raises(MachineError, match="too large"):
            log.finish(10.0)
    append_event(path, FAILURE)  # the launcher's, once there is room
    assert read_events(tmp_path) == [READY, FAILURE]
    assert f"{path}, line 2 is torn" in caplog.text


def test_events_that_have_no_folder_say_what_to_do(tmp_path):
    path = tmp_path / "none" / "samples.jsonl"
    says = f"NALB_SAMPLES={path}: No such file or directory: name a file in a folder where it can be written"
    with pytest.raises(InputError, match=re.escape(says)):
        open_log(SimpleNamespace(samples_path=str(path)))


# sys.argv[1]: the coordinator's endpoint
LATE = """
import sys
from nalb.protocol import wire
from nalb.transport.client import Client, Drained
hello = wire.Hello(wire.VERSION, "agent", "n0", 0, 1)
client = Client(sys.argv[1], hello, lambda: Drained([]), silence_s=60.0, startup_s=60.0)
client.wait_for(wire.Welcome)
"""
# a job of one agent; sys.argv[1]: the code of a process that comes once it has begun
JOB = """
import os, subprocess, sys
from nalb.protocol import wire
from nalb.settings import for_agents
from nalb.transport.client import Client, Drained
from nalb.transport.server import CoordinatorThread
settings = for_agents(os.environ, node="n0", endpoint="tcp://127.0.0.1:0", size=1, role="scheduler")
with CoordinatorThread(settings) as coordinator:
    endpoint = f"tcp://127.0.0.1:{coordinator.port}"
    client = Client(endpoint, wire.Hello(wire.VERSION, "agent", "n0", 0, 1), lambda: Drained([]), 60.0, 60.0)
    client.wait_for(wire.Welcome)
    late = subprocess.run([sys.executable, "-c", sys.argv[1], endpoint], stderr=subprocess.PIPE, text=True)
    print(f"{late.returncode} {late.stderr}", flush=True)
    client.send(wire.Goodbye())
    client.wait_for(wire.Farewell)
    client.close()  # it would repeat what the coordinator says
    coordinator.wait()
"""


# a coordinator that waits for its job; ends once it could plan with caps of pairs at once
WAITING = """
import os, sys, time
from nalb.settings import for_agents
from nalb.transport.server import CoordinatorThread
settings = for_agents(os.environ, node="n0", endpoint="tcp://127.0.0.1:0", size=2, role="scheduler")
with CoordinatorThread(settings):
    while not hasattr(sys.modules.get("nalb.planning.pair_caps"), "level_with_pairs"):
        time.sleep(0.1)
"""


def test_a_coordinator_imports_the_solver_before_a_plan_needs_it() -> None:
    """Within a plan the import would take longer, on an overloaded machine, than others wait for a sign of life."""
    subprocess.run([sys.executable, "-c", WAITING], env=AS_LAUNCHED, timeout=100.0, check=True)


def test_a_process_that_comes_once_all_have_met_ends_alone() -> None:
    """Though it has the name and the rank of one that is there."""
    command = [sys.executable, "-c", JOB, LATE]
    job = subprocess.run(command, env=AS_LAUNCHED, capture_output=True, text=True, check=False)
    assert job.returncode == 0, job.stderr
    code, _, told = job.stdout.partition(" ")
    failure = told_in(told)
    assert (int(code), failure.cause, who(failure)) == (PeerError.exit_code, Cause.IDENTITY, ("agent", "n0"))


def test_a_disk_that_stands_still_ends_no_job_but_is_told_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:  # until it is full: nobody reads it
            os.write(pipe, bytes(4096))
    command = [sys.executable, "-c", JOB, "raise SystemExit(7)"]
    environment = AS_LAUNCHED | {"NALB_SAMPLES": str(path)}
    job = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    os.close(pipe)
    failure = told_in(job.stderr)
    assert job.stdout.startswith("7 "), job.stderr
    assert (job.returncode, failure.cause, who(failure)) == (
        PeerError.exit_code,
        Cause.COORDINATOR,
        ("scheduler", "n0"),
    )
    assert failure.detail.startswith(f"cannot write {path} (its disk stands still")


# decides for half a second of its own; may take 1.8 s
SLOW = """
import time
from nalb.schemes import Scheme
from nalb.settings import for_agents
from nalb.transport.server import timed
def decide(situation):
    print("decides", flush=True)
    for _ in range(50):
        time.sleep(0.01)
settings = for_agents({"NALB_DEADLINE_S": "4"}, node="n0", endpoint="tcp://127.0.0.1:0", size=1, role="scheduler")
timed(Scheme("slow", decide, place="slow.py"), settings).decide(None)
"""


def test_a_scheme_has_its_time_though_all_processes_were_stopped_while_it_decided() -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        job.stdout.readline()
        job.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        job.send_signal(signal.SIGCONT)
        assert job.wait(60) == 0, job.stderr.read()


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
            assert taken_bytes(root_port + 1, wire.FRAME_MOST, 100 << 20) < wire.FRAME_MOST + QUEUED_MOST
