"""What a user gets wrong is one line of nalb's, before anything is started or as soon as it shows."""

import importlib.util
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.cli.main import run
from nalb.failures import Cause, Phase, render
from nalb.launch.run_dir import make_run_dir
from netem.rootless import MARK
from tests.failures import noted_in, when, who
from tests.launch.conftest import START_LIMIT_S, STEPS, Launch
from tests.networks import needs_privilege

needs_mxnet = pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
NOBODY = "import time; print('trained alone', flush=True)"
CREATE = "import mxnet; mxnet.kv.create('nalb')"
NO_DATA = "open('/nowhere/fashion-mnist/train-images-idx3-ubyte.gz')"


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """(exit code, the one line) of a `nalb launch` that starts nothing."""
    code = run(["launch", *arguments])
    printed = capsys.readouterr()
    (line,) = (printed.out + printed.err).splitlines()
    return code, line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--local", "2", "--scheme", "fastest", "--", "true"],
            "--scheme 'fastest' is unknown: choose one of auto, stock",
        ),
        (["--local", "2", "--", "no-such-program"], "COMMAND 'no-such-program' is not a program here: give a path"),
        (["--local", "2", "true", "--out", "x"], "put -- before the command: nalb launch --local 4 -- python train.py"),
        (["--local", "2"], "put -- before the command"),
        (["--local", "2", "--"], "put -- before the command"),
        (
            ["--local", "2", "--scheme", "oracle", "--", "true"],
            "--scheme oracle needs the rates of a network file: add",
        ),
        (["--local", "0", "--", "true"], "--local 0: choose 1 to 64 nodes"),
        (["--local", "2", "--deadline-s", "0", "--", "true"], "--deadline-s 0: choose 1 to 86400"),
        pytest.param(
            ["--network", "wan99", "--", "true"],
            "no network file 'wan99': give a path, or one of",
            marks=needs_privilege,
        ),
        (
            ["--local", "2", "--weights", "1,2", "--subset", "1", "--", "true"],
            "--weights and --subset are of tokens: add",
        ),
        (["--local", "2", "--parallel", "dp", "--weights", "1,2", "--", "true"], "weights and subset are fela's alone"),
        (["--local", "2", "--parallel", "fela", "--subset", "1", "--", "true"], "a subset needs weights"),
        (["--local", "2", "--parallel", "fela", "--staleness", "1", "--", "true"], "nothing can be tuned between them"),
        (["--local", "2", "--parallel", "dp", "--staleness", "-1", "--", "true"], "--staleness -1: give 0 to"),
        (
            ["--local", "2", "--parallel", "fela", "--weights", "2,3", "--", "true"],
            "weights (2, 3): the first must be 1",
        ),
        (
            ["--local", "2", "--parallel", "fela", "--stragglers", "x", "--", "true"],
            "stragglers 'x': give round-robin:SEC",
        ),
        (["--local", "2", "--parallel", "fela", "--scheme", "stock", "--", "true"], "--scheme stock is MXNet alone"),
        (["--local", "2", "--parallel", "fela", "--scheme", "p3", "--", "true"], "--scheme p3 is MXNet alone"),
        (["--local", "2", "--parallel", "fela", "--batching", "lb-bsp", "--", "true"], "leave out --batching"),
        (
            ["--local", "2", "--parallel", "fela", "--scheme", "joint", "--", "true"],
            "leave out --batching and --scheme joint",
        ),
        (
            ["--hosts", "x", "--", "true", "caf\udce9"],
            "COMMAND: 'caf\\udce9' is not UTF-8 text, and goes to the hosts as",
        ),
        (
            ["--hosts", "x", "--framework", "torch", "--checkpoints", "caf\udce9", "--", "true"],
            "--checkpoints: 'caf\\udce9' is not UTF-8 text, and goes to the hosts as",
        ),
        (["--hosts", "nowhere.toml", "--", "true"], "nowhere.toml: cannot be read (No such file or directory)"),
    ],
)
def test_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    code, line = refusal(capsys, "--out", str(tmp_path / "run"), *arguments)
    assert code == 2
    assert line.startswith("nalb launch: ")
    assert says in line


# a run on hosts leaves logs alone, and a comparison of batchings that was killed the samples of its trainings
@pytest.mark.parametrize("left", ["run.json", "parallel.json", "logs", "checkpoints", "lb-bsp/samples.jsonl"])
def test_a_run_directory_that_holds_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], left: str) -> None:
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).touch()
    code, line = refusal(capsys, "--out", str(tmp_path), "--local", "1", "--", "true")
    assert code == 2
    assert "already holds a run: choose another --out" in line


def test_a_run_directory_that_takes_no_files(capsys: pytest.CaptureFixture[str]) -> None:
    code, line = refusal(capsys, "--out", "/proc/sys", "--local", "1", "--", "true")
    assert code == 3
    assert re.fullmatch(r"nalb launch: /proc/sys/about.json: .*: make room or choose another --out", line)


def test_metrics_that_nobody_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("prometheus_client", reason="needs the extra metrics")
    code, line = refusal(capsys, "--metrics", "70000", "--local", "2", "--", "true")
    assert (code, line) == (2, "nalb launch: --metrics 70000: give a port, 1 to 65535")
    code, line = refusal(capsys, "--metrics", "9464", "--local", "2", "--scheme", "stock", "--", "true")
    assert code == 2
    assert "--scheme stock tells nothing" in line
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = refusal(capsys, "--metrics", str(port), "--local", "2", "--", "true")
    assert (code, line) == (2, f"nalb launch: --metrics {port} on 127.0.0.1: Address already in use: choose another")


