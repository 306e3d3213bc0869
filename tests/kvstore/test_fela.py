"""Training with tokens on real MXNet: any weights, any subset, any policy give the parameters that one process gets."""

import json
import math
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.failures import Cause
from tests.failures import who
from tests.kvstore.test_store import run_job
from tests.launch.conftest import END_LIMIT_S, START_LIMIT_S, launch  # noqa: F401 - a fixture

WORKERS = str(Path(__file__).with_name("fela_workers.py"))
pytestmark = pytest.mark.mxnet


def test_steps_by_tokens_are_one_processs():
    script = str(Path(__file__).with_name("fela_cases.py"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("nodes", "flags", "more"),
    [
        (2, (), ("--steps", "40", "--gather-every", "5", "--late")),  # tuned; shapes change as parameters are gathered
        (3, ("--weights", "1,2,4", "--subset", "2"), ("--optimizer", "adam", "--cut")),
        (2, ("--weights", "1,1,2", "--subset", "1", "--encrypt"), ()),
        (3, ("--parallel", "hp"), ()),
        (3, ("--parallel", "mp"), ()),
        (3, ("--weights", "1,1,1", "--subset", "2", "--stragglers", "round-robin:0.2"), ()),
        (3, ("--weights", "1,1,1", "--staleness", "2", "--stragglers", "round-robin:0.1"), ("--inexact",)),
    ],
)
def test_jobs_train_as_one_process(tmp_path, nodes, flags, more):
    if "--parallel" not in flags:
        flags = (*flags, "--parallel", "fela")
    done = run_job(tmp_path, WORKERS, *more, nodes=nodes, flags=flags)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(nodes):
        assert f"rank {rank} is off by" in done.stdout
    assert ("cut 2" in done.stdout) == ("--cut" in more)


def test_the_example_prints_a_loss_for_each_epoch_without_a_job_too(tmp_path):
    for part, count in (("train", 96), ("t10k", 8)):
        for kind, shape in (("images", (count, 28, 28)), ("labels", (count,))):
            header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
            path = tmp_path / f"{part}-{kind}-idx{len(shape)}-ubyte"
            path.write_bytes(header + bytes(math.prod(shape)))  # black images of class 0
    script = str(Path(__file__).parents[2] / "examples" / "train_fela.py")
    argv = [sys.executable, script, "--alone", "--steps", "5", "--total", "32", "--data", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["epoch"], row["updates"]) for row in rows] == [(0, 3), (1, 5)]
    assert rows[0]["loss"] > rows[1]["loss"] > 0


@pytest.mark.parametrize(
    ("number", "level"), [("SIGKILL", 0), ("SIGKILL", 2), ("SIGSTOP", 3)]
)  # links are cut at 1 and 4
def test_a_worker_that_ends_within_a_token_is_named(launch, number, level):  # noqa: F811
    flags = ("--parallel", "fela", "--weights", "1,1,1", "--deadline-s", "5")
    job = launch("--local", "2", *flags, "--", sys.executable, WORKERS, "--fault", number, "--level", str(level))
    job.wait_for("ends in token")
    (iteration,) = (int(one) for one in re.findall(r"ends in token \((\d+),", job.output))
    code, _ = job.end(END_LIMIT_S)
    assert code != 0
    failure = job.failure()
    assert who(failure) == ("worker", "n1")
    assert failure.cause is (Cause.ENDED if number == "SIGKILL" else Cause.SILENT)
    assert failure.iteration == iteration >= 12  # the tokens' own count
    job.assert_nothing_left()


def test_a_training_goes_on_from_its_checkpoint(launch):  # noqa: F811
    """The conditional sub-model is rank 0's alone, and the other worker dies."""
    flags = ("--parallel", "fela", "--weights", "1,1,2", "--subset", "1", "--max-restarts", "1")
    job = launch("--local", "2", *flags, "--", sys.executable, WORKERS, "--every", "5", "--fault", "SIGKILL")
    code, _ = job.end(2 * START_LIMIT_S)
    assert code == 0, job.output
    assert any("restart 1 of 1" in line and "from iteration 10" in line for line in job.lines), job.output
    assert sum("is off by" in line for line in job.lines) == 2
