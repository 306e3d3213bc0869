"""The KVStore on real ps-lite processes: sums against numpy's, on loopback."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.errors import PeerError
from nalb.events import IterationEvent, LayoutEvent, PlanEvent, SamplesEvent
from nalb.failures import Cause
from nalb.reporting.run_file import read_events
from tests.failures import noted_in

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
    ("cases", "scheme"),
    [
        ("properties,broadcast,reordered,doubles,sums,half", "exact"),
        ("reordered_sums,conv_input", "exact"),
        ("single_keys,slots_asked_for_last", "auto"),
        ("devices,keys_used_once,changing_calls,faults,empty_arrays,barriers", "auto"),
        ("first_sums_overlap,forks,files,layers_made_apart,buckets,module_states", "auto"),
        ("local_steps,whole_numbers,sums_while_autograd_records,fails_before_a_fork", "auto"),
        ("stale_gradients,gluon,several_trainers,symbolic,by_type,cast,numpy_arrays", "auto"),  # with one word changed
        ("sums", "elastic"),
    ],
)
def test_cases(tmp_path, cases, scheme):
    done = run_job(tmp_path, str(WORKERS), cases, str(tmp_path), flags=("--scheme", scheme))
    assert done.returncode == 0, done.stdout + done.stderr
    for case in cases.split(","):
        for rank in (0, 1):
            assert f"{case} ok on {rank}" in done.stdout


def test_optimizer_states_are_of_the_same_parameters_in_a_job_and_without_one(tmp_path):
    script = str(Path(__file__).with_name("momenta.py"))

    def alone(what):
        done = subprocess.run(
            [sys.executable, script, what, str(tmp_path)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr

    alone("save")
    done = run_job(tmp_path, script, "job", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    alone("check")


def test_a_pass_that_takes_longer_than_the_deadline_is_no_dead_link(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "slow_passes", flags=("--deadline-s", "5"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_verified_sums(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "sums", flags=("--verify-sums", "--scheme", "average"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scheme", ["average", "exact"])
def test_sums_stay_right_where_tensors_are_cut_anew_for_fast_links(tmp_path, scheme):
    """Loopback moves far more than the 21 MB/s from which on slices grow; the best of three iterations counts."""
    done = run_job(tmp_path, str(WORKERS), "several_groups", flags=("--verify-sums", "--scheme", scheme))
    assert done.returncode == 0, done.stdout + done.stderr
    events = read_events(tmp_path / "run")
    first, second, *more = (event for event in events if isinstance(event, LayoutEvent))
    assert second.alpha_bytes > first.alpha_bytes
    assert second.slices < first.slices / 2
    assert len(more) < 3
    after = [event for event in events if isinstance(event, PlanEvent) and event.iteration >= second.iteration]
    assert len(after[0].server_of_slice) == second.slices


def test_an_iteration_that_was_broken_off_is_none_of_the_record(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "breaks_off")
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = [event.iteration for event in read_events(tmp_path / "run") if isinstance(event, IterationEvent)]
    assert recorded == [0, 1, 2, 3, 5, 6], "turn 0 teaches what an iteration is, and turn 5 is broken off"


@pytest.mark.parametrize(
    "fault",
    ["push", "pull"],
)
def test_wrong_sums_are_found(tmp_path, fault):
    script = str(Path(__file__).with_name("verified.py"))
    done = run_job(tmp_path, script, fault, flags=("--verify-sums",))
    assert done.returncode == PeerError.exit_code, done.stdout + done.stderr
    failure = noted_in(tmp_path / "run")
    assert failure.cause is Cause.WRONG_SUM, done.stderr
    assert failure.iteration in (2, 3, 4)


@pytest.mark.parametrize(
    ("case", "calls"),
    [
        ("other_order", ["sum of 'loss', 1 element,", "sum of 'accuracy', 1 element,"]),
        ("other_size", ["sum of 'metric', 1 element,", "sum of 'metric', 9000 elements,"]),
        ("one_call_more", ["sum of 'stop', 1 element,"]),
        ("one_trainer", ["broadcast of 0, 1, 24 elements,", "sum of 'metric', 1 element,"]),
    ],
)
def test_unequal_calls_end_the_job_and_are_named(tmp_path, case, calls):
    script = str(Path(__file__).with_name("unequal_calls.py"))
    done = run_job(tmp_path, script, case, flags=("--scheme", "exact"))
    assert done.returncode == PeerError.exit_code, done.stdout + done.stderr
    failure = noted_in(tmp_path / "run")
    assert (failure.cause, failure.role) == (Cause.UNEQUAL, "worker")
    assert all(call in failure.detail for call in calls), failure.detail
    assert "summed" not in done.stdout, "a sum of calls that differ was handed out"


def test_a_worker_whose_sum_failed_half_way_makes_no_other_one(tmp_path):
    script = str(Path(__file__).with_name("unequal_calls.py"))
    done = run_job(tmp_path, script, "fails_half_way", flags=("--scheme", "exact"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "caught MXNetError" in done.stdout
    assert "a sum before this one failed" in noted_in(tmp_path / "run").detail
    assert "summed another" not in done.stdout


def test_mxnets_own_store_takes_one_trainer(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "several_trainers", flags=("--scheme", "stock"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "a second Trainer with MXNet's own dist_sync" in done.stderr, done.stderr


def test_module_on_mxnets_own_store(tmp_path):
    done = run_job(tmp_path, str(WORKERS), "symbolic,by_type,stock_broadcasts", flags=("--scheme", "stock"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_mxnets_own_store_is_told_where_to_update(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    done = run_job(tmp_path, str(WORKERS), "updates_on_workers", str(tmp_path), nodes=1, flags=("--scheme", "stock"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("case", "causes", "iteration"),
    [
        ("fails_unseen", {Cause.SCRIPT}, None),
        # MXNet raises the error on nalb's thread, or in the script's call where it is still within that
        ("fails_amid_an_iteration", {Cause.PROCESS, Cause.SCRIPT}, 3),
    ],
)
def test_what_fails_in_the_background_ends_the_job_and_is_told(tmp_path, case, causes, iteration):
    done = run_job(tmp_path, str(WORKERS), case, flags=("--scheme", "exact"))  # MXNet's own routing fails in the script
    assert done.returncode == 1, done.stdout + done.stderr
    failure = noted_in(tmp_path / "run")
    assert failure.cause in causes
    assert failure.role == "worker"
    assert iteration in (None, failure.iteration)
    assert "MXNetError: Check failed: is_valid: take operator" in failure.detail  # MXNet's own words


@pytest.mark.parametrize("flags", [(), ("--encrypt", "--scheme", "stock")])
def test_a_worker_without_the_shim_ends_at_once(tmp_path, flags):
    bare = "import mxnet; mxnet.kv.create('nalb')"
    script = f"import os, sys; del os.environ['LD_PRELOAD']; os.execv(sys.executable, [sys.executable, '-c', {bare!r}])"
    done = run_job(tmp_path, "-c", script, nodes=1, flags=flags)
    assert done.returncode not in (0, 4), done.stdout + done.stderr  # 4: who waits in vain for another
    assert "the shim is not preloaded" in done.stderr
    assert "LD_PRELOAD, which named it, is gone: let the command's wrapper pass LD_PRELOAD on" in done.stderr


def test_slices_stay_whole_whatever_the_users_big_array_bound(tmp_path, monkeypatch):
    """As large as planned on their way; MXNet would split those above the bound over all servers."""
    monkeypatch.setenv("MXNET_KVSTORE_BIGARRAY_BOUND", "1000")
    done = run_job(tmp_path, "-m", "kvstore_patch.roles.replay", "mobilenet", "--iterations", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    events = read_events(tmp_path / "run")
    (planned,) = (event.slice_bytes for event in events if isinstance(event, LayoutEvent))
    *_, last = (event.rows for event in events if isinstance(event, SamplesEvent))  # the first has direct sums too
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
        "kvstore_patch.roles.replay",
        "mobilenet",
        "--iterations",
        "4",
        "--verify",
        nodes=3,
        flags=("--transport", "pyzmq"),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_node_alone(tmp_path):
    done = run_job(tmp_path, "-m", "kvstore_patch.roles.replay", "mobilenet", "--iterations", "3", "--verify", nodes=1)
    assert done.returncode == 0, done.stdout + done.stderr


def test_processes_of_another_job_that_connect_to_this_one_change_nothing(tmp_path):
    """They have the ids that ps-lite gives here too, and come first."""
    done = run_job(tmp_path, str(Path(__file__).with_name("foreign_worker.py")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sums to 2") == 2


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import mxnet as mx; mx.kv.create('dist_sync')", "the script creates MXNet's own kvstore 'dist_sync'"),
        (
            "import mxnet as mx; mx.kv.create('nalb').push(0, mx.nd.ones(3))",
            "kvstore 'nalb' has no separate push and pull",
        ),
    ],
)
def test_what_the_store_cannot_do_starts_no_attempt_again(tmp_path, script, says):
    """Before a worker has a store, and with it."""
    done = run_job(tmp_path, "-c", script, flags=("--max-restarts", "2"))
    assert done.returncode != 0
    failure = noted_in(tmp_path / "run")
    assert failure.cause is Cause.INPUT
    assert says in failure.detail
    assert not (tmp_path / "run" / "restart-1").exists()


@pytest.mark.parametrize("variable", ["NALB_JOB", "NALB_ADDRESSES"])
def test_a_worker_without_the_jobs_name_is_told_what_it_lacks(tmp_path, monkeypatch, variable):
    """Processes do not hear each other where only some know the job's name."""
    monkeypatch.setenv("NALB_STARTUP_S", "8")
    argv = [sys.executable, "-m", "nalb.cli.main", "launch", "--local", "2", "--out", str(tmp_path / "run"), "--"]
    command = ["env", "-u", variable, sys.executable, str(WORKERS), "sums", str(tmp_path)]
    done = subprocess.run([*argv, *command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert noted_in(tmp_path / "run").cause is Cause.ABSENT
    assert f"lacks {variable}: have the command pass its environment on" in done.stderr


def test_our_server_reads_no_pickle(tmp_path):
    """MXNet's own server runs what the network sends: there the mark appears. Ours refuses, and the job ends."""
    script, mark = str(Path(__file__).with_name("pickles.py")), tmp_path / "mark"
    run_job(tmp_path / "stock", script, str(mark), nodes=1, flags=("--scheme", "stock"))
    assert mark.exists()
    mark.rmdir()
    done = run_job(tmp_path / "ours", script, str(mark), nodes=1)
    assert done.returncode != 0
    failure = noted_in(tmp_path / "ours" / "run")
    assert (failure.cause, failure.role) == (Cause.PROTOCOL, "server")
    assert not mark.exists()


def test_no_module_of_ours_can_read_a_pickle():
    root = Path(__file__).parents[2]
    for path in [*root.glob("nalb/**/*.py"), *root.glob("kvstore_patch/**/*.py"), *root.glob("netem/**/*.py")]:
        words = {word for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
                 for word in [getattr(node, "module", None), *(alias.name for alias in node.names)]}  # fmt: skip
        assert not words & {"pickle", "cPickle", "marshal", "shelve", "dill", "recv_pyobj"}, path
        assert "recv_pyobj" not in path.read_text(), path
