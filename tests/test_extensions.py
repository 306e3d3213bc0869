"""Schemes and estimators of a user's own: found, run for real and simulated; their mistakes are named, with file and line."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from nalb.cli.main import run
from nalb.compare.variants import parse_variants
from nalb.errors import InputError
from nalb.extensions import is_own, load_estimator, load_scheme, schemes_with
from nalb.measurement.samples import samples_of
from nalb.measurement.traffic import Traffic
from nalb.planning.distribution import Situation
from nalb.planning.nodes import Capacities, Node
from tests.planning.strategies import simple_layout

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
REPLAY = ["-m", "kvstore_patch.roles.replay", "mobilenet", "--iterations", "6", "--verify"]
NODES = [Node("a"), Node("b"), Node("c")]
SITUATION = Situation(0, NODES, simple_layout(3_000_000, 3), Capacities.from_lists([3e6, 2e6, 1e6], [3e6, 2e6, 1e6]))
FAULTY = """
from nalb.schemes import AVERAGE, Scheme


def fails(situation):
    if situation.iteration < 2:
        return AVERAGE.decide(situation)
    return 1 / 0, "never"


def interrupts(situation):
    raise KeyboardInterrupt


FAILS = Scheme("fails", fails)
LEAVES = Scheme("leaves", lambda situation: exit(0))
INTERRUPTS = Scheme("interrupts", interrupts)
TOO_MUCH = Scheme("too much", lambda situation: ([5e9] * len(situation.nodes), "more than there is"))
NOTHING = Scheme("nothing", lambda situation: None)
NO_REASON = Scheme("no reason", lambda situation: [1.0] * len(situation.nodes))
TEXT = Scheme("text", lambda situation: ("abc", "no numbers"))
TABLE = Scheme("table", lambda situation: ({0: 3e6}, "no numbers"))
ROUTES = Scheme("routes", None)
BY_SITES = Scheme("by sites", lambda situation: (None, ""), sums_by_sites=True)
NO_BYTES = Scheme("no bytes", lambda situation: (None, ""), fixed_slice_bytes=0)
FEW_BYTES = Scheme("few bytes", lambda situation: (None, ""), fixed_slice_bytes=1)
WORDS = Scheme("words", lambda situation: (None, ""), fixed_slice_bytes="4096")
TURNED = Scheme("turned", lambda situation: ([1.5e6 + 1j, 1.5e6], "complex"))
WORDLESS = Scheme("wordless", lambda situation: (None, None))
LONE = Scheme("lone", lambda situation: (None, "half a pair \\ud800"))
NUMBER = 7


class Speechless(Exception):
    def __str__(self):
        raise ValueError


def speechless(situation):
    raise Speechless


SPEECHLESS = Scheme("speechless", speechless)


def halves(situation):
    raise ValueError("half a pair \\ud800")


UNPAIRED = Scheme("unpaired", halves)
SLOW = Scheme("slow", lambda situation: __import__("time").sleep(20))


class Estimates:
    def __init__(self, num_nodes):
        self.num_nodes = num_nodes

    def observe(self, traffic):
        raise KeyError(self.num_nodes)

    def estimate(self):
        from nalb.measurement.capacity import CapacityEstimator

        return CapacityEstimator(self.num_nodes).estimate()


class Sleeps(Estimates):
    def observe(self, traffic):
        __import__("time").sleep(20)


class Shapeless(Estimates):
    def estimate(self):
        from nalb.measurement.capacity import CapacityEstimator

        return CapacityEstimator(1).estimate()


class Told(Estimates):
    up, least = [1e6, 2e6], [[1e6, float("nan")], [1e6, 1e6]]

    def estimate(self):
        from nalb import Estimate

        return Estimate(self.up, [1e6, 1e6], self.least)


class Vague(Told):
    def observe(self, traffic):
        return [True, False]


class Negative(Told):
    up = [1e6, -1e6]


class Boundless(Told):
    up = [1e6, float("inf")]


class Zero(Told):
    up = [0, 1e6]


class Low(Told):
    least = [[1e6, 1e6], [-1, 1e6]]


class Wordy(Told):
    up = ["fast", "slow"]
