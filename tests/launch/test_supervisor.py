"""The supervisor over small processes: who is named, with which code, what is shown and logged, what is left."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from nalb.cli.main import run
from nalb.errors import InputError, JobError, MachineError
from nalb.events import AnyEvent, FailureEvent, StartedEvent
from nalb.failures import DETAIL_MOST, NOT_LEFT, Cause, Failure, JobFailed, Phase
from nalb.launch import ssh, supervisor
from nalb.launch.agent import REPORT
from nalb.launch.hosts import load_hosts
from nalb.launch.restarts import Attempt, RestartPolicy, see_through
from nalb.launch.roles import ProcessSpec
from nalb.launch.signals import ending_on_signals
from nalb.launch.supervisor import Job
from nalb.process.guardian import marked
from nalb.process.last_words import FAILURE
from tests.failures import noted_in, when, who
from tests.launch.conftest import ROOT

pytestmark = pytest.mark.jobs

ENVIRONMENT = {"NALB_STOCK": "1"}  # neither shim nor control plane
FOREVER = "import time; time.sleep(600)"
NO_PLAN = Failure(cause=Cause.PROCESS, detail="has no plan")


def spec(role: str, node: str, code: str) -> ProcessSpec:
    """A process of a line of Python; -S -E keep it quick."""
    return ProcessSpec(node, role, (sys.executable, "-S", "-E", "-c", code), ENVIRONMENT | {"DMLC_ROLE": role})


def job_of(folder: Path, specs: list[ProcessSpec], **more: object) -> Job:
    """A job of them."""
    return Job(specs, lambda one: list(one.argv), os.environ, folder / "logs", **more)  # type: ignore[arg-type]


def failure_of(folder: Path, specs: list[ProcessSpec], **more: object) -> JobFailed:
    """Everything is gone afterwards."""
    job = job_of(folder, specs, **more)
    with pytest.raises(JobFailed) as caught, job:
        job.wait()
    assert marked(job.id) == []
    assert "\n" not in str(caught.value)
    return caught.value


def telling(failure: Failure, then: str) -> str:
    """A line of Python that says the failure as processes of nalb do, for people and for the launcher."""
    told = FAILURE + msgspec.json.encode(failure).decode()
    return f"print('nalb: for people'); print({told!r}, flush=True); {then}"


def once_there(file: Path, then: str) -> str:
    """Lines of Python that wait for a file."""
    return f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.01)\n{then}"


def test_output_is_shown_with_its_origin_and_logged_apart(tmp_path: Path) -> None:
    shown: list[str] = []
    with job_of(
        tmp_path, [spec("scheduler", "n0", "print('s')"), spec("worker", "n1", "print('w')")], show=shown.append
    ) as job:
        job.wait()
    assert sorted(shown) == ["[n0 scheduler] s", "[n1 worker] w"]
    assert (tmp_path / "logs" / "n1.worker.log").read_text() == "w\n"


@pytest.mark.parametrize(
    ("code", "cause", "quotes", "exit_code"),
    [
        ("raise SystemExit(7)", Cause.ENDED, "", 7),
        ("raise ValueError('no data')", Cause.ENDED, "ValueError: no data", 1),
        (telling(NO_PLAN, "print('x'); raise SystemExit(5)"), Cause.PROCESS, NO_PLAN.detail, 5),
        ("import os; os.kill(os.getpid(), 15)", Cause.ENDED, "SIGTERM", 143),
        ("import os; print('Check failed', flush=True); os.abort()", Cause.ENDED, "Check failed", 134),
    ],
)
def test_the_first_failure_is_named(tmp_path: Path, code: str, cause: Cause, quotes: str, exit_code: int) -> None:
    """With its own last words, or with the last line of its output."""
    error = failure_of(tmp_path, [spec("scheduler", "n0", FOREVER), spec("worker", "n1", code)])
    assert (error.failure.cause, who(error.failure), error.exit_code) == (cause, ("worker", "n1"), exit_code)
    assert error.failure.detail.endswith(quotes)
    assert error.where.endswith("n1.worker.log")
    assert FAILURE not in (tmp_path / "logs" / "n1.worker.log").read_text()


@pytest.mark.parametrize("role", ["worker", "server"])
def test_who_fails_while_we_look_has_not_ended_well(tmp_path: Path, role: str) -> None:
    """All end after the look for failures and before the look for who has ended."""

    class LateJob(Job):
        def _check_stopped(self) -> None:
            while any(child.poll() is None for child in self.children):
                time.sleep(0.01)

    codes = dict.fromkeys(("server", "worker"), "import time; time.sleep(0.3)")
    codes[role] += "; raise SystemExit(3)"
    specs = [spec(one, "n1", code) for one, code in codes.items()]
    job = LateJob(specs, lambda one: list(one.argv), os.environ, tmp_path / "logs", has_joined=lambda: role == "server")
    with pytest.raises(JobFailed) as caught, job:
        job.wait()
    assert (who(caught.value.failure), caught.value.exit_code) == ((role, "n1"), 3)


def test_a_failure_that_does_not_say_when_it_came_gets_the_jobs_moment(tmp_path: Path) -> None:
    """What the launcher tells where no coordinator does ends with the same failure."""
    told: list[AnyEvent] = []
    specs = [spec("server", "n1", "pass"), spec("worker", "n1", "import time; time.sleep(0.5); raise SystemExit(3)")]
    failure = failure_of(tmp_path, specs, moment=lambda: (Phase.PLAN, 4), tell=told.append).failure
    assert (when(failure), who(failure)) == ((Phase.PLAN, 4), ("worker", "n1"))
    starts, ends, last = told[:2], told[2:-1], told[-1]
    assert [(type(one), one.role) for one in starts] == [(StartedEvent, "server"), (StartedEvent, "worker")]
    assert {(one.role, one.node): one.exit_code for one in ends} == {("server", "n1"): 0, ("worker", "n1"): 3}
    assert isinstance(last, FailureEvent)
    assert last.failure == failure
    said = telling(replace(NO_PLAN, phase=Phase.FORWARD, iteration=3), "raise SystemExit(3)")
    failure = failure_of(tmp_path, [spec("worker", "n1", said)], moment=lambda: (Phase.PLAN, 4)).failure
    assert when(failure) == (Phase.FORWARD, 3)


def test_a_long_last_line_can_be_read_from_the_runs_file(tmp_path: Path) -> None:
    def fail(attempt: Attempt) -> None:
        raise failure_of(
            attempt.run_dir, [spec("worker", "n1", f"print('x' * {2 * DETAIL_MOST}); raise SystemExit(3)")]
        )

    with pytest.raises(JobFailed) as caught:
        see_through(fail, tmp_path, [], RestartPolicy(0, None, None), set, print)
    assert noted_in(tmp_path) == caught.value.failure
    assert caught.value.failure.detail.startswith("exited with 3: xxx")


def test_a_python_without_the_scripts_framework_says_what_to_do(tmp_path: Path) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'torch'\")"
    failure = failure_of(tmp_path, [spec("worker", "n1", missing)]).failure
    assert failure.detail.endswith("No module named 'torch': pip install torch there, or name another Python")


def test_those_that_repeat_the_verdict_are_not_the_culprit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CULPRIT_S", 20.0)  # a busy machine starts the culprit late; the wait ends with it
    verdict = telling(Failure(cause=Cause.SCRIPT, detail="failed", role="worker", node="n2"), "raise SystemExit(4)")
    error = failure_of(
        tmp_path,
        [
            spec("scheduler", "n0", verdict),
            spec("worker", "n2", "import time; time.sleep(0.6); raise IndexError('out')"),
        ],
    )
    assert (who(error.failure), error.exit_code) == (("worker", "n2"), 1)
    assert error.failure.detail.endswith("IndexError: out")


@pytest.mark.parametrize(
    "verdict",
    [
        Failure(cause=Cause.UNEQUAL, detail="left after 100 sums", role="worker", node="n2"),
        Failure(cause=Cause.UNREACHABLE, detail="has no answer from n1", role="agent", node="n2"),
        Failure(cause=Cause.STUCK, detail="sums are missing", phase=Phase.EXCHANGE, iteration=3),
        Failure(cause=Cause.ABSENT, detail="only 1 of 2 processes came", phase=Phase.START),
    ],
)
def test_a_worker_that_ends_by_an_exception_may_repeat_the_verdict(tmp_path: Path, verdict: Failure) -> None:
    """Whether or not the verdict says whose fault it is."""
    repeats = spec("worker", "n1", telling(verdict, "raise SystemExit(1)"))
    error = failure_of(tmp_path, [repeats, spec("worker", "n2", "pass")])
    assert (error.failure, error.exit_code) == (verdict, 1)


@pytest.mark.parametrize(
    ("first", "code", "named"),
    [
        ("raise SystemExit(1)", 4, ("worker", "n2")),
        ("raise SystemExit(4)", 4, ("worker", "n2")),
        ("import os; os.abort()", 134, ("worker", "n1")),
    ],
)
def test_who_ends_without_a_word_is_no_culprit_where_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, code: int, named: tuple[str, str]
) -> None:
    """As workers whose stderr goes to a file: what they tell the launcher goes there too."""
    monkeypatch.setattr(supervisor, "SETTLE_S", 5.0)  # a busy machine ends the scheduler late
    monkeypatch.setattr(supervisor, "CULPRIT_S", 20.0)
    silent = Failure(cause=Cause.SILENT, detail="is silent", role="worker", node="n2", phase=Phase.FORWARD, iteration=3)
    ready = tmp_path / "ready"
    late = f"import time; open({str(ready)!r}, 'w').close(); time.sleep(0.1); "
    verdict = spec("scheduler", "n0", late + telling(silent, "raise SystemExit(4)"))
    stopped = spec("worker", "n2", "import os; os.kill(os.getpid(), 19)")
    error = failure_of(tmp_path, [spec("worker", "n1", once_there(ready, first)), verdict, stopped])
    assert (who(error.failure), error.exit_code) == (named, code)


@pytest.mark.parametrize("named", ["n1", "n2"])
def test_the_first_to_end_without_a_word_is_the_culprit_where_one_of_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Its end may break a connection of the other's, which tells the coordinator first."""
    monkeypatch.setattr(supervisor, "SETTLE_S", 1.0)
    ended = tmp_path / "ended"
    verdict = Failure(cause=Cause.SCRIPT, detail="failed", role="worker", node=named)
    codes = {
        "n0": telling(verdict, "raise SystemExit(4)"),
        "n1": f"import os; open({str(ended)!r}, 'w').close(); os._exit(7)",
        "n2": "raise SystemExit(1)",
    }
    codes |= {node: once_there(ended, f"time.sleep(0.3); {codes[node]}") for node in ("n0", "n2")}
    error = failure_of(tmp_path, [spec("scheduler" if node == "n0" else "worker", node, codes[node]) for node in codes])
    assert (error.failure.cause, who(error.failure), error.exit_code) == (Cause.ENDED, ("worker", "n1"), 7)


