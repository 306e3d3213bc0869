import json

import pytest

from nalb.cli.main import run
from nalb.reporting.run_file import RunFile, SchemeResult, write_run
from netem.network_file import find_network
from tests.reporting.runs import write_events
from tests.simulation.test_recorded import EVENTS, LAYOUT

SMALL = ("--random", "4:20-220:1", "--model-bytes", "4e6")


def told(capsys, *words):
    assert run(["simulate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys, *words):
    assert run(["simulate", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.err.strip().splitlines()[-1].startswith("nalb simulate: ")
    return captured.err


def test_schemes_side_by_side(capsys):
    answer = told(capsys, "--network", "wan4-static", "--replay", "mobilenet", "--schemes", "average,exact")
    assert answer["by"] == "slices"
    assert answer["bound_s"] == pytest.approx(2.059, rel=1e-3)
    assert answer["schemes"]["exact"]["over_bound"] < 1.1 < 1.5 < answer["schemes"]["average"]["over_bound"]
    assert run(["simulate", *SMALL]) == 0
    table = capsys.readouterr().out
    assert all(scheme in table for scheme in ("stock", "average", "elastic", "aware", "exact", "bound"))


def test_a_network_of_sites_is_simulated_on_two_levels_and_on_one(capsys):
    words = ("--network", "geo2x3", "--replay", "mobilenet", "--schemes")
    answer = told(capsys, *words, "exact,exact-sites")
    assert answer["bound_s"] == answer["wan_bound_s"] > answer["lan_bound_s"]
    assert answer["schemes"]["exact"]["over_bound"] < 1.1 < 2.3 < answer["schemes"]["exact-sites"]["over_bound"]
    assert "one level anyway" in complaint(capsys, *words, "stock-sites")
    assert "know no uplinks" in complaint(capsys, *words, "exact", "--by", "flows")


def test_caps_of_pairs_that_are_left_out_in_a_network_of_sites_are_told(capsys, tmp_path):
    text = find_network("geo2x3").read_text()
    path = tmp_path / "net.toml"
    path.write_text(f'{text}\n[[links]]\nsrc = "n0"\ndst = "n3"\nmbps = 5\n')
    for words in (["simulate", "--schemes", "exact-sites"], ["plan"]):
        assert run([*words, "--network", str(path), "--replay", "mobilenet", "--json"]) == 0
        captured = capsys.readouterr()
        assert captured.err.strip() == "nalb: geo2x3 has sites, so its caps of pairs are left out here: n0 -> n3"
        assert json.loads(captured.out)


@pytest.mark.jobs
def test_flags_change_what_they_say(capsys):
    def exact_s(*words):
        return told(capsys, *SMALL, "--schemes", "exact", *words)["schemes"]["exact"]["time_s"]

    plain = exact_s("--no-headers")
    assert exact_s() == pytest.approx(plain * 1514 / 1448)
    assert exact_s("--no-headers", "--message-bytes", 5000) > plain
    assert exact_s("--no-headers", "--inflight-bytes", 20_000) > 1.1 * plain
    learned = told(capsys, *SMALL, "--schemes", "exact", "--estimator", "capacity", "--rounds", 3)
    assert len(learned["schemes"]["exact"]["times_s"]) == 3
    assert told(capsys, "--random", "40:20-220:1", "--model-bytes", "4e6", "--schemes", "exact")["by"] == "flows"


def test_the_files_roles_are_simulated(capsys, tmp_path):
    path = tmp_path / "roles.toml"
    roles = 'nodes = [{name = "w", server = false}, {name = "s", worker = false}, {name = "ws"}]'
    path.write_text(f'name = "roles"\ndefaults = {{up_mbps = 80, down_mbps = 80}}\n{roles}')
    words = ("--network", path, "--model-bytes", "4e6")
    for estimator in ("true", "capacity"):
        answer = told(capsys, *words, "--estimator", estimator, "--rounds", 4)
        assert answer["bound_s"] == pytest.approx(0.4)  # each worker's 4 MB; s carries half the model, for two workers
        assert 1 < answer["schemes"]["exact"]["over_bound"] < 1.1, estimator
    assert told(capsys, *words, "--by", "flows", "--schemes", "average")["schemes"]["average"]["time_s"] > 0.4
    assert "w has one role" in complaint(capsys, "--network", path, "--parallel", "dp")


def test_a_run_of_schemes_that_are_not_simulated_is_refused(capsys, tmp_path):
    schemes = {"p3": SchemeResult([4.0], [4.0], 1.0, [0.0], None)}
    write_run(tmp_path, RunFile("wan4-static", "replay mobilenet", 3, LAYOUT.model_bytes, 1.0, schemes))
    write_events(tmp_path, EVENTS)
    assert "no iteration to simulate" in complaint(capsys, "--run", tmp_path)


def test_a_run_whose_rates_no_file_tells_is_refused(capsys, tmp_path):
    result = {"exact": SchemeResult([4.0], [4.0], 1.0, [0.0], None)}
    write_run(tmp_path, RunFile("hosts", "replay mobilenet", 3, LAYOUT.model_bytes, None, result))
    assert "no file tells" in complaint(capsys, "--run", tmp_path)


def test_no_bound_is_no_number(capsys):
    words = ("--random", "1:20-220:1", "--model-bytes", "4e6", "--schemes", "exact")
    assert told(capsys, *words)["schemes"]["exact"]["over_bound"] is None


def test_a_recorded_run_beside_what_was_measured(capsys, tmp_path):
    series = {"exact": [3.0, 3.5], "stock": [4.0], "p3": [4.0]}
    schemes = {name: SchemeResult(times, times, 1.0, [0.0] * len(times), None) for name, times in series.items()}
    write_run(tmp_path, RunFile("own3", "replay mobilenet", 3, LAYOUT.model_bytes, 1.0, schemes))
    write_events(tmp_path, EVENTS)
    answer = told(capsys, "--run", tmp_path)
    assert set(answer["schemes"]) == {"exact", "stock"}
    assert answer["schemes"]["exact"]["measured_s"] == 3.25
    errors = sorted(abs(i["simulated_s"] / i["measured_s"] - 1) for i in answer["iterations"])
    assert answer["median_error"] == pytest.approx(errors[1])
    assert run(["simulate", "--run", str(tmp_path)]) == 0
    assert "median error of 3 iterations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "what"),
    [((*SMALL, "--schemes", "p3"), "p3"), ((*SMALL, "--schemes", "exact,exact"), "each once"),
     (("--random", "4:20:1", "--model-bytes", "1e6"), "N:LOW-HIGH:SEED"),
     (("--random", "4:20-220:-1", "--model-bytes", "1e6"), "N:LOW-HIGH:SEED"),
     (("--random", "4:0-9:1", "--model-bytes", "1e6"), "above 0"), (("--random", "4:20-220:1"), "--model-bytes"),
     ((*SMALL, "--rounds", "0"), "--rounds"), ((*SMALL, "--inflight-bytes", "-1"), "--inflight-bytes"),
     ((*SMALL, "--by", "flows", "--estimator", "paper"), "--by slices"),
     (("--random", "17:20-220:1", "--model-bytes", "4e6", "--inflight-bytes", "0"), "--by slices"),
     (("--random", "17:20-220:1", "--model-bytes", "4e6", "--alpha-bytes", "x"), "--by slices"),
     (("--run", "nowhere", "--inflight-bytes", "0", "--by", "auto"), "leave out --inflight-bytes, --by"),
     (("--network", "nowhere", "--model-bytes", "1e6"), "nowhere"),
     (("--run", "nowhere"), "nowhere"), ((), "exactly one of"),
     (("--random", "4:20-220:1", "--run", "x"), "exactly one of"),
     (("--network", "wan4-static", "--run", "x"), "exactly one of")],
)  # fmt: skip
def test_mistakes_are_one_line(capsys, words, what):
    assert what in complaint(capsys, *words)


def test_ways_to_share_out_a_model(capsys):
    answer = told(
        capsys, "--parallel", "fela,dp,hp", "--total", 64, "--weights", "1,1,8", "--subset", 1, "--iterations", 3
    )
    seconds = {name: one["iteration_s"] for name, one in answer["parallel"].items()}
    assert list(seconds) == ["fela", "dp", "hp"]
    assert seconds["fela"] < seconds["hp"] < seconds["dp"]
    assert (answer["model"], answer["workers"]) == ("vgg19", 8)
    words = "--parallel", "fela", "--model", "googlenet", "--random", "4:100-1000:1", "--iterations", 3
    assert run(["simulate", *map(str, words)]) == 0
    captured = capsys.readouterr().out
    assert "googlenet, 4 workers, 256 samples" in captured
    assert "fela: weights 1," in captured


def test_a_worker_that_sleeps_makes_iterations_longer(capsys):
    words = "--parallel", "fela", "--total", 64, "--weights", "1,1,1", "--iterations", 8
    usual, slept = (
        told(capsys, *words, *more)["parallel"]["fela"]["iteration_s"]
        for more in ((), ("--stragglers", "round-robin:2"))
    )
    assert usual + 0.1 < slept < usual + 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--total", "64"), "add --parallel"),
        (("--parallel", "sp"), "choose of fela"),
        (("--parallel", "dp", "--schemes", "exact"), "leave out"),
        (("--parallel", "fela", "--weights", "1,2"), "give 3 weights"),
        (("--parallel", "fela", "--subset", "2"), "needs weights"),
        (("--parallel", "dp", "--total", "4"), "a sample for each"),
        (("--parallel", "dp", "--iterations", "1"), "choose 2 to"),
        (("--parallel", "dp", "--network", "geo2x3"), "uplinks of sites"),
    ],
)
def test_what_cannot_be_shared_out(capsys, words, why):
    assert why in complaint(capsys, *words)


@pytest.mark.parametrize("by", ["slices", "flows"])
def test_fewer_bytes_are_simulated(capsys, by):
    words = ("--random", "5:20-220:1", "--model-bytes", "12e6", "--schemes", "exact", "--by", by)
    whole, chosen, forced = (
        told(capsys, *words, "--precision", precision) for precision in ("float32", "auto", "int8")
    )
    assert chosen["schemes"]["exact"]["time_s"] < 0.35 * whole["schemes"]["exact"]["time_s"]
    assert chosen["schemes"]["exact"]["time_s"] < 1.1 * forced["schemes"]["exact"]["time_s"]
    assert chosen["answers"] == "int8"
    assert len(set(chosen["pushes"])) > 1
    assert chosen["bound_s"] == whole["bound_s"] > chosen["rounded_bound_s"]
    exact = chosen["schemes"]["exact"]
    assert exact["over_bound"] == pytest.approx(exact["time_s"] / chosen["rounded_bound_s"])  # its own bytes


def test_auto_needs_no_estimator(capsys):
    words = ("--random", "5:20-220:1", "--model-bytes", "1e6", "--precision", "auto", "--estimator", "paper")
    assert "leave out --estimator" in complaint(capsys, *words)