"""
DECIDE = r"TypeError: decide must return \(shares, reason\): .*;"
needs_mxnet = pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """A folder with modules that have mistakes, where the command runs."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "faulty.py").write_text(FAULTY)
    (folder / "unfinished.py").write_text("A = 1\ndef decide(:\n")
    (folder / "needy.py").write_text("A = 1\nimport something_that_is_not_there\n")
    (folder / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder
    for name in ("faulty", "unfinished", "needy", "leaving", "halves"):
        sys.modules.pop(name, None)


def line_of(text):
    return FAULTY[: FAULTY.index(text)].count("\n") + 1


def launch(folder, run_dir, *flags):
    argv = [sys.executable, "-m", "nalb.cli.main", "launch", "--local", "2", "--out", str(run_dir), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*argv, "--", sys.executable, *REPLAY], cwd=folder, env=environment, capture_output=True, text=True, timeout=180
    )


def events_of(run_dir):
    return list(map(json.loads, (run_dir / "samples.jsonl").read_text().splitlines()))


@pytest.mark.usefixtures("faulty")
def test_the_example_gives_all_to_the_faster_half(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    halves = load_scheme("halves:HALVES")
    plan, reason = halves.plan(SITUATION)
    assert plan.scheme == halves.name == "halves:HALVES"
    assert plan.target_bytes[2] == 0
    assert plan.target_bytes[0] == plan.target_bytes[1] > 0
    assert reason == "the faster half of the servers sums everything"


@pytest.mark.usefixtures("faulty")
def test_it_is_simulated_and_planned_beside_nalbs_own(monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLES)
    words = ["simulate", "--random", "4:20-200:1", "--model-bytes", "8000000", "--json"]
    for more in ([], ["--by", "flows"], ["--estimator", "capacity", "--rounds", "3"]):
        assert run([*words, "--schemes", "average,halves:HALVES", *more]) == 0
        told = json.loads(capsys.readouterr().out)["schemes"]
        assert told["halves:HALVES"]["time_s"] < told["average"]["time_s"]
    rates = ["--capacities-mbps", "100,200,50", "--model-bytes", "1000000"]
    assert run(["plan", *rates, "--scheme", "halves:HALVES", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shares"] == [500_000, 500_000, 0]


def test_entry_points_give_names(faulty, monkeypatch):
    info = faulty / "own_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[nalb.schemes]\nbroken = faulty:FAILS\nown-sites = faulty:TEXT\n[nalb.estimators]\nkeyless = faulty:Estimates\n"
    )
    monkeypatch.syspath_prepend(str(faulty))
    assert is_own("broken", "nalb.schemes")
    assert schemes_with(["exact", "broken"])["broken"].name == "broken"
    assert np.isnan(load_estimator("keyless")(3).estimate().up).all()
    with pytest.raises(
        InputError,
        match=r"unknown scheme 'broke': choose one of auto, .*, joint, broken, own-sites, or name your own as",
    ):
        load_scheme("broke")
    assert [one.name for one in parse_variants(["own-sites", "faulty:FAILS-probes"])] == ["own-sites", "faulty:FAILS"]
    (info / "entry_points.txt").write_text("[nalb.schemes]\nexact = faulty:FAILS\n")
    with pytest.raises(InputError, match=r"^entry point exact = faulty:FAILS of nalb.schemes: nalb has that name too"):
        schemes_with(["exact"])


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("magic", "unknown scheme 'magic': choose one of auto, stock"),
        ("faulty:", "unknown scheme 'faulty:': name your own as package.module:NAME"),
        ("nowhere:A", "scheme nowhere:A: module nowhere cannot be imported: ModuleNotFoundError: No module named 'nowhere'"),
        ("unfinished:A", r"module unfinished cannot be imported: SyntaxError: .*unfinished.py, line 2\)"),
        ("needy:A", r"ModuleNotFoundError: No module named 'something_that_is_not_there' \(.*needy.py, line 2\)"),
        ("leaving:A", r"module leaving cannot be imported: SystemExit: 0 \(.*leaving.py, line 2\)"),
        ("faulty:MISSING", "scheme faulty:MISSING: .*faulty.py has no MISSING"),
        ("faulty:NUMBER", "scheme faulty:NUMBER is of type int: name a nalb.Scheme"),
        ("faulty:ROUTES", "scheme faulty:ROUTES: only nalb's own schemes leave routing to MXNet"),
        ("faulty:BY_SITES", "scheme faulty:BY_SITES: only nalb's own schemes sum by sites"),
        ("faulty:NO_BYTES", r"scheme faulty:NO_BYTES: ValueError: fixed_slice_bytes is 0: .* \(.*faulty.py, line \d+\)"),
        ("faulty:FEW_BYTES", r"scheme faulty:FEW_BYTES: ValueError: fixed_slice_bytes is 1: give at least 256, or"),
        ("faulty:WORDS", r"scheme faulty:WORDS: TypeError: .* \(.*faulty.py, line \d+\)"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("faulty")
def test_what_cannot_be_loaded_is_said(word, says):
    with pytest.raises(InputError, match=says) as found:
        load_scheme(word)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("LEAVES", r"scheme faulty:LEAVES: SystemExit: 0 \(.*faulty.py, line {}\)"),
        ("NOTHING", rf"scheme faulty:NOTHING: {DECIDE} it gave NoneType \(.*faulty.py, line {{}}\)"),
        ("NO_REASON", rf"scheme faulty:NO_REASON: {DECIDE} it gave list \(.*faulty.py, line {{}}\)"),
        ("TEXT", rf"scheme faulty:TEXT: {DECIDE} it gave shares 'abc' \(.*faulty.py, line {{}}\)"),
        ("TABLE", rf"scheme faulty:TABLE: {DECIDE} it gave shares \{{{{0: 3000000.0\}}}} \(.*faulty.py, line {{}}\)"),
        (
            "TURNED",
            rf"scheme faulty:TURNED: {DECIDE} it gave shares \[\(1500000\+1j\), 1500000.0\] \(.*faulty.py, line {{}}\)",
        ),
        ("SPEECHLESS", r"scheme faulty:SPEECHLESS: Speechless \(.*faulty.py, line \d+\)"),
        ("UNPAIRED", r"scheme faulty:UNPAIRED: ValueError: half a pair \? \(.*faulty.py, line \d+\)"),
        ("TOO_MUCH", r"scheme faulty:TOO_MUCH \(.*faulty.py, line {}\) gave shares of 15000000000 bytes in all"),
    ],
)
@pytest.mark.usefixtures("faulty")
def test_mistakes_in_a_scheme_name_it_and_its_line(name, says):
    with pytest.raises(InputError, match=says.format(line_of(f"{name} = "))):
        load_scheme(f"faulty:{name}").plan(SITUATION)


@pytest.mark.usefixtures("faulty")
def test_only_the_main_threads_interrupt_is_a_signals():
    scheme = load_scheme("faulty:INTERRUPTS")
    with pytest.raises(KeyboardInterrupt):
        scheme.plan(SITUATION)
    with ThreadPoolExecutor(1) as pool, pytest.raises(InputError, match="INTERRUPTS: KeyboardInterrupt"):
        pool.submit(scheme.plan, SITUATION).result()


def test_a_scheme_cannot_change_the_layout():
    with pytest.raises(ValueError, match="read-only"):
        SITUATION.layout.sizes_bytes.sort()


@pytest.mark.usefixtures("faulty")
def test_a_reason_that_is_no_text_is_made_one():
    assert load_scheme("faulty:LONE").decide(SITUATION) == (None, "half a pair ?")
    assert load_scheme("faulty:WORDLESS").decide(SITUATION) == (None, "")


@pytest.mark.usefixtures("faulty")
def test_mistakes_in_an_estimator_name_it_and_its_line():
    line = line_of("raise KeyError")
    with pytest.raises(InputError, match=rf"estimator faulty:Estimates: KeyError: 3 \(.*faulty.py, line {line}\)"):
        load_estimator("faulty:Estimates")(3).observe(None)
    line = line_of("    def observe(self, traffic):\n        return [")
    with pytest.raises(InputError, match=rf"Vague: TypeError: observe\(\) gave list: .* \(.*faulty.py, line {line}\)"):
        load_estimator("faulty:Vague")(3).observe(None)
    with pytest.raises(
        InputError, match=r"estimator faulty:Shapeless: ValueError: estimate.. has up, down and least of shapes"
    ):
        load_estimator("faulty:Shapeless")
    with pytest.raises(InputError, match="estimator faulty:NUMBER is of type int"):
        load_estimator("faulty:NUMBER")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "Negative",
            r"ValueError: estimate\(\) gave node 1 a rate of -1e\+06: give a number of bytes per second above 0, NaN",
        ),
        ("Boundless", r"ValueError: estimate\(\) gave node 1 a rate of inf: give"),
        ("Zero", r"ValueError: estimate\(\) gave node 0 a rate of 0: give"),
        ("Low", r"ValueError: estimate\(\) has a lower bound of a rate below 0: give"),
        ("Wordy", r"ValueError: could not convert string to float: 'fast'"),
    ],
)
@pytest.mark.usefixtures("faulty")
def test_rates_that_cannot_be_are_said_with_the_estimators_line(name, says):
    line = line_of("    def estimate(self):\n        from nalb import Estimate")
    with pytest.raises(InputError, match=rf"estimator faulty:{name}: {says}.* \(.*faulty.py, line {line}\)"):
        load_estimator(f"faulty:{name}")