def test_the_verdict_is_the_answer_where_no_culprit_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CULPRIT_S", 0.5)  # however long nobody ends
    silent = Failure(cause=Cause.SILENT, detail="is silent", role="worker", node="n2", phase=Phase.FORWARD, iteration=3)
    code = telling(silent, "raise SystemExit(4)")
    error = failure_of(tmp_path, [spec("scheduler", "n0", code), spec("worker", "n2", FOREVER)])
    assert (error.failure, error.exit_code) == (silent, 4)
    assert error.where.endswith(str(tmp_path / "logs"))


def test_a_worker_that_ended_with_0_and_is_silent_has_not_left(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    silent = Failure(cause=Cause.SILENT, detail="is silent", role="worker", node="n2", phase=Phase.FORWARD, iteration=3)
    code = once_there(ended, telling(silent, "raise SystemExit(4)"))
    ends = f"import os; open({str(ended)!r}, 'w').close(); os._exit(0)"
    specs = [spec("scheduler", "n0", code), spec("worker", "n2", ends), spec("worker", "n3", FOREVER)]
    error = failure_of(tmp_path, specs)
    assert error.failure == replace(silent, cause=Cause.ENDED, detail=NOT_LEFT)


def test_a_worker_that_ended_with_0_and_is_lost_by_its_agent_has_not_left(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    lost = Failure(cause=Cause.ENDED, detail="lost its training process", role="agent", node="n2", iteration=3)
    code = once_there(ended, telling(lost, "raise SystemExit(4)"))
    ends = f"import os; open({str(ended)!r}, 'w').close(); os._exit(0)"
    error = failure_of(tmp_path, [spec("scheduler", "n0", code), spec("worker", "n2", ends)])
    assert error.failure == replace(lost, role="worker", detail=NOT_LEFT)


def test_a_worker_that_an_agent_has_lost_is_told_by_its_own_last_words(tmp_path: Path) -> None:
    lost = Failure(cause=Cause.ENDED, detail="lost its training process", role="agent", node="n2", iteration=3)
    aborts = telling(lost, "print('no such kernel', flush=True); import os; os.abort()")
    error = failure_of(tmp_path, [spec("worker", "n2", aborts)])
    assert error.failure == replace(lost, role="worker", detail="was killed by SIGABRT: no such kernel")


def test_scripts_that_hear_nothing_from_a_stopped_coordinator_are_not_the_culprits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "CULPRIT_S", 0.5)
    specs = [spec("scheduler", "n0", "import os; os.kill(os.getpid(), 19)")]
    for node in ("n1", "n2"):
        told = Failure(cause=Cause.NO_COORDINATOR, detail="has heard nothing", role="agent", node=node, iteration=3)
        specs.append(spec("worker", node, "import time; time.sleep(0.5); " + telling(told, "raise SystemExit(1)")))
    error = failure_of(tmp_path, specs)
    assert (error.failure.cause, error.exit_code) == (Cause.NO_COORDINATOR, 1)
    assert error.failure.detail == "has heard nothing (scheduler n0 stopped by a signal)"


@pytest.mark.parametrize("cause", [Cause.SILENT, Cause.REFUSED, Cause.UNEQUAL, Cause.UNREACHABLE])
def test_the_coordinators_verdict_says_more_than_who_hears_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Cause
) -> None:
    monkeypatch.setattr(supervisor, "SETTLE_S", 1.0)
    ended = tmp_path / "ended"
    deaf = Failure(cause=Cause.NO_COORDINATOR, detail="has heard nothing", role="agent", node="n2")
    verdict = Failure(cause=cause, detail="is the reason", role="agent", node="n2")
    first = f"import os; open({str(ended)!r}, 'w').close(); " + telling(deaf, "raise SystemExit(1)")
    others = once_there(ended, "time.sleep(0.3); " + telling(verdict, "raise SystemExit(1)"))
    error = failure_of(tmp_path, [spec("worker", "n1", others), spec("worker", "n2", first)])
    assert error.failure == verdict