def test_metrics_on_a_loopback_of_the_command_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command without root starts again in namespaces of its own, which this variable marks."""
    pytest.importorskip("prometheus_client", reason="needs the extra metrics")
    monkeypatch.setenv(MARK, "1")
    code, line = refusal(capsys, "--metrics", "9464", "--network", "wan4-static", "--", "true")
    assert code == 2
    assert line.endswith("leave it out, and run `nalb metrics DIR --port 9464` beside the job")


def test_a_folder_of_another_node_is_no_run(tmp_path: Path) -> None:
    """Nodes of one job may share --out, and the first of them need not be the first to start."""
    (tmp_path / "n1").mkdir()
    for name in ("about.json", "samples.jsonl"):
        (tmp_path / "n1" / name).touch()
    (tmp_path / "about.json").touch()  # of a command that has started nothing
    assert make_run_dir(str(tmp_path)) == tmp_path


def test_runs_that_begin_in_the_same_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({make_run_dir(None) for _ in range(20)}) == len(list((tmp_path / "runs").iterdir())) == 20


@pytest.mark.parametrize("is_link", [True, False])
def test_runs_that_is_no_folder_is_named(tmp_path: Path, is_link: bool) -> None:
    runs = tmp_path / "runs"
    if is_link:
        runs.symlink_to("nowhere")
    else:
        runs.touch()
    words = ["launch", "--local", "1", "--framework", "torch", "--", "true"]
    command = [sys.executable, "-P", "-m", "nalb.cli.main", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    says = f"nalb launch: {runs}: File exists: make it a folder that you may write to, or choose another by --out\n"
    assert (done.returncode, done.stderr) == (2, says)


def test_keys_that_are_there_are_not_the_jobs_to_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "keys" / "n7.keys"
    kept.parent.mkdir(mode=0o700, parents=True)
    kept.touch()
    code, line = refusal(capsys, "--out", str(tmp_path), "--local", "2", "--encrypt", "--", "true")
    assert code == 2
    assert line.endswith("keys: no place for the job's own keys (File exists): choose another --out")
    assert kept.exists()


@pytest.mark.mxnet
@needs_mxnet
@pytest.mark.parametrize(
    ("command", "exit_code", "cause", "quotes"),  # the script's or Python's own last line
    [
        ([sys.executable, "-c", NOBODY], 1, Cause.NO_STORE, ""),
        ([sys.executable, "-c", NO_DATA], 1, Cause.ENDED, r"FileNotFoundError: .*train-images"),
        ([sys.executable, "nowhere.py"], 2, Cause.ENDED, r"can't open file .*nowhere.py"),
        (
            ["env", "-u", "DMLC_ROLE", "-u", "NALB_NODE", sys.executable, "-c", CREATE],
            1,
            Cause.ENDED,
            r"StoreError: kvstore 'nalb' needs a job, .* has no DMLC_ROLE=worker.* lacks DMLC_ROLE, NALB_NODE",
        ),
    ],
)
def test_a_command_that_cannot_train(
    launch: Launch, command: list[str], exit_code: int, cause: Cause, quotes: str
) -> None:
    job = launch("--local", "2", "--", *command)
    code, _ = job.end(START_LIMIT_S)
    assert (job.failure().cause, job.failure().role) == (cause, "worker")
    assert re.search(quotes, job.failure().detail)
    assert code == exit_code
    job.assert_nothing_left(within_s=0)


@pytest.mark.mxnet
@needs_mxnet
def test_an_error_in_ones_own_scheme_starts_no_attempt_again(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "from nalb import Scheme",
        "def decide(situation): raise ValueError('no shares')",
        "SCHEME = Scheme('wrong', decide)",
    ]
    (tmp_path / "wrong_scheme.py").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    job = launch("--local", "2", "--scheme", "wrong_scheme:SCHEME", "--max-restarts", "2", "--", *STEPS, "--steps", "8")
    assert job.end(START_LIMIT_S)[0] != 0
    assert (job.failure().cause, who(job.failure())) == (Cause.REFUSED, (None, None))
    assert "scheme wrong_scheme:SCHEME: ValueError: no shares" in job.failure().detail
    assert not (job.run_dir / "restart-1").exists()
    job.assert_nothing_left()


def test_our_output_closed_by_its_reader(tmp_path: Path) -> None:
    """`nalb launch ... | true`: what went wrong is still told."""
    shell = f"{sys.executable} -m nalb.cli.main launch --local 1 --out {tmp_path / 'run'} -- false | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 1
    failure = noted_in(tmp_path / "run")
    assert (failure.cause, who(failure), when(failure)) == (Cause.ENDED, ("worker", "n0"), (Phase.START, None))
    assert render(failure) in done.stderr


@pytest.mark.mxnet
@needs_mxnet
def test_our_output_closed_before_a_good_end(tmp_path: Path) -> None:
    """`nalb launch ... | head -1`: the job goes on, and ends as well as without."""
    nalb = [sys.executable, "-m", "nalb.cli.main", "launch", "--local", "1", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        ["bash", "-c", '"$@" | head -1; exit ${PIPESTATUS[0]}', "-", *nalb, "--", *STEPS, "--steps", "8"],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "last step" in (tmp_path / "run" / "logs" / "n0.worker.log").read_text()
