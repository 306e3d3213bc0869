"""scripts/figures/simulate_recorded.py on a run that is simulated itself."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nalb.reporting.run_file import RunFile, SchemeResult, write_run
from nalb.simulation.exchange import exchange
from nalb.simulation.noise import Noise
from tests.reporting.runs import write_events
from tests.simulation.test_recorded import CAPACITIES, EVENTS, LAYOUT, NODES, RANKS, iteration, recorded

pytestmark = pytest.mark.jobs

SCRIPT = Path(__file__).parents[2] / "scripts" / "figures" / "simulate_recorded.py"


def compare(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, check=False)


def test_a_line_for_each_run_with_the_simulated_one_below(tmp_path: Path):
    servers, events, times_s = np.array([2, 0, 1])[RANKS], EVENTS[:2], []
    for number in range(4):
        result = exchange(NODES, CAPACITIES, LAYOUT.sizes_bytes, servers, 2_000_000, noise=Noise((7, number)))
        plan, samples, done = iteration(number, "exact", result.time_s, RANKS, 2_000_000)
        events = [*events, plan, samples | {"rows": recorded(result.samples)}, done]
        times_s.append(result.time_s)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        scheme = SchemeResult(times_s, times_s, 1.0, [0.0] * 4, None)
        write_run(tmp_path / name, RunFile("three", "replay mobilenet", 3, LAYOUT.model_bytes, 1.0, {"exact": scheme}))
        write_events(tmp_path / name, events)
    words = [tmp_path / "a", tmp_path / "b"]
    done = compare(*words)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "three" in line or "simulated" in line]
    assert ["three" in line for line in lines] == [True, False, True, False]
    assert all("2 of 2" in line for line in lines[::2])
    told = [json.loads(line) for line in compare(*words, "--json").stdout.splitlines()]
    assert [(one["network"], len(one["iterations"])) for one in told] == [("three", 2)] * 2
    for one in told[0]["iterations"]:
        assert one["simulated"]["usual"] == pytest.approx(one["measured"]["usual"], rel=0.3)
    missing = compare(tmp_path / "c")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