def test_a_coordinator_that_ends_without_words_is_the_culprit_for_who_hears_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SETTLE_S", 1.0)
    ended = tmp_path / "ended"
    deaf = Failure(cause=Cause.NO_COORDINATOR, detail="has heard nothing", role="agent", node="n1")
    first = f"import os; open({str(ended)!r}, 'w').close(); raise ValueError('of the coordinator')"
    others = once_there(ended, "time.sleep(0.3); " + telling(deaf, "raise SystemExit(1)"))
    error = failure_of(tmp_path, [spec("scheduler", "n0", first), spec("worker", "n1", others)])
    assert (error.failure.role, error.failure.node) == ("scheduler", "n0")


def test_an_agent_that_is_silent_beside_a_worker_that_ended_with_0_is_named_itself(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    silent = Failure(cause=Cause.SILENT, detail="is silent", role="agent", node="n2", iteration=3)
    code = once_there(ended, telling(silent, "raise SystemExit(4)"))
    ends = f"import os; open({str(ended)!r}, 'w').close(); os._exit(0)"
    error = failure_of(tmp_path, [spec("scheduler", "n0", code), spec("worker", "n2", ends)])
    assert error.failure == silent


def test_others_that_a_signal_has_stopped_are_told_with_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "CULPRIT_S", 0.5)
    silent = Failure(cause=Cause.SILENT, detail="is silent", role="worker", node="n2")
    stopped = "import os; os.kill(os.getpid(), 19)"
    late = "import time; time.sleep(0.5); " + telling(silent, "raise SystemExit(4)")
    specs = [spec("scheduler", "n0", late), spec("worker", "n2", stopped), spec("server", "n3", stopped)]
    error = failure_of(tmp_path, specs)
    assert (error.failure.cause, who(error.failure)) == (Cause.SILENT, ("worker", "n2"))
    assert [name in error.failure.detail for name in ("server n3", "worker n2", "scheduler n0")] == [True, False, False]


