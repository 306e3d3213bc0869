"""`nalb launch` of PyTorch scripts: real DDP on an emulated network, and ranks that fail."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nalb.cli.main import run
from nalb.errors import InputError
from nalb.events import EndedEvent, IterationEvent, LayoutEvent, PlanEvent, ReadyEvent, StartedEvent
from nalb.failures import Cause
from nalb.reporting.run_file import read_events, read_run
from tests.failures import noted_in, who
from tests.launch import test_ssh
from tests.launch.conftest import END_LIMIT_S, START_LIMIT_S, Launch
from tests.launch.test_ssh import SSHD, Cluster
from tests.ports import free_ports

cluster = test_ssh.cluster  # a fixture
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install torch")
needs_ssh = pytest.mark.skipif(
    not Path(SSHD).exists() or not shutil.which("ssh"), reason="no OpenSSH server and client"
)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = [sys.executable, str(Path(__file__).with_name("torch_steps.py"))]
NETWORK = f"""
name = "torch{os.getpid()}"
[defaults]
up_mbps = 40
down_mbps = 40
[[nodes]]
name = "a"
[[nodes]]
name = "b"
up_mbps = 10
[[nodes]]
name = "c"
"""


def cache_of_torch(folder: Path) -> dict[str, str]:
    """PyTorch makes a folder where it finds temporary files, and keeps it."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--framework", "torch", "--scheme", "stock"],
            "--scheme stock is MXNet alone: PyTorch alone is --scheme gloo",
        ),
        (["--framework", "torch", "--scheme", "p3"], "PyTorch alone is --scheme gloo"),
        (["--framework", "mxnet", "--precision", "int8"], "--precision int8: fewer bytes need the plane for PyTorch"),
        (["--framework", "torch", "--scheme", "gloo", "--precision", "int8"], "sums float32: leave out --precision"),
        (["--framework", "mxnet", "--scheme", "gloo"], "MXNet alone is --scheme stock"),
        (["--framework", "torch", "--scheme", "gloo", "--encrypt"], "which does not encrypt: leave out --encrypt"),
        (["--framework", "torch", "--scheme", "gloo", "--batching", "lb-bsp"], "leave out --batching"),
        (["--framework", "torch", "--batching", "lb-bsp-federated"], "--batching lb-bsp-federated is of MXNet alone"),
        (["--framework", "torch", "--batching", "lb-bsp", "--predictor", "narx"], "--predictor narx is of MXNet alone"),
        (["--framework", "torch", "--parallel", "dp"], "--parallel is of MXNet alone"),
        (["--framework", "torch", "--transport", "pyzmq"], "--transport is of MXNet alone"),
    ],
)
def test_flags_of_the_other_framework(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert run(["launch", "--out", str(tmp_path / "run"), "--local", "2", *arguments, "--", "true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_run_directory_that_is_gone_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    command = f"until [ -e {out}/logs/n0.worker.log ]; do sleep 0.01; done; rm -r {out}"
    flags = ["--local", "1", "--framework", "torch", "--scheme", "gloo"]
    assert run(["launch", "--out", str(out), *flags, "--", "sh", "-c", command]) == 0
    assert f"all processes ended well; {out} is gone, and the logs with it" in capsys.readouterr().out


@needs_torch
@pytest.mark.root
@pytest.mark.torch
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_ddp_on_an_emulated_network(launch: Launch, tmp_path: Path) -> None:
    network = tmp_path / "network.toml"
    network.write_text(NETWORK)
    job = launch("--network", str(network), "--scheme", "exact", "--", *STEPS, "12", **cache_of_torch(tmp_path))
    code, _ = job.end(START_LIMIT_S)
    assert code == 0, job.output
    parameters = {line.partition("parameters ")[2] for line in job.lines if "parameters" in line}
    assert len(parameters) == 1, "all ranks have the same"
    events = list(read_events(job.run_dir))
    assert [sorted(one.nodes) for one in events if isinstance(one, ReadyEvent)] == [["a", "b", "c"]]
    iterations = [one for one in events if isinstance(one, IterationEvent)]
    assert len(iterations) == 12 - 2  # the first two show what an iteration is
    assert all(one.bound_s for one in iterations)
    last = [one for one in events if isinstance(one, PlanEvent)][-1]
    shares = last.shares
    assert shares is not None
    assert shares["b"] < min(shares["a"], shares["c"]), "the slow node sums least"
    names = {path.name for path in (job.run_dir / "logs").iterdir()}
    assert names == {"a.scheduler.log", "a.worker.log", "b.worker.log", "c.worker.log"}
    job.assert_nothing_left()


@needs_torch
@pytest.mark.root
@pytest.mark.torch
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_replay_under_a_scheme_that_fails_accuses_no_worker(tmp_path: Path) -> None:
    (tmp_path / "network.toml").write_text(NETWORK)
    lines = ["from nalb import Scheme", "FAILS = Scheme('fails', lambda situation: 1 / 0)"]
    (tmp_path / "own.py").write_text("\n".join(lines))
    words = ["compare", "--framework", "torch", "--network", "network.toml", "--replay", "mobilenet"]
    words += ["--schemes", "own:FAILS", "--iterations", "6", "--out", "run"]
    path = f"{Path(__file__).resolve().parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "nalb.cli.main", *words], cwd=tmp_path, capture_output=True, text=True, timeout=START_LIMIT_S,
        check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == InputError.exit_code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("nalb compare: phase plan of iteration 0: cannot be planned: scheme own:FAILS: ZeroDivision")


@needs_torch
@pytest.mark.root
@pytest.mark.torch
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_where_machines_are_far_apart_plans_come_before_they_are_waited_for(launch: Launch, tmp_path: Path) -> None:
    network = tmp_path / "network.toml"
    network.write_text(NETWORK.replace("[defaults]", "[defaults]\ndelay_ms = 25"))
    job = launch("--network", str(network), "--scheme", "exact", "--", *STEPS, "40", **cache_of_torch(tmp_path))
    code, _ = job.end(3 * START_LIMIT_S)
    assert code == 0, job.output
    assert len({line.partition("parameters ")[2] for line in job.lines if "parameters" in line}) == 1
    iterations = [one for one in read_events(job.run_dir) if isinstance(one, IterationEvent)]
    waited_s = [max(one.plan_wait_s.values()) for one in iterations]
    way_s = 0.05  # from one machine to another; a plan that is made after the iteration before it takes a round trip
    # The first plan came with the registration. A script that comes late waits less, so two of four count.
    assert sorted(waited_s[1:5])[-2] > way_s, waited_s
    assert sum(one < way_s for one in waited_s[5:]) >= 3, waited_s  # each surprise is followed by one that waits
    assert all(one.samples for one in iterations), "iterations by early plans are measured too"
    job.assert_nothing_left()


@needs_torch
@pytest.mark.root
@pytest.mark.torch
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_script_is_compared_under_gloo_and_nalb(tmp_path: Path) -> None:
    """In a comparison the coordinator of a job under gloo has scheme stock."""
    network, out = tmp_path / "network.toml", tmp_path / "run"
    network.write_text(NETWORK)
    script = [sys.executable, str(EXAMPLES / "train_torch.py"), "--steps", "8", "--width", "20"]
    done = subprocess.run(
        [sys.executable, "-m", "nalb.cli.main", "compare", "--network", str(network), "--schemes", "gloo,exact", "--rounds", "1",
         "--out", str(out), "--", *script],
        capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **cache_of_torch(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    results = read_run(out).schemes
    assert list(results) == ["gloo", "exact"]
    of_gloo, of_nalb = (json.loads(result.printed)["loss"] for result in results.values())
    assert of_nalb == pytest.approx(of_gloo, rel=1e-5)
    assert all(len(result.iteration_s) >= 3 for result in results.values())


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize(
    "where", [("--local", "1"), ("--root", "127.0.0.1:{}", "--nodes", "1", "--rank", "0", "--plain")]
)
def test_a_job_of_one_rank(launch: Launch, tmp_path: Path, where: tuple[str, ...]) -> None:
    """It sums with nobody, so it joins no coordinator."""
    (port,) = free_ports(1)
    job = launch(*(word.format(port) for word in where), "--", *STEPS, "3", **cache_of_torch(tmp_path))
    assert job.end(START_LIMIT_S)[0] == 0, job.output
    assert any("parameters" in line for line in job.lines)
    assert {type(one) for one in read_events(job.run_dir)} == {StartedEvent, EndedEvent}
    job.assert_nothing_left()


@needs_torch
@needs_ssh
@pytest.mark.root
@pytest.mark.torch
def test_ranks_on_hosts(cluster: Cluster, launch: Launch, tmp_path: Path) -> None:
    """Over ssh, encrypted, in fewer bytes; events come from the first host, whose Python has PyTorch alone."""
    command = [*STEPS, "8"]
    environment = cache_of_torch(tmp_path)
    job = cluster.launch(launch, *command, flags=("--scheme", "average", "--precision", "int8"), **environment)
    assert job.end(START_LIMIT_S)[0] == 0, job.output
    parameters = {line.partition("parameters ")[2] for line in job.lines if "parameters" in line}
    assert len(parameters) == 1, job.output
    assert any("encrypted, except what goes by gloo" in line for line in job.lines)
    iterations = [one for one in read_events(job.run_dir) if isinstance(one, IterationEvent)]
    assert len(iterations) == 8 - 2
    assert [one.precision for one in read_events(job.run_dir) if isinstance(one, LayoutEvent)] == ["int8"]
    job.assert_nothing_left()


@needs_torch
@pytest.mark.torch
@pytest.mark.parametrize("how", ["--plain", "--encrypt"])
def test_a_script_makes_a_default_group_again(launch: Launch, tmp_path: Path, how: str) -> None:
    script = [sys.executable, str(Path(__file__).with_name("torch_twice.py")), str(tmp_path)]
    job = launch("--local", "2", "--scheme", "average", how, "--", *script, **cache_of_torch(tmp_path))
    assert job.end(START_LIMIT_S)[0] == 0, job.output
    assert sum("sum 3.0 by plane 4" in line for line in job.lines) == 4, job.output
    job.assert_nothing_left()


@needs_torch
@pytest.mark.torch
def test_ranks_that_fail_are_named_and_the_job_restarts(launch: Launch, tmp_path: Path) -> None:
    """An agent is killed, then a script raises an exception, then a script is killed. The jobs are encrypted."""
    endings = ("agent", "exception", "killed")
    restarts = str(len(endings) - 1)
    script = [*STEPS, "1000", str(tmp_path / "attempts"), *endings]
    job = launch("--local", "2", "--encrypt", "--max-restarts", restarts, "--", *script, **cache_of_torch(tmp_path))
    code, _ = job.end(3 * (START_LIMIT_S + END_LIMIT_S))
    assert code == 128 + 9, job.output
    runs = [job.run_dir, *(job.run_dir / f"restart-{k}" for k in (1, 2))]
    agent, exception, killed = map(noted_in, runs)
    assert "lost its agent, which was killed by signal 9" in agent.detail
    assert (agent.cause, exception.cause, killed.cause) == (Cause.ENDED, Cause.SCRIPT, Cause.ENDED)
    assert who(agent) == who(exception) == who(killed) == ("worker", "n1")
    assert "RuntimeError: there is no more data" in exception.detail
    assert re.search("killed by SIGKILL", killed.detail)
    job.assert_nothing_left()


@needs_torch
@pytest.mark.torch
def test_a_script_with_wrong_input_does_not_restart(launch: Launch, tmp_path: Path) -> None:
    script = [*STEPS, "1000", str(tmp_path / "attempts"), "input"]
    job = launch("--local", "2", "--max-restarts", "2", "--", *script, **cache_of_torch(tmp_path))
    assert job.end(START_LIMIT_S + END_LIMIT_S)[0] == 1, job.output
    assert job.failure().cause is Cause.INPUT
    assert "InputError: 0 samples: give more data" in job.failure().detail
    assert not (job.run_dir / "restart-1").exists()
    job.assert_nothing_left()


@needs_torch
@pytest.mark.torch
def test_wrong_input_before_a_rank_has_joined_does_not_restart(launch: Launch, tmp_path: Path) -> None:
    code = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.new_group(backend='nalb')"
    script = [sys.executable, "-c", code]
    job = launch(
        "--local", "2", "--framework", "torch", "--max-restarts", "2", "--", *script, **cache_of_torch(tmp_path)
    )
    assert job.end(START_LIMIT_S + END_LIMIT_S)[0] == 1, job.output
    assert job.failure().cause is Cause.INPUT
    assert "the default group has backend gloo" in job.failure().detail
    assert not (job.run_dir / "restart-1").exists()
    job.assert_nothing_left()


@needs_torch
@pytest.mark.torch
def test_a_rank_that_leaves_early_is_named_by_those_that_fail_for_it(launch: Launch, tmp_path: Path) -> None:
    job = launch("--local", "2", "--", *STEPS, "1000", str(tmp_path / "attempts"), "leaves", **cache_of_torch(tmp_path))
    assert job.end(START_LIMIT_S)[0] != 0, job.output
    assert (job.failure().cause, who(job.failure())) == (Cause.UNEQUAL, ("agent", "n1"))
