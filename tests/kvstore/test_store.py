"""The KVStore on real ps-lite processes: sums against numpy's, on loopback."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.errors import PeerError

WORKERS = Path(__file__).parent / "workers.py"
pytestmark = pytest.mark.mxnet


def run_job(tmp_path, *command, nodes=2, flags=(), timeout_s=120):
    argv = [
        sys.executable,
        "-m",
        "nalb.cli.main",
        "launch",
        "--local",
        str(nodes),
        "--out",
        str(tmp_path / "run"),
        *flags,
    ]
    return subprocess.run(
        [*argv, "--", sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(
    "cases",
    [
        "properties,broadcast,reordered,doubles,sums,half",
        "single_keys",
        "devices,changing_calls",
        "faults",
        "slots_asked_for_last",
        "stale_gradients",
    ],
)
def test_cases(tmp_path, cases):
    done = run_job(tmp_path, str(WORKERS), cases)
    assert done.returncode == 0, done.stdout + done.stderr
    for case in cases.split(","):
        for rank in (0, 1):
            assert f"{case} ok on {rank}" in done.stdout


def test_pieces_of_a_large_array_travel_at_once(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "first_sums_overlap", str(tmp_path / "mark"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_script_may_fork_amid_an_exchange(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "forks", str(tmp_path / "mark"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scheme", ["average", "exact", "elastic"])
def test_sums_are_the_same_under_every_scheme(tmp_path, scheme):
    done = run_job(tmp_path, str(WORKERS), "sums", flags=("--scheme", scheme))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("none", None),
        ("push", r"slice 3 \(keys .*: worker n0, worker n1 got"),
        ("pull", r"slice 3 \(keys .*: worker n[01] got"),
    ],
)
def test_verified_sums(tmp_path, fault, says):
    script = str(Path(__file__).with_name("verified.py"))
    done = run_job(tmp_path, script, fault, flags=("--verify-sums",))
    if says is None:
        assert done.returncode == 0, done.stdout + done.stderr
        return
    assert done.returncode == PeerError.exit_code, done.stdout + done.stderr
    assert re.search(rf"wrong sum in iteration [234]: {says}", done.stderr), done.stderr


def test_gluon_trainer_with_one_word_changed(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "gluon")
    assert done.returncode == 0, done.stdout + done.stderr


def test_several_trainers(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "several_trainers")
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_job(tmp_path / "stock", str(WORKERS), "several_trainers", flags=("--scheme", "stock"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "a second Trainer with MXNet's own dist_sync" in done.stderr, done.stderr


@pytest.mark.parametrize("scheme", ["auto", "stock"])
def test_module_with_one_word_changed(tmp_path, scheme):
    done = run_job(tmp_path, str(WORKERS), "symbolic", flags=("--scheme", scheme))
    assert done.returncode == 0, done.stdout + done.stderr


def test_numpy_arrays(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "numpy_arrays")
    assert done.returncode == 0, done.stdout + done.stderr


def test_slices_stay_whole_whatever_the_users_big_array_bound(tmp_path, monkeypatch):
    """As large as planned on their way; MXNet would split those above the bound over all servers."""
    monkeypatch.setenv("MXNET_KVSTORE_BIGARRAY_BOUND", "1000")
    done = run_job(tmp_path, "-m", "kvstore_patch.replay", "mobilenet", "--iterations", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    events = list(map(json.loads, (tmp_path / "run" / "samples.jsonl").read_text().splitlines()))
    (planned,) = (event["slice_bytes"] for event in events if event["event"] == "layout")
    *_, last = (event["rows"] for event in events if event["event"] == "samples")  # the first has direct sums too
    assert planned > 4 * 1000
    assert max(size_bytes for _, _, _, size_bytes, *_ in last) >= planned


def test_a_script_may_look_for_mxnet_before_it_imports_it(tmp_path):
    script = "import importlib.util; importlib.util.find_spec('mxnet'); import mxnet; mxnet.kv.create('nalb')"
    done = run_job(tmp_path, "-c", script, nodes=1)
    assert done.returncode == 0, done.stdout + done.stderr


def test_replay_sums_on_pyzmqs_libzmq(tmp_path):
    """Every sum of MobileNet's tensors checked, ps-lite on the modern transport."""
    done = run_job(
        tmp_path,
        "-m",
        "kvstore_patch.replay",
        "mobilenet",
        "--iterations",
        "4",
        "--verify",
        nodes=3,
        flags=("--transport", "pyzmq"),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_node_alone(tmp_path):
    done = run_job(tmp_path, "-m", "kvstore_patch.replay", "mobilenet", "--iterations", "3", "--verify", nodes=1)
    assert done.returncode == 0, done.stdout + done.stderr


def test_our_server_reads_no_pickle(tmp_path):
    """MXNet's own server runs what the network sends: there the mark appears. Ours refuses, and the job ends."""
    script, mark = str(Path(__file__).with_name("pickles.py")), tmp_path / "mark"
    run_job(tmp_path / "stock", script, str(mark), nodes=1, flags=("--scheme", "stock"))
    assert mark.exists()
    mark.rmdir()
    done = run_job(tmp_path / "ours", script, str(mark), nodes=1)
    assert done.returncode != 0
    assert "refused command 0" in done.stderr
    assert not mark.exists()


def test_no_module_of_ours_can_read_a_pickle():
    root = Path(__file__).parents[2]
    for path in [*root.glob("nalb/**/*.py"), *root.glob("kvstore_patch/**/*.py"), *root.glob("netem/**/*.py")]:
        words = {word for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
                 for word in [getattr(node, "module", None), *(alias.name for alias in node.names)]}  # fmt: skip
        assert not words & {"pickle", "cPickle", "marshal", "shelve", "dill", "recv_pyobj"}, path
        assert "recv_pyobj" not in path.read_text(), path