def test_who_is_stopped_while_all_others_have_left_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "STOPPED_GRACE_S", 60.0)  # the coordinator's verdict comes first
    lingering = Failure(cause=Cause.LINGERING, detail="ps-lite has not ended", phase=Phase.END)
    told = tmp_path / "told"
    waits = spec("scheduler", "n0", once_there(told, telling(lingering, "raise SystemExit(4)")))
    stopped = ("-S", "-E", "-c", "import os; os.kill(os.getpid(), 19)")
    impatient = ENVIRONMENT | {"DMLC_ROLE": "worker", "NALB_DEADLINE_S": "1"}
    worker = ProcessSpec("n2", "worker", (sys.executable, *stopped), impatient)
    job = job_of(tmp_path, [waits, worker, spec("server", "n2", FOREVER)])
    with job:
        while job.stopped_s(job.children[1]) < 0.5:
            assert not job.finished()
            time.sleep(0.01)
        told.touch()
        with pytest.raises(JobFailed) as caught:
            job.wait()
    failure = caught.value.failure
    assert (failure.cause, who(failure), when(failure)) == (Cause.STOPPED, ("worker", "n2"), (Phase.END, None))
    assert lingering.detail in failure.detail


def test_a_reader_that_fails_ends_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the process would wait for ever for somebody who reads its output."""

    def fail(_descriptor: int) -> None:
        raise MemoryError

    monkeypatch.setattr(supervisor, "pieces_of", fail)
    job = job_of(tmp_path, [spec("worker", "n1", FOREVER)])
    with pytest.raises(MemoryError), job:
        job.wait()
    assert marked(job.id) == []


def test_workers_that_never_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "AFTER_WORKERS_S", 0.2)
    monkeypatch.setattr(supervisor, "JOINED_S", 0.2)
    specs = [spec("scheduler", "n0", FOREVER), spec("worker", "n1", "pass")]
    failure = failure_of(tmp_path, specs).failure
    assert (failure.cause, who(failure), when(failure)) == (Cause.NO_STORE, (None, None), (Phase.END, None))
    failure = failure_of(tmp_path, specs, has_joined=lambda: False).failure
    assert (failure.cause, who(failure), when(failure)) == (Cause.NO_STORE, ("worker", "n1"), (Phase.START, None))


def test_a_report_that_is_held_up_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class LateReports(Job):
        lag_s = 60.0

    monkeypatch.setattr(supervisor, "AFTER_WORKERS_S", 0.1)
    specs = [spec("scheduler", "n0", "import time; time.sleep(1)"), spec("worker", "n1", "pass")]
    with LateReports(specs, lambda one: list(one.argv), os.environ, tmp_path / "logs") as job:
        job.wait()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_job_that_does_not_end_after_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """All have joined, so nobody is told to create a KVStore."""
    monkeypatch.setattr(supervisor, "AFTER_WORKERS_S", 0.2)
    go = tmp_path / "go"
    worker = spec("worker", "n1", once_there(go, ""))
    specs = [spec("scheduler", "n0", FOREVER), spec("server", "n0", FOREVER), worker]
    with job_of(tmp_path, specs, has_joined=lambda: True) as job:
        if is_stopped:
            os.kill(job.children[1].popen.pid, signal.SIGSTOP)
        go.touch()
        with pytest.raises(JobFailed) as caught:
            job.wait()
    failure = caught.value.failure
    expected = (Cause.STOPPED, ("server", "n0")) if is_stopped else (Cause.LINGERING, (None, None))
    assert ((failure.cause, who(failure)), when(failure)) == (expected, (Phase.END, None))
    assert "the command must" not in failure.detail


@pytest.mark.parametrize("after_s", [0.0, 0.3])
def test_a_signal_hides_no_failure_and_waits_for_the_end_of_all(tmp_path: Path, after_s: float) -> None:
    """The user who sees a script's error presses Ctrl-C while the launcher still ends the other processes."""

    def press(event: AnyEvent) -> None:
        if isinstance(event, FailureEvent):
            threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT)).start()

    stubborn = f"import signal; signal.signal(15, signal.SIG_IGN); {FOREVER}"
    failing = "import time; time.sleep(0.5); raise ValueError('no data')"
    jobs: list[Job] = []

    def run_once(attempt: Attempt) -> None:
        specs = [spec("scheduler", "n0", stubborn), spec("worker", "n1", failing)]
        jobs.append(job_of(attempt.run_dir, specs, tell=press))
        with jobs[0] as job:
            job.wait()

    says = r"^ended by SIGINT, .*, which had failed: worker n1 exited with 1: ValueError: no data; its log: "
    with pytest.raises(JobError, match=says) as caught, ending_on_signals():
        see_through(run_once, tmp_path, [], RestartPolicy(3, None, None), set, print)
    assert (caught.value.exit_code, who(noted_in(tmp_path))) == (130, ("worker", "n1"))
    assert [marked(job.id) for job in jobs] == [[]]


