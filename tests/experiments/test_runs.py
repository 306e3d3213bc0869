import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import lbb_figures
import uneven_machines
from experiments.networks import equal_network, write_network
from experiments.runs import Comparison, finish_all
from experiments.trainings import compare_batchings
from nalb.errors import InputError, JobError
from nalb.reporting.batching_file import BatchingFile, BatchingResult, write_batchings
from nalb.reporting.run_file import read_run
from tests.reporting.runs import write_fake_run

pytestmark = pytest.mark.jobs

FIGURES = Path(__file__).parents[2] / "scripts" / "figures"
SCHEMES = ("stock", "aware")


@pytest.fixture
def comparison(tmp_path):
    path = write_network(tmp_path / "networks", "wan4-static", equal_network("wan4-static", 4, 100))
    return Comparison("a", path, "mobilenet", SCHEMES, 5)


def test_a_finished_run_is_read_and_not_run_again(tmp_path, comparison, capsys):
    write_fake_run(tmp_path / "a", SCHEMES)
    before = (tmp_path / "a" / "run.json").stat().st_mtime_ns
    (record,) = finish_all("fig0", tmp_path, [comparison])
    assert record.run == read_run(tmp_path / "a")
    assert (tmp_path / "a" / "run.json").stat().st_mtime_ns == before
    assert "run 1 of 1" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"iterations": 6}, {"schemes": ("stock",)}, {"workload": "replay alexnet"}])
def test_another_run_in_its_place_is_an_error(tmp_path, comparison, change):
    told = {"schemes": SCHEMES, "iterations": 5} | change
    write_fake_run(tmp_path / "a", **told)
    with pytest.raises(InputError, match="holds another run"):
        list(finish_all("fig0", tmp_path, [comparison]))


def write_trainings(run_dir, reports, batchings=("off", "asp"), network="wan4-static", model="cnn", total=8):
    run_dir.mkdir()
    results = {n: BatchingResult(n != "asp", [[2] * 4] * reports, [], [], [], None, None) for n in batchings}
    write_batchings(run_dir, BatchingFile(network, f"train {model}", "auto", total, results))


@pytest.mark.parametrize("reports", [5, 6])  # the last one may come after the end
def test_finished_trainings_are_read_and_not_run_again(tmp_path, comparison, reports):
    write_trainings(tmp_path / "a", reports)
    run = compare_batchings(tmp_path / "a", comparison.network, "off,asp", 5, "cnn", 8)
    assert list(run.batchings) == ["off", "asp"]


@pytest.mark.parametrize(
    "change",
    [{"reports": 4}, {"reports": 7}, {"batchings": ("off",)}, {"network": "n"}, {"model": "mobilenet"}, {"total": 9}],
)
def test_other_trainings_in_their_place_are_an_error(tmp_path, comparison, change):
    write_trainings(tmp_path / "a", **{"reports": 5} | change)
    with pytest.raises(InputError, match="holds another run"):
        compare_batchings(tmp_path / "a", comparison.network, "off,asp", 5, "cnn", 8)


def test_another_federated_training_in_its_place_is_an_error(tmp_path):
    (tmp_path / "off").mkdir()
    (tmp_path / "off" / "printed.txt").write_text('[n0 worker] {"rounds": 15, "round_s": 1.0, "accuracy": 0.5}\n')
    assert uneven_machines.federated(tmp_path, "off", 15).round_s == 1.0
    with pytest.raises(InputError, match=r"holds another run \(15 rounds\)"):
        uneven_machines.federated(tmp_path, "off", 60)


def test_other_sleepers_in_their_place_are_an_error(tmp_path):
    (tmp_path / "done").write_text("130 40 50")
    with pytest.raises(InputError, match=r"holds another run \(lbb_workers\.py 130 40 50\)"):
        lbb_figures.sleepers(tmp_path)


def test_what_an_unfinished_run_left_goes_and_what_it_did_not_stays(tmp_path, comparison):
    """The command itself fails here, before it makes anything: the network file is gone."""
    comparison.network.unlink()
    left = tmp_path / "a"
    (left / "logs").mkdir(parents=True)
    (left / "samples.jsonl").write_text("{}\n")
    (left / "run.json.part").touch()
    (left / "about.json").write_text("{}\n")
    with pytest.raises(JobError, match="the same command goes on from here"):
        list(finish_all("fig0", tmp_path, [comparison]))
    assert not left.exists()
    left.mkdir()
    (left / "thesis.txt").write_text("do not lose")
    with pytest.raises(InputError, match=r"thesis\.txt"):
        list(finish_all("fig0", tmp_path, [comparison]))
    assert os.listdir(left) == ["thesis.txt"]


def test_what_unfinished_trainings_left_goes_and_what_they_did_not_stays(tmp_path, comparison):
    """Here too the command fails, for want of its network."""
    comparison.network.unlink()
    left = tmp_path / "a"
    (left / "lbb" / "logs").mkdir(parents=True)
    (left / "lbb" / "samples.jsonl").write_text("{}\n")
    (left / "batching.json.part").touch()
    (left / "lbb" / "about.json").write_text("{}\n")
    with pytest.raises(JobError, match="the same command goes on from here"):
        compare_batchings(left, comparison.network, "off,lbb", 1, "cnn", 8)
    assert not left.exists()
    (left / "lbb").mkdir(parents=True)
    (left / "lbb" / "thesis.txt").write_text("do not lose")
    with pytest.raises(InputError, match=r"thesis\.txt"):
        compare_batchings(left, comparison.network, "off,lbb", 1, "cnn", 8)
    with pytest.raises(InputError, match="holds lbb"):
        compare_batchings(left, comparison.network, "off,lb-bsp", 1, "cnn", 8)
    assert os.listdir(left / "lbb") == ["thesis.txt"]


COMPARES = """
from experiments.runs import Comparison, finish_all
list(finish_all("fig0", Path(sys.argv[1]), [Comparison("a", Path(sys.argv[2]), "mobilenet", ("stock",), 1)]))
"""
TRAINS = """
from experiments.trainings import compare_batchings
compare_batchings(Path(sys.argv[1]) / "a", sys.argv[2], "off", 1, "cnn", 8)
"""


@pytest.mark.parametrize("body", [COMPARES, TRAINS])
def test_a_killed_script_takes_its_run_along(tmp_path, body):
    """The run waits for its network file, a pipe, and would end by itself when the test closes it."""
    pipe = tmp_path / "net.toml"
    os.mkfifo(pipe)
    script = f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(FIGURES)!r})\n{body}"
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(pipe)]) as process, pipe.open("w"):
        (run,) = psutil.Process(process.pid).children()
        process.kill()
        _, alive = psutil.wait_procs([run], timeout=20)
        assert not alive
