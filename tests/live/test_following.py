"""When a followed run counts as over, by the socket in its directory."""

import os
import socket
import subprocess
import sys
import time

import pytest

from nalb.errors import InputError
from nalb.events import AbortEvent, StartedEvent, encode_line
from nalb.live.following import BETWEEN_S, LAST_WORDS_S, Follower, metrics_beside
from nalb.live.state import RUNNING
from nalb.reporting.about_file import running, write_about
from tests.live.test_state import READY, iterations
from tests.ports import free_ports


def append(run_dir, *events):
    with open(run_dir / "samples.jsonl", "ab") as file:
        file.write(b"".join(map(encode_line, events)))


def test_a_job_is_over_when_its_socket_is_gone(tmp_path):
    write_about(tmp_path, "1.2.3", ["compare"], iterations=30)
    follower = Follower(tmp_path)
    assert follower.iterations == 30
    follower.look()
    assert not follower.is_over(0.0)  # it has not begun
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "observers"))
        append(tmp_path, READY, *iterations(2))
        follower.look()
        assert follower.state.iterations == 2
        assert not follower.is_over(1.0)
    (tmp_path / "observers").unlink()
    assert not follower.is_over(2.0)  # what it tells last is still to be read
    assert follower.is_over(2.0 + LAST_WORDS_S)
    late = Follower(tmp_path)
    late.look()
    assert late.is_over(0.0)


def test_a_failed_job_may_be_started_again(tmp_path):
    follower = Follower(tmp_path)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "observers"))
        follower.look()
        assert not follower.is_over(0.0)
    (tmp_path / "observers").unlink()
    append(tmp_path, READY, AbortEvent(at_s=1.0, reason="worker n1 left"))
    follower.look()
    assert not follower.is_over(1.0)
    assert not follower.is_over(0.9 + BETWEEN_S)
    (tmp_path / "restart-1").mkdir()
    append(tmp_path / "restart-1", READY, *iterations(1))
    follower.look()
    assert follower.state.restarts == 1
    assert follower.is_over(2.0 + BETWEEN_S)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_failed_job_without_a_restart_left_is_over_at_once(tmp_path, restarts):
    write_about(tmp_path, "1.2.3", ["launch"], max_restarts=restarts)
    follower, folder = Follower(tmp_path), tmp_path
    for attempt in range(restarts + 1):
        if attempt:
            folder = tmp_path / f"restart-{attempt}"
            folder.mkdir()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(folder / "observers"))
            assert not follower.is_over(0.0)
        (folder / "observers").unlink()
        append(folder, READY, AbortEvent(at_s=1.0, reason="worker n1 left"))
        follower.look()
        assert not follower.is_over(1.0)
        assert follower.is_over(1.0 + LAST_WORDS_S) == (attempt == restarts)


@pytest.mark.parametrize("first", [READY, StartedEvent(at_s=0.0, role="worker", node="n0")])
def test_a_job_that_ended_without_an_iteration_is_over(tmp_path, first):
    """As one that has no coordinator: scheme gloo, stock or PyTorch on one node."""
    write_about(tmp_path, "1.2.3", ["launch"])
    follower = Follower(tmp_path)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "observers"))
        append(tmp_path, first)
        late = Follower(tmp_path)
        for one in (follower, late):
            one.look()
            assert one.state.phase == RUNNING
        assert not follower.is_over(0.0)
    (tmp_path / "observers").unlink()
    assert late.is_over(0.0)
    assert not follower.is_over(1.0)
    assert follower.is_over(1.0 + LAST_WORDS_S)


def test_a_job_that_ended_before_its_processes_had_met_is_over(tmp_path):
    write_about(tmp_path, "1.2.3", ["launch"])
    follower = Follower(tmp_path)
    with running(tmp_path):
        assert not follower.is_over(0.0)  # it may still begin
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "observers"))
        append(tmp_path)
        for one in (follower, late := Follower(tmp_path)):
            assert not one.is_over(1.0)
    (tmp_path / "observers").unlink()
    assert Follower(tmp_path).is_over(2.0)
    assert [late.is_over(2.0), late.is_over(2.0 + LAST_WORDS_S)] == [False, True]


