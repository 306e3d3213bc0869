"""scripts/figures/simulate_families.py on few small networks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.cli.main import run
from nalb.simulation.families import draw_network

pytestmark = pytest.mark.jobs

SCRIPT = Path(__file__).parents[2] / "scripts" / "figures" / "simulate_families.py"
FOUR_NODES = 23  # a seed that draws so many


def campaign(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_a_row_for_each_network_and_a_table_of_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "rows.jsonl"
    words = ["--families", "even,changing,roles,shared-cores", "--first", str(FOUR_NODES), "--networks", "1"]
    done = campaign(*words, "--processes", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["family"], row["seed"], row["nodes"]) for row in rows] == [
        (family, FOUR_NODES, 4) for family in ("even", "changing", "roles", "shared-cores")
    ]
    assert all(row["network"] == draw_network(row["family"], 4, FOUR_NODES, cores=2.0).command for row in rows)
    assert all(len(row["times_s"]) == 14 for row in rows)
    even, changing, _, shared_cores = rows
    assert 0.95 < shared_cores["over_true"] < 1.1
    assert 0.95 < even["over_true"] < 1.05
    assert even["times_s"][0] > 1.1 * even["true_s"]  # the first iteration has equal shares
    assert min(changing["times_s"][8:]) > 0.95 * changing["true_s"]  # of the network after the change
    path = tmp_path / "even.toml"
    assert run(even["network"].split()[1:]) == 0
    path.write_text(capsys.readouterr().out)
    assert run(["simulate", "--network", str(path), "--replay", "mobilenet", "--schemes", "exact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schemes"]["exact"]["time_s"] == pytest.approx(even["true_s"])
    again = campaign(*words, "--out", str(out))
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "File exists: name a new file" in again.stderr


def test_a_network_may_change_within_an_iteration(tmp_path: Path):
    rows = []
    for amid in ([], ["--amid"]):
        out = tmp_path / f"rows{len(rows)}.jsonl"
        words = ["--families", "changing", "--first", str(FOUR_NODES), "--networks", "1", "--out", str(out), *amid]
        done = campaign(*words)
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(out.read_text()))
    between, amid = (row["times_s"] for row in rows)
    assert len(amid) == 14
    assert amid[:8] == between[:8]
    assert amid[8] not in (between[7], between[8])  # a part of it is of either network


def test_each_start_but_the_first_knows_another_network(tmp_path: Path):
    out = tmp_path / "rows.jsonl"
    done = campaign(
        "--families", "asymmetric", "--first", str(FOUR_NODES), "--networks", "1", "--starts", "3", "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    rows = sorted((json.loads(line) for line in out.read_text().splitlines()), key=lambda row: row["start"])
    assert [(row["start"], len(row["times_s"])) for row in rows] == [(0, 14), (1, 14), (2, 14)]
    assert len({row["times_s"][0] for row in rows}) == 3  # three different plans for the same network
    assert len({row["true_s"] for row in rows}) == 1
    for row in rows:
        late = [time_s > 1.05 * row["true_s"] for time_s in row["times_s"]]
        after = row["settled_after"]
        assert not any(late[after:])
        assert after == 0 or late[after - 1]
    starts = [line.split(", ")[1] for line in done.stdout.splitlines() if line.startswith("family asymmetric")]
    assert starts == ["known before nothing", "known before another network"]


def test_noise_comes_from_the_seed(tmp_path: Path):
    rows = []
    for name, words in (("exact", []), ("noisy", ["--noise"]), ("again", ["--noise"])):
        out = tmp_path / name
        done = campaign("--families", "even", "--first", str(FOUR_NODES), "--networks", "1", *words, "--out", str(out))
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(out.read_text()))
    exact, noisy, again = rows
    assert noisy == again
    assert [exact["noise"], noisy["noise"]] == [False, True]
    assert noisy["times_s"][0] != exact["times_s"][0]
    assert noisy["true_s"] == pytest.approx(exact["true_s"], rel=0.1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--families", "odd"], "--families: 'odd' is unknown: choose of even, near"),
        (["--networks", "0"], "--networks, --starts and --processes: give 1 or more"),
        (["--starts", "0"], "--networks, --starts and --processes: give 1 or more"),
        (["--first", "-1"], "--first: give 0 or more"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(tmp_path: Path, words: list[str], says: str):
    done = campaign("--out", str(tmp_path / "rows.jsonl"), *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert says in done.stderr