SIGNAL_AMID_A_FORK = """
import os, signal
from nalb.launch.processes import start_here
from nalb.launch.roles import ProcessSpec
from nalb.launch.signals import ending_on_signals
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
with ending_on_signals():
    start_here(ProcessSpec("n0", "worker", ("true",), {"RANK": "0"}), ["true"], os.environ, "job")
    print("goes on")
"""


def test_a_signal_that_comes_while_a_process_is_started_ends_the_job() -> None:
    done = subprocess.run([sys.executable, "-c", SIGNAL_AMID_A_FORK], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith("JobError: ended by SIGTERM, with every process of the job")


def test_what_is_wrong_with_the_place_ends_the_job(tmp_path: Path) -> None:
    def check() -> None:
        if shown:
            raise MachineError("the delay line has ended")

    shown: list[str] = []
    job = job_of(
        tmp_path, [spec("worker", "n0", f"print('up', flush=True); {FOREVER}")], show=shown.append, check=check
    )
    with pytest.raises(MachineError, match="the delay line has ended"), job:
        job.wait()
    assert marked(job.id) == []


def test_what_a_worker_detached_ends_too(tmp_path: Path) -> None:
    detached = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    with job_of(tmp_path, [spec("worker", "n0", detached)]) as job:
        job.wait()
        end_s = time.monotonic() + 10
        while not marked(job.id) and time.monotonic() < end_s:
            time.sleep(0.01)  # what it detached shows no environment until its exec is through
        assert len(marked(job.id)) == 1
    assert marked(job.id) == []


def test_what_cleared_its_environment_and_has_a_session_of_its_own_ends_too(tmp_path: Path) -> None:
    """Of two jobs that live together, each ends its own."""
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], env={}, start_new_session=True).pid)"
    pids: list[int] = []

    def show(line: str) -> None:
        pids.append(int(line.rpartition(" ")[2]))

    with job_of(tmp_path / "a", [spec("worker", "n0", code)], show=show) as first:
        while not pids or first.children[0].poll() is None:
            time.sleep(0.01)
        with job_of(tmp_path / "b", [spec("worker", "n0", code)], show=show) as second:
            second.wait()
            while len(pids) < 2:
                time.sleep(0.01)
        assert [Path(f"/proc/{pid}").exists() for pid in pids] == [True, False]
    assert not Path(f"/proc/{pids[0]}").exists()