def test_a_run_between_two_of_its_jobs_is_not_over(tmp_path):
    """A comparison of one's own script has a job for each scheme, and each is set up anew."""
    write_about(tmp_path, "1.2.3", ["compare"])
    follower = Follower(tmp_path)
    with running(tmp_path):
        append(tmp_path, READY, *iterations(2))
        for one in (follower, late := Follower(tmp_path)):
            one.look()
            assert not one.is_over(0.0)
            assert not one.is_over(1000.0)
    assert not late.is_over(1001.0)
    assert late.is_over(1001.0 + LAST_WORDS_S)


def test_a_run_that_ended_without_a_record_of_its_own_is_over(tmp_path):
    """As a comparison of batchings, whose trainings have a directory each; one that begins just now gets a moment."""
    write_about(tmp_path, "1.2.3", ["compare"])
    follower = Follower(tmp_path)
    assert not follower.is_over(0.0)
    assert follower.is_over(LAST_WORDS_S)
    about = tmp_path / "about.json"
    about.write_text(about.read_text().replace(f"{socket.gethostname()}, ", "elsewhere, "))
    assert not Follower(tmp_path).is_over(LAST_WORDS_S), "another machine's lock may not be seen here"


def test_what_a_job_tells_after_its_socket_is_gone_is_read_first(tmp_path):
    follower = Follower(tmp_path)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "observers"))
        assert not follower.is_over(0.0)
    (tmp_path / "observers").unlink()
    append(tmp_path, READY, AbortEvent(at_s=1.0, reason="worker n1 left"))
    assert not follower.is_over(1.0)
    follower.look()
    assert not follower.is_over(1.0 + LAST_WORDS_S)  # it may be started again
    assert follower.is_over(1.0 + BETWEEN_S)


def test_a_record_that_no_command_of_nalb_began_is_followed_for_ever(tmp_path, capsys):
    """As that of torchrun, whose end nothing tells."""
    follower = Follower(tmp_path)
    follower.tell_blindness()
    append(tmp_path, READY, *iterations(2))
    follower.look()
    for _ in range(2):
        assert not follower.is_over(1e6)
        follower.tell_blindness()
    err = capsys.readouterr().err
    assert (
        err == f"nalb: {tmp_path} has no about.json, so nalb does not see when the job ends: following until Ctrl-C\n"
    )


def test_the_end_of_a_part_is_seen_by_the_file_above_it(tmp_path, capsys):
    """Of an attempt, or of one training of a comparison of batchings."""
    write_about(tmp_path, "1.2.3", ["launch"])
    part = tmp_path / "restart-1"
    part.mkdir()
    append(part, READY, *iterations(2))
    follower = Follower(part)
    follower.look()
    follower.tell_blindness()
    assert follower.is_over(0.0)
    assert capsys.readouterr().err == ""


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        Follower(tmp_path / "absent")


@pytest.mark.jobs
def test_metrics_end_with_whom_they_serve(tmp_path):
    """Also where that process is killed, and cannot end them."""
    pytest.importorskip("prometheus_client", reason="needs the extra metrics")
    (port,) = free_ports(1)
    with metrics_beside(tmp_path, None):
        pass
    with metrics_beside(tmp_path, port):
        wait_for(port, True)
    wait_for(port, False)
    code = (
        "import sys, time; from pathlib import Path; from nalb.live.following import metrics_beside\n"
        "with metrics_beside(Path(sys.argv[1]), int(sys.argv[2])): time.sleep(100)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, tmp_path, str(port)], env=os.environ)
    wait_for(port, True)
    owner.kill()
    owner.wait()
    wait_for(port, False)


def wait_for(port, is_open):
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        with socket.socket() as one:
            if (one.connect_ex(("127.0.0.1", port)) == 0) == is_open:
                return
        time.sleep(0.1)
    raise AssertionError(f"port {port} is {'closed' if is_open else 'open'}")
