"""`nalb compare` and `nalb report` for real: a job on an emulated network, its run directory, and bad input."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from msgspec import UNSET

from nalb.cli.main import run
from nalb.compare.comparison import BLOCK, turns
from nalb.errors import InputError, MachineError
from nalb.events import IterationEvent, LayoutEvent, PlanEvent
from nalb.launch.ports import free_pair
from nalb.protocol.wire import FAR_S
from nalb.reporting.about_file import read_about
from nalb.reporting.parallel_file import read_parallels
from nalb.reporting.run_file import read_events, read_run
from tests.networks import needs_privilege


def nalb(*words, timeout_s=240):
    return subprocess.run(
        [sys.executable, "-m", "nalb.cli.main", *words],
        capture_output=True, text=True, timeout=timeout_s, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


OWN_TRAINING = Path(__file__).resolve().parents[1] / "launch" / "own_training.py"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAME = f"c{os.getpid()}"  # of this run alone: networks are known by name on the whole machine
NETWORK = f"""
name = "{NAME}"
[defaults]
queue_ms = 50
up_mbps = 200
down_mbps = 200
[[nodes]]
name = "n0"
[[nodes]]
name = "n1"
[[nodes]]
name = "n2"
up_mbps = 60
down_mbps = 60
"""


@pytest.mark.mxnet
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_comparison_leaves_a_run_that_the_report_draws(tmp_path, capsys):
    (tmp_path / "net.toml").write_text(NETWORK)
    out = tmp_path / "run"
    schemes = ["stock", "average", "elastic", "aware", "exact", "oracle"]
    with free_pair("127.0.0.1") as port:
        done = nalb("compare", "--network", str(tmp_path / "net.toml"), "--replay", "mobilenet", "--metrics", str(port),
                    "--schemes", ",".join(schemes), "--iterations", "3", "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert f"nalb metrics: http://127.0.0.1:{port}/metrics has {out}" in lines
    with socket.socket() as one:
        assert one.connect_ex(("127.0.0.1", port)) != 0  # it ended with the job
    assert (
        sum("stock, average, elastic, aware, exact and oracle take turns on the same network" in line for line in lines)
        == 1
    )
    rounds = [line for line in lines if line.startswith("nalb compare: round ")]
    assert [line.split(":")[1] for line in rounds] == [f" round {number} of 3" for number in (1, 2, 3)]
    assert all(f"{scheme} " in line for scheme in schemes for line in rounds), "all side by side"
    raw = json.loads((out / "run.json").read_text())
    assert set(raw) == {"network", "workload", "nodes", "model_bytes", "bound_s", "goodput_bound_s", "schemes"}
    assert list(raw["schemes"]) == schemes
    record = read_run(out)
    assert (record.network, record.nodes, record.model_bytes) == (NAME, 3, 12_868_904)
    for name, result in record.schemes.items():
        assert len(result.communication_s) == len(result.iteration_s) == len(result.plan_wait_s) == 3, name
        assert min(result.communication_s) > record.goodput_bound_s > record.bound_s, (
            "faster than the goodput bound: the clock or the shaping is wrong"
        )
        assert (result.link_error is None) == (name in ("stock", "average"))
    assert min(record.schemes["oracle"].communication_s) < min(record.schemes["average"].communication_s)
    events = read_events(out)
    last = [e for e in events if isinstance(e, IterationEvent)][-1]
    assert 0 < last.round_trip_s < FAR_S  # by an empty queue: these links have no delay
    planned = [e for e in events if isinstance(e, IterationEvent) and e.scheme in ("exact", "oracle")]
    assert all(e.shares["n2"] < min(e.shares["n0"], e.shares["n1"]) for e in planned)
    assert (
        f"nalb-{NAME}" not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    )
    assert run(["report", str(out)]) == 0
    assert (out / "report.html").stat().st_size > 10_000
    about = read_about(out)
    assert (about.command[0], about.iterations) == ("compare", 3 * len(schemes))
    capsys.readouterr()
    assert run(["why", str(out), "--schemes", "average"]) == 0
    assert "average: n2's link (up and down) sets the pace" in capsys.readouterr().out  # at 60 Mbit/s, others at 200
    assert run(["watch", str(out), "--once"]) == 0
    assert f"oracle, iteration {3 * len(schemes)} of {3 * len(schemes)}" in capsys.readouterr().out


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_comparison_on_the_plane_for_pytorch_needs_no_framework(tmp_path):
    (tmp_path / "net.toml").write_text(NETWORK)
    out = tmp_path / "run"
    done = nalb("compare", "--framework", "torch", "--network", str(tmp_path / "net.toml"), "--replay", "mobilenet",
                "--schemes", "average,exact,average+int8", "--iterations", "3", "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_run(out)
    assert record.model_bytes == 12_868_904
    for name, result in record.schemes.items():
        assert len(result.communication_s) == 3, name
        assert min(result.communication_s) > record.bound_s / (4 if name == "average+int8" else 1), name
    layouts = {one.precision: one for one in read_events(out) if isinstance(one, LayoutEvent)}
    assert layouts["int8"].model_bytes < 0.26 * layouts[UNSET].model_bytes == 0.26 * record.model_bytes
    plans = [one for one in read_events(out) if isinstance(one, PlanEvent) and one.scheme == "exact"]
    assert plans[-1].shares["n2"] < min(plans[-1].shares["n0"], plans[-1].shares["n1"])
    assert run(["report", str(out)]) == 0


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed here")
@needs_privilege
def test_without_torch_nothing_is_started(tmp_path, capsys):
    code = run(["compare", "--network", "wan4-static", "--replay", "mobilenet", "--schemes", "stock,gloo",
                "--out", str(tmp_path / "run")])  # fmt: skip
    told = capsys.readouterr().err
    assert (code, told.count("\n")) == (MachineError.exit_code, 1)
    assert "'.[peers]'" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.mxnet
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_scheme_of_ones_own_takes_turns_with_nalbs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    (tmp_path / "net.toml").write_text(NETWORK)
    out, schemes = tmp_path / "run", ["average", "halves:HALVES", "halves:HALVES-probes@200000"]
    done = nalb("compare", "--network", str(tmp_path / "net.toml"), "--replay", "mobilenet",
                "--schemes", ",".join(schemes), "--iterations", "5", "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(read_run(out).schemes) == schemes
    planned = [one for one in read_events(out) if isinstance(one, PlanEvent) and one.scheme == schemes[2]]
    assert any(0 in one.shares.values() for one in planned)  # the slower half of the servers
    assert run(["report", str(out)]) == 0


@pytest.mark.mxnet
@pytest.mark.jobs
def test_a_script_of_ones_own_is_compared_as_it_is(tmp_path):
    """On loopback, in rounds; tests/launch/test_ssh.py compares schemes on hosts."""
    out, script = tmp_path / "run", [sys.executable, str(OWN_TRAINING)]
    done = nalb("compare", "--local", "2", "--schemes", "average", "--rounds", "2", "--batch-total", "8",
                "--out", str(out), "--", *script)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_run(out)
    assert (record.network, record.nodes, record.bound_s) == ("loopback", 2, None)
    assert record.workload == f"train {Path(sys.executable).name} own_training.py"
    result = record.schemes["average"]
    assert len(set(result.rounds)) == 1
    assert sum(result.rounds) == len(result.iteration_s) >= 8  # the first steps show what is summed
    assert result.samples_per_min == pytest.approx(60 * 8 * len(result.iteration_s) / sum(result.iteration_s))
    assert result.printed.startswith("loss ")
    assert f"average, printed last: {result.printed}" in done.stdout
    assert "nalb compare: run 2 of 2, average: " in done.stdout
    assert "exposed" in done.stdout
    assert (out / "logs" / "average-2").is_dir()
    assert run(["why", str(out)]) == 0


@pytest.mark.mxnet
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_batchings_are_compared_by_real_training(tmp_path):
    (tmp_path / "net.toml").write_text(NETWORK)
    out = tmp_path / "run"
    done = nalb("compare", "--network", str(tmp_path / "net.toml"), "--train", "cnn", "--batching", "joint,asp",
                "--batch-total", "99", "--batch-most", "50", "--iterations", "4", "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "batching.json").read_text())
    assert (record["total"], record["scheme"], list(record["batchings"])) == (99, "auto", ["joint", "asp"])
    for name, one in record["batchings"].items():
        assert {sum(sizes) for sizes in one["sizes"]} == {99}, name
        assert max(max(sizes) for sizes in one["sizes"]) <= 50, name
        assert all(len(one[kind]) == len(one["sizes"]) >= 4 for kind in ("compute_s", "period_s", "wait_s")), name
    balanced, baseline = record["batchings"].values()
    assert balanced["sizes"][0] == [33, 33, 33]
    assert all(sizes == [33, 33, 33] for sizes in baseline["sizes"])
    assert (balanced["together"], baseline["together"]) == (True, False)
    assert run(["report", str(out)]) == 0
    assert all((out / name / "batching.html").exists() for name in ("joint", "asp"))


@pytest.mark.jobs
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_ways_to_share_a_model_out_are_compared_by_real_training(tmp_path):
    (tmp_path / "net.toml").write_text(NETWORK)
    out = tmp_path / "run"
    done = nalb("compare", "--network", str(tmp_path / "net.toml"), "--train", "vgg", "--parallel", "dp,fela@average",
                "--weights", "1,1,3", "--batch-total", "24", "--iterations", "3", "--out", str(out))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ways = read_parallels(out).ways
    assert {name: (one.scheme, one.total) for name, one in ways.items()} == {
        "dp": ("auto", 24),
        "fela@average": ("average", 24),
    }
    for one in ways.values():
        assert (len(one.iteration_s), len(one.period_s)) == (3, 2)
        assert one.loss == pytest.approx(ways["dp"].loss, rel=1e-3)  # the same samples from the same parameters
    assert [sum(row) for row in ways["dp"].tokens] == [15] * 3  # three workers go through five levels
    assert [sum(row) for row in ways["fela@average"].tokens] == [13] * 3  # F1, F2, B2 and B1 of 3 tokens each, one FB3


@contextmanager
def comparing(tmp_path):
    """A comparison that iterates, with its output so far."""
    (tmp_path / "net.toml").write_text(NETWORK)
    words = ["--network", str(tmp_path / "net.toml"), "--replay", "mobilenet", "--schemes", "aware,exact"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nalb.cli.main", "compare", *words, "--iterations", "1000", "--deadline-s", "5",
         "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = []
    with process:
        try:
            for line in process.stdout:
                lines.append(line)
                if "round 1 of 1000: aware" in line:
                    break
            yield process, lines
        finally:
            process.kill()


def nothing_is_left(children):
    """Processes that were there, and namespaces."""
    _, alive = psutil.wait_procs(children, timeout=10)
    networks = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return not alive and f"nalb-{NAME}" not in networks


@pytest.mark.mxnet
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
@pytest.mark.parametrize(("number", "role"), [(signal.SIGKILL, "server"), (signal.SIGINT, None)])
def test_a_comparison_that_is_cut_short_leaves_nothing(tmp_path, number, role):
    with comparing(tmp_path) as (process, lines):
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, lines
        victims = [c for c in children if c.environ().get("DMLC_ROLE") == role and c.environ().get("NALB_NODE") == "n1"]
        os.kill(victims[0].pid if role else process.pid, number)
        rest, _ = process.communicate(timeout=30)
        assert process.returncode != 0
        verdict = rest.strip().splitlines()[-1]
        assert all(name in verdict for name in ([f"{role} n1", "SIGKILL"] if role else ["SIGINT"]))
        assert nothing_is_left(children)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--schemes", "magic"], "unknown scheme 'magic'"),
        (["--schemes", "aware,aware"], "each once"),
        (["--schemes", ","], "at least one"),
        (["--iterations", "0"], "--iterations 0"),
        (["--compute-ms", "-1"], "--compute-ms -1"),
        pytest.param(["--network", "nowhere"], "no network file 'nowhere'", marks=needs_privilege),
        pytest.param(["--network", "n" * 256], "no network file 'nnn", marks=needs_privilege),
        pytest.param(["--network", "./" + "n" * 256], "cannot be read (File name too long)", marks=needs_privilege),
        (["--batching", "magic"], "unknown 'magic'"),
        (["--batching", "off,off"], "each once"),
        (["--batching", "lb-bsp"], "give --train"),
        (["--batching", "lb-bsp@magic"], "'lb-bsp@magic': no such scheme"),
        (["--batching", "asp@aware"], "'asp@aware': asp has no scheme: leave out @aware"),
        (["--batching", "joint@exact"], "'joint@exact': joint has no scheme"),
        (["--batching", "off,lb-bsp-federated"], "average models: give them to `nalb launch`"),
        (["--schemes", "joint"], "use --train"),
        (["--predictor", "ema"], "lb-bsp and joint alone"),
        (["--predictor", "ema", "--predictor-models", "m", "--batching", "lb-bsp"], "name the network"),
        (["--test-every", "5"], "with --batching"),
        (["--micro", "64"], "--micro 64: give 1 or more, with --batching"),
        (["--batch-total", "64"], "need --batching"),
        (["--batching", "off", "--batch-most", "many"], "--batch-most='many'"),
        (["--parallel", "magic"], "unknown 'magic'"),
        (["--parallel", "dp,dp"], "each once"),
        (["--parallel", "fela"], "give --train vgg"),
        (["--parallel", "dp@stock"], "--scheme stock is MXNet alone"),
        (["--parallel", "dp", "--weights", "1,2"], "fela's alone"),
        (["--parallel", "dp", "--batch-most", "3"], "--batch-most is of batch sizes: leave it out"),
        (["--stragglers", "round-robin:1"], "add --parallel"),
        (["--framework", "torch", "--schemes", "stock"], "--schemes stock is of MXNet alone: PyTorch alone is gloo"),
        (["--framework", "torch", "--schemes", "p3"], "PyTorch alone is gloo"),
        (["--schemes", "exact+int8"], "fewer bytes need the plane for PyTorch: add --framework torch"),
        (["--schemes", "exact", "--", "python", "train.py"], "give one workload"),
        (["--schemes", "exact", "python", "train.py"], "put -- before the command"),
    ],
)
def test_bad_flags_are_one_line_and_start_nothing(tmp_path, capsys, flags, text):
    base = ["--network", "wan4-static", "--replay", "mobilenet", "--out", str(tmp_path / "run")]
    assert run(["compare", *base, *flags]) == InputError.exit_code
    told = capsys.readouterr().err
    assert text in told
    assert told.count("\n") == 1
    assert not Path(tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "--network", "uneven4-cpu", "--train", "cnn", "--batching", "bsp,lb-bsp", "--out", "run"],
        ["launch", "--network", "uneven4-cpu", "--batching", "lb-bsp", "--", "true"],
    ],
)
def test_a_predictor_whose_library_is_missing_starts_nothing(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "statsmodels", None)  # as where it is not installed
    assert run([words[0], "--predictor", "arima", *words[1:]]) == MachineError.exit_code
    told = capsys.readouterr().err
    assert "'.[arima]'" in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_training_takes_no_compute_time(tmp_path, capsys):
    words = ["--network", "wan4-static", "--train", "cnn", "--compute-ms", "5", "--out", str(tmp_path / "run")]
    assert run(["compare", *words]) == InputError.exit_code
    assert capsys.readouterr().err.startswith("nalb compare: --compute-ms 5 is of replays alone: use --replay, or")


@needs_privilege
def test_a_run_directory_whose_name_is_too_long():
    done = nalb("compare", "--network", "wan4-static", "--replay", "mobilenet", "--out", "o" * 256)
    assert done.returncode == InputError.exit_code
    assert "File name too long: choose another" in done.stderr
    assert done.stderr.count("\n") == 1


def test_turns_interleave_on_a_standing_network_and_not_on_a_changing_one():
    assert turns(["a", "b"], 12, False) == [("a", BLOCK), ("b", BLOCK), ("a", 7), ("b", 7)]
    assert turns(["a", "b"], 12, True) == [("a", 12), ("b", 12)]
    assert sum(count for scheme, count in turns(["a"], 23, False) if scheme == "a") == 23