def test_orphans_of_a_worker_leave_no_zombies_while_the_job_goes_on(tmp_path: Path) -> None:
    shown: list[str] = []
    orphan = f"import os; os.system('setsid sleep 600 & echo $!'); {FOREVER}"

    def has_gone() -> bool:
        return bool(shown) and not Path("/proc", shown[0].rpartition(" ")[2]).exists()

    def end_it(line: str) -> None:
        os.kill(int(line.rpartition(" ")[2]), signal.SIGKILL)
        shown.append(line)

    with job_of(tmp_path, [spec("worker", "n0", orphan)], show=end_it) as job:
        end_s = time.monotonic() + 20
        while not has_gone():
            assert not job.finished()
            assert time.monotonic() < end_s
            time.sleep(0.01)


KILL_INIT = """
import os
from nalb.process.guardian import kill_found
os.setuid(65534)
looks = []
print(kill_found(lambda: looks.append(0) or [1]), len(looks))
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to become another user")
def test_processes_of_another_user_are_not_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", KILL_INIT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[1] 2\n"


def test_what_ps_lite_reads_is_the_jobs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PORT", "DMLC_LOCAL", "PS_RESEND", "PS_VERBOSE"):
        monkeypatch.setenv(name, "1")
    shown: list[str] = []
    show = "import os; print(*sorted(name for name in os.environ if name.startswith(('PORT', 'DMLC_', 'PS_'))))"
    with job_of(tmp_path, [spec("worker", "n0", show)], show=shown.append) as job:
        job.wait()
    assert shown == ["[n0 worker] DMLC_ROLE PS_VERBOSE"]


def test_a_process_that_ignores_sigterm_or_is_stopped_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.Job, "term_grace_s", 0.2)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    shown: list[str] = []
    with job_of(tmp_path, [spec("server", "n0", stubborn), spec("worker", "n0", stubborn)], show=shown.append) as job:
        while len(shown) < 2:
            time.sleep(0.01)
        os.kill(job.children[1].popen.pid, signal.SIGSTOP)
    assert [child.popen.returncode for child in job.children] == [-9, -9]


def test_a_process_that_is_stopped_before_all_have_met_ends_the_job(tmp_path: Path) -> None:
    """No coordinator hears of it. A pause shorter than the deadline does no harm."""
    waiting = "import time; print('up', flush=True); time.sleep(600)"
    one = spec("worker", "n1", waiting)
    one = ProcessSpec(one.node, one.role, one.argv, one.environment | {"NALB_DEADLINE_S": "0.6"})
    shown: list[str] = []
    job = job_of(tmp_path, [one], show=shown.append, has_joined=lambda: False)
    with job:
        while not shown:
            time.sleep(0.01)
        pid = job.children[0].popen.pid
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            assert not job.finished()
            os.kill(pid, signal.SIGCONT)
            assert not job.finished()
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(JobFailed) as caught:
            job.wait()
    failure = caught.value.failure
    assert (failure.cause, who(failure), when(failure)) == (Cause.STOPPED, ("worker", "n1"), (Phase.START, None))
    assert caught.value.exit_code == 4
    assert marked(job.id) == []


def test_a_process_that_netems_duty_cycle_stops_does_no_harm(tmp_path: Path) -> None:
    """An idle one is stopped and woken without using CPU time, and may be found stopped at each look."""
    one = spec("worker", "n1", "import time; print('up', flush=True); time.sleep(600)")
    one = ProcessSpec(one.node, one.role, one.argv, one.environment | {"NALB_DEADLINE_S": "0.3"})
    shown: list[str] = []
    with job_of(tmp_path, [one], show=shown.append, has_joined=lambda: False, are_paced=True) as job:
        while not shown:
            time.sleep(0.01)
        os.kill(job.children[0].popen.pid, signal.SIGSTOP)
        end_s = time.monotonic() + 1
        while time.monotonic() < end_s:
            assert not job.finished()
            time.sleep(0.05)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    missing = ProcessSpec("n1", "worker", ("no-such-program",), ENVIRONMENT | {"DMLC_ROLE": "worker"})
    job = job_of(tmp_path, [spec("scheduler", "n0", FOREVER), missing])
    with pytest.raises(InputError, match=r"worker n1: cannot start 'no-such-program': No such file"), job:
        pass
    assert marked(job.id) == []


@pytest.mark.parametrize(
    ("enough_for", "says"), [(0, "the job's guardian cannot be started"), (1, "worker n1 cannot be started")]
)
def test_no_file_descriptor_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enough_for: int, says: str
) -> None:
    popen, started = subprocess.Popen, []

    def scarce(*args, **options):
        if len(started) == enough_for:
            raise OSError(errno.EMFILE, "Too many open files")
        started.append(popen(*args, **options))
        return started[-1]

    job = job_of(tmp_path, [spec("worker", "n1", FOREVER)])
    monkeypatch.setattr(subprocess, "Popen", scarce)
    with pytest.raises(MachineError, match=rf"^{says} \(Too many open files\): raise ulimit -n"), job:
        pass
    assert marked(job.id) == []


def test_no_thread_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "log-n1.worker":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    job = job_of(tmp_path, [spec("server", "n1", FOREVER), spec("worker", "n1", FOREVER)])
    with pytest.raises(MachineError, match=r"output of worker n1 cannot be started .*: raise ulimit -u"), job:
        pass
    assert marked(job.id) == []


def test_agents_hear_of_the_launcher_while_others_are_still_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many hosts the first agent's silence would be over before the last one is started."""
    monkeypatch.setattr(ssh, "SIGN_OF_LIFE_S", 0.01)

    class LocalAgents(ssh.RemoteJob):
        def start(self, spec: ProcessSpec) -> ssh.RemoteProcess:
            if self.children:
                self.children[0].popen.wait(10)
                raise MachineError("no more")
            answer_and_read = ["sh", "-c", 'echo "$1"; exec head -c 1', "-", REPORT + '{"ready":1}']
            reader = subprocess.Popen(answer_and_read, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.children.append(child := ssh.RemoteProcess(spec, reader, self._hosts.host(spec.node)))
            return child

    (tmp_path / "hosts.toml").write_text("[[hosts]]\nname = 'a'\naddress = '10.9.0.1'\n")
    hosts = load_hosts(tmp_path / "hosts.toml")
    job = LocalAgents([spec("worker", "a", ""), spec("server", "a", "")], hosts, {}, log_dir=tmp_path / "logs")
    with pytest.raises(MachineError, match="no more"), job:
        pass
    pulses = [thread for thread in threading.enumerate() if thread.name == "signs-of-life"]
    for pulse in pulses:
        pulse.join(10)
        assert not pulse.is_alive()


@pytest.mark.parametrize(("directory", "means"), [("~", ""), ("~/", ""), ("~/a job", "/a job")])
def test_a_home_in_the_hosts_file_is_the_hosts(tmp_path: Path, directory: str, means: str) -> None:
    (tmp_path / "a job").mkdir()
    (tmp_path / "hosts.toml").write_text(f"[[hosts]]\nname = 'a'\naddress = '127.0.0.1'\ndirectory = '{directory}'\n")
    (host,) = load_hosts(tmp_path / "hosts.toml").hosts
    command = ["sh", "-c", ssh.remote_command(host, ["pwd"])]
    found = subprocess.check_output(command, env={**os.environ, "HOME": str(tmp_path)}, text=True)
    assert found == f"{tmp_path}{means}\n"


def test_a_host_that_answers_ssh_and_never_lets_in_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "hosts.toml").write_text("[[hosts]]\nname = 'a'\naddress = '127.0.0.1'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "ENTER_S", 0.2)
    assert ssh.unreachable(load_hosts(tmp_path / "hosts.toml").hosts) == {"a"}


@pytest.mark.parametrize("flag", ["--checkpoints", "--predictor-models"])
def test_the_home_of_nobody(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    networks = ["--batching", "lb-bsp", "--predictor", "narx"]
    assert run(["launch", "--local", "1", *networks, flag, "~no-such-user/x", "--", "true"]) == 2
    assert capsys.readouterr().err.startswith(f"nalb launch: {flag} ~no-such-user/x: ")


SHOWN = r"""
import sys
from pathlib import Path
from nalb.launch.supervisor import print_line
from tests.launch.test_supervisor import job_of, spec
code = r"import sys; sys.stdout.buffer.write(('\u2588\n' + 'x' * 70000 + '\ny\n').encode())"
with job_of(Path(sys.argv[1]), [spec("worker", "n0", code)], show=print_line) as job:
    job.wait()
print_line("nalb launch: all ended well")
"""


@pytest.mark.parametrize("reader", ["cat", "true"])
def test_what_cannot_be_shown_ends_neither_the_showing_nor_the_job(tmp_path: Path, reader: str) -> None:
    """A character that stdout does not have, and a reader that went away."""
    done = subprocess.run(
        ["bash", "-c", f'"$@" | {reader}; exit ${{PIPESTATUS[0]}}', "-", sys.executable, "-c", SHOWN, str(tmp_path)],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:1] + lines[-2:] == (
        ["[n0 worker] ?", "[n0 worker] y", "nalb launch: all ended well"] if reader == "cat" else []
    )
    log = (tmp_path / "logs" / "n0.worker.log").read_text(encoding="utf-8")
    assert (log[:2], log[-3:]) == ("\u2588\n", "\ny\n")
