"""`nalb watch` and `nalb why` over the files of a run."""

import os
import pty
import signal
import socket
import subprocess
import sys

import pytest
from msgspec import structs

from nalb.cli.main import run
from nalb.events import FailureEvent, LayoutEvent, SharedUplinkEvent, encode_line
from nalb.failures import Cause, Failure, Phase
from nalb.reporting.about_file import running, write_about
from nalb.reporting.record import record_of
from nalb.reporting.summary import origin, summarise
from tests.live.test_state import READY, iterations
from tests.reporting.paced import rates, step
from tests.reporting.runs import write_fake_run


@pytest.fixture
def run_dir(tmp_path):
    """Six iterations, of which n0's link sets the pace."""
    events = [READY, LayoutEvent(at_s=101.0, model_bytes=12_000_000), *iterations(6)]
    (tmp_path / "samples.jsonl").write_bytes(b"".join(map(encode_line, events)))
    return tmp_path


def test_why_names_what_sets_the_pace(run_dir, capsys):
    assert run(["why", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "average: n0's link (up and down) sets the pace" in out
    row = next(line.split() for line in out.splitlines() if line.strip().startswith("n0's link"))
    assert row[-3:] == ["2.000", "1.000", "measured"]
    assert run(["why", str(run_dir), "--schemes", "average", "--last", "1", "--all"]) == 0
    assert "medians of 1" in capsys.readouterr().out


def write_twice(run_dir):
    """Append a job without n3, of which n1's link sets the pace, to the record of the first one."""
    names = READY.nodes[:3]
    noticed = {"up_bytes_per_s": 1e6, "down_bytes_per_s": 1e6}
    shared = SharedUplinkEvent(at_s=100.0, iteration=4, nodes=["n0", "n1"], others=["n2", "n3"], **noticed)
    again = step(nodes=names, exchange_s=3.0, estimate=rates([18, 5, 18]), reason="least time").event
    events = [shared, structs.replace(READY, at_s=200.0, nodes=names, servers=names)]
    events += [structs.replace(again, iteration=k, at_s=202.0 + 3 * k) for k in range(5)]
    with (run_dir / "samples.jsonl").open("ab") as file:
        file.write(b"".join(map(encode_line, events)))


def test_where_a_script_was_started_again_its_last_job_is_judged_alone(run_dir, capsys):
    write_twice(run_dir)
    assert run(["why", str(run_dir)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "an iteration takes 3.000 s" in out
    assert "(medians of 3, of the last of 2 jobs)" in out
    assert "average: n1's link (up and down) sets the pace" in out
    record = record_of(run_dir)
    assert record.nodes == READY.nodes[:3]
    assert not record.shared_uplinks, "one was noticed in the first job"
    assert [row.communication_s for row in summarise(record)] == [3.0]
    assert origin(None, record.left_out).endswith("Of 2 jobs in it this report tells of the last one alone.")


def test_the_jobs_of_a_command_are_judged_together(run_dir, capsys):
    write_twice(run_dir)
    write_about(run_dir, "1", ["compare"])
    assert run(["why", str(run_dir)]) == 0
    assert "(medians of 7, of 2 jobs)" in " ".join(capsys.readouterr().out.split())
    assert record_of(run_dir).nodes == READY.nodes
    assert record_of(run_dir).shared_uplinks


def test_why_of_what_has_no_answer_is_one_line(run_dir, tmp_path, capsys):
    for words, part in (
        ([str(run_dir), "--last", "0"], "--last 0"),
        ([str(run_dir), "--schemes", "aware"], "no 'aware'"),
        ([str(tmp_path / "absent")], "no such directory"),
    ):
        assert run(["why", *words]) == 2
        err = capsys.readouterr().err
        assert part in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("command", [["why"], ["trace"], ["watch", "--once"]])
def test_an_iteration_of_no_worker_is_named_with_its_file(run_dir, capsys, command):
    with (run_dir / "samples.jsonl").open("ab") as file:
        file.write(encode_line(structs.replace(iterations(1)[0], communication_s={}, iteration_s={})))
    assert run([*command, str(run_dir)]) == 2
    told = capsys.readouterr().err
    assert "samples.jsonl, " in told
    assert "an iteration of no worker" in told


def test_a_run_of_several_trainings_names_them(tmp_path, capsys):
    write_fake_run(tmp_path / "fela", schemes=("exact",))
    assert run(["why", str(tmp_path)]) == 2
    assert f"give one of {tmp_path / 'fela'}" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["why", "trace", "report"])
def test_a_job_that_failed_before_its_first_iteration_says_why(tmp_path, capsys, command):
    failure = Failure(cause=Cause.ENDED, detail="ended with exit code 3", role="worker", node="n1", phase=Phase.START)
    for part in (tmp_path, tmp_path / "restart-1"):
        part.mkdir(exist_ok=True)
        (part / "samples.jsonl").write_bytes(encode_line(FailureEvent(at_s=1.0, failure=failure)))
    assert run([command, str(tmp_path)]) == 2
    assert (
        "has no iterations, since the job failed: phase start: worker n1 ended with exit code 3"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", ["why", "trace"])
def test_a_restarted_run_says_of_which_attempt_it_tells_and_why_others_failed(run_dir, capsys, command):
    force = ["--force"] if command == "trace" else []
    assert run([command, str(run_dir)]) == 0
    assert "restarted: " not in capsys.readouterr().out
    whole = (run_dir / "samples.jsonl").read_bytes()
    for folder, rank in ((run_dir, 0), (run_dir / "restart-1", 1), (run_dir / "restart-2", None)):
        folder.mkdir(exist_ok=True)
        failure = Failure(cause=Cause.ENDED, detail="ended with exit code 3", role="worker", node=f"n{rank}")
        ends = b"" if rank is None else encode_line(FailureEvent(at_s=200.0, failure=failure))
        (folder / "samples.jsonl").write_bytes(whole + ends)
    assert run([command, str(run_dir), *force]) == 0
    failed = (
        "the first attempt failed: worker n0 ended with exit code 3; restart-1 failed: worker n1 ended with exit code 3"
    )
    first = f"restarted: what is told here is of the first attempt alone; {failed}; {run_dir / 'restart-2'} is the newest attempt"
    assert capsys.readouterr().out.splitlines()[0] == first
    assert run([command, str(run_dir / "restart-2")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"restarted: what is told here is of restart-2 alone; {failed}"


def test_watch_prints_lines_where_there_is_no_terminal(run_dir, capsys):
    assert run(["watch", str(run_dir), "--once"]) == 0
    assert capsys.readouterr().out.startswith("nalb watch: average, iteration 6, 0.5 a second; exchange 2.000 s")
    write_about(run_dir, "1.2.3", ["launch"])
    assert run(["watch", str(run_dir), "--once"]) == 0
    assert capsys.readouterr().out.endswith("; over\n")
    assert run(["watch", str(run_dir), "--every", "0.1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nalb watch: the job is over"
    assert sorted(path.name for path in run_dir.iterdir()) == ["about.json", "samples.jsonl"]


@pytest.mark.parametrize("is_once", [False, True])
def test_watch_of_a_run_of_several_trainings_names_them(tmp_path, capsys, is_once):
    write_about(tmp_path, "1.2.3", ["compare"])
    write_fake_run(tmp_path / "off", schemes=("exact",))
    with running(tmp_path):
        assert run(["watch", str(tmp_path), *(["--once"] if is_once else [])]) == 2
    assert f"{tmp_path} has no iterations of its own: give one of {tmp_path / 'off'}" in capsys.readouterr().err


def test_watch_follows_what_no_command_of_nalb_began_until_it_is_ended(run_dir):
    words = [sys.executable, "-m", "nalb.cli.main", "watch", str(run_dir), "--every", "0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            assert "has no about.json" in watching.stderr.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                watching.wait(0.5)
            watching.send_signal(signal.SIGINT)
            out, err = watching.communicate(timeout=20)
        finally:
            watching.kill()
    assert "iteration 6" in out
    assert "is over" not in out
    assert "about.json" not in err, "it is said once"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(run_dir, number):
    ours, theirs = pty.openpty()
    words = ["-m", "nalb.cli.main", "watch", str(run_dir), "--every", "0.1"]
    with socket.socket(socket.AF_UNIX) as door, os.fdopen(ours, "rb", buffering=0) as screen:
        door.bind(str(run_dir / "observers"))
        with subprocess.Popen([sys.executable, *words], stdout=theirs, env={**os.environ, "TERM": "xterm"}) as watching:
            os.close(theirs)
            shown = b""
            while shown.count(b"iteration 6") < 2:  # drawn again, so it has begun to look
                shown += screen.read(4096)
            assert b"\x1b[?25l" in shown  # the cursor is hidden
            watching.send_signal(number)
            try:
                while part := screen.read(4096):
                    shown += part
            except OSError:  # nobody has the terminal open any more
                pass
        assert watching.returncode == 128 + number
        assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")


def test_watch_refuses_what_it_cannot_do(tmp_path, capsys):
    assert run(["watch", str(tmp_path / "absent")]) == 2
    assert run(["watch", str(tmp_path), "--every", "0"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