@pytest.mark.usefixtures("faulty")
def test_an_estimate_may_be_in_lists():
    estimate = load_estimator("faulty:Told")(2).estimate()
    assert estimate.up.tolist() == [1e6, 2e6]
    assert np.isnan(estimate.least).tolist() == [[False, True], [False, False]]


def test_the_pages_estimator_takes_an_iteration_in(tmp_path, monkeypatch):
    page = (EXAMPLES.parent / "docs" / "your-scheme.md").read_text(encoding="utf-8")
    (code,) = (one for one in re.findall(r"```python\n(.*?)```", page, re.S) if "class Newest" in one)
    (tmp_path / "of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    estimator = load_estimator("of_the_page:Newest")(3)
    assert np.isnan(estimator.estimate().up).all()
    # two pushes of 100 and 300 bytes, from nodes 0 and 1 to node 2, in 2 s
    assert not estimator.observe(Traffic(samples_of([(0, 2, 100, 0.0, 1.0, True), (1, 2, 300, 1.0, 2.0, True)])))
    assert str(estimator.estimate().up.tolist()) == "[50.0, 150.0, nan]"
    assert str(estimator.estimate().down.tolist()) == "[nan, nan, 200.0]"


@pytest.mark.parametrize("flag", ["--scheme", "--estimator"])
def test_nothing_starts_with_what_cannot_be_loaded(faulty, capsys, flag):
    assert run(["launch", "--local", "2", "--out", str(faulty / "run"), flag, "nowhere:A", "--", "true"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"nalb launch: {flag[2:]} nowhere:A: module nowhere cannot be imported")
    assert said.count("\n") == 1
    assert not (faulty / "run").exists()


@pytest.mark.mxnet
@needs_mxnet
def test_the_example_runs_a_job_whose_sums_are_right(tmp_path):
    done = launch(EXAMPLES, tmp_path / "run", "--scheme", "halves:HALVES")
    assert done.returncode == 0, done.stdout + done.stderr
    plans = [event for event in events_of(tmp_path / "run") if event["event"] == "plan"]
    assert {plan["scheme"] for plan in plans} == {"halves:HALVES"}
    assert any(plan["reason"].startswith("the faster half of the servers sums everything") for plan in plans)


@pytest.mark.mxnet
@needs_mxnet
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--scheme", "faulty:FAILS"),
            "iteration 2: cannot be planned: scheme faulty:FAILS: ZeroDivisionError: division by zero ({file}, line {fails})",
        ),
        (
            ("--scheme", "faulty:SLOW", "--deadline-s", "4"),
            "scheme faulty:SLOW has not decided within 1.8 s ({file}, line {slow}), and nobody hears from the coordinator",
        ),
        (
            ("--estimator", "faulty:Sleeps", "--deadline-s", "4"),
            "estimator faulty:Sleeps has not answered within 1.8 s ({file}, line {estimate}), and nobody hears from",
        ),
        (("--estimator", "faulty:Estimates"), "estimator faulty:Estimates: KeyError: 2 ({file}, line {estimates})"),
    ],
)
def test_a_mistake_ends_the_job_in_one_line(faulty, flags, says):
    done = launch(faulty, faulty / "run", *flags)
    assert done.returncode == InputError.exit_code
    lines = {"fails": line_of("return 1 / 0"), "estimates": line_of("raise KeyError"), "slow": line_of("SLOW = ")}
    lines["estimate"] = line_of("def estimate(self):")
    *_, last = done.stderr.splitlines()
    assert says.format(file=faulty / "faulty.py", **lines) in last, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
