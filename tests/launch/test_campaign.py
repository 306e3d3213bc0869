"""Part of `tests/campaigns/faults.py`: ten faults drawn by lot, a reset of each kind, and the rules that judge outcomes."""

import importlib.util
import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as replace_in
from itertools import count, repeat
from pathlib import Path

import pytest
from msgspec.structs import replace

from nalb.errors import InputError
from nalb.failures import Cause, Failure, Phase, render
from netem import qdiscs, rootless
from tests.campaigns import faults
from tests.campaigns.faults import MENDED, Case, draw, judge, judge_alone, possible, run, table
from tests.campaigns.venues import MXNETS, VENUES, require
from tests.launch.conftest import ROOT

BY_LOT = "kill;pause;stop;link lost a moment;link lost;reboot;disk full;memory full"
SEEDS = (3015, 33783)  # side by side; chosen: many faults and phases, and no outcome that depends on a machine's speed
JOBS = 5
RESETS = [  # one of each kind; side by side
    Case("control reset", "worker", "n1", "push", False, venue="batches", more=("--batching", "lb-bsp"), is_all=True),
    Case("control reset", "scheduler", "n0", "pull", False, venue="local", is_all=True),
    Case("data reset", "server", "b", "push", False, venue="network", is_busy=True),
    Case("courier reset", "worker", "n0", "pull", False, venue="tokens", more=("--parallel", "fela"), is_all=True),
    Case("ssh reset", "server", "b", "forward", False, venue="hosts"),
    Case("knocks reset", "node", "b", "start", False, venue="network"),
]


@pytest.mark.root
@pytest.mark.mxnet
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
def test_ten_jobs_with_a_fault_each_end_as_they_should(tmp_path: Path) -> None:
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces and tc")
    qdiscs.require(("tbf", "htb", "bfifo"))
    campaigns = [
        subprocess.Popen(
            [
                sys.executable,
                ROOT / "tests/campaigns/faults.py",
                "--jobs",
                str(JOBS),
                "--seed",
                str(seed),
                "--venues",
                "network",
                "--faults",
                BY_LOT,
                "--deadline-s",
                "5",
                "--out",
                tmp_path,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for seed in SEEDS
    ]
    outputs = [campaign.communicate()[0] for campaign in campaigns]
    records = [json.loads(line) for path in tmp_path.glob("seed-*.jsonl") for line in path.read_text().splitlines()]
    assert [row for row in records if not row["right"]] == [], outputs
    assert len(records) == JOBS * len(SEEDS), outputs


@pytest.mark.root
@pytest.mark.mxnet
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
def test_a_connection_of_each_kind_is_reset(tmp_path: Path) -> None:
    """Side by side: they mostly wait."""
    if not rootless.has_privilege():
        pytest.skip("needs root: namespaces, and sockets that are destroyed")
    require(list(MXNETS))
    deadline_s = 5.0
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(run, RESETS, repeat(tmp_path), count(), repeat(deadline_s), repeat(tmp_path / "said")))
    for case, (outcome, right, took_s) in zip(RESETS, outcomes, strict=True):
        assert right, (case, outcome, took_s)
        assert outcome.startswith("went on") or case.fault not in MENDED


KILL = Case("kill", "worker", "b", "push", False)
DATA = replace_in(KILL, fault="data reset")
CONTROL = replace_in(KILL, fault="control reset")
STUCK = Failure(cause=Cause.STUCK, detail="slices are missing", phase=Phase.EXCHANGE, iteration=4)
KILLED = Failure(cause=Cause.ENDED, detail="was killed", role="worker", node="b", iteration=4)
SAID = f"nalb launch: {render(KILLED)}; its log: x"
AGAIN = f"nalb launch: {render(KILLED)}; restart 1\nnalb launch: well"


@pytest.mark.parametrize(
    ("case", "code", "output", "failures", "right"),
    [
        (KILL, 137, SAID, [KILLED], True),
        (KILL, 137, SAID, [replace(KILLED, node="a")], False),  # another is named
        (KILL, 137, SAID, [replace(KILLED, iteration=None)], False),  # no phase
        (KILL, 137, f"{SAID}\n{SAID}", [KILLED], False),  # more than one line
        (KILL, 137, "", [KILLED], False),
        (KILL, 137, "", [], False),
        (KILL, 0, "nalb launch: well", [], False),  # as if nothing had happened
        (KILL, 1, f"AssertionError: wrong sum in step 3\n{SAID}", [KILLED], False),
        (KILL, 4, SAID, [KILLED, replace(KILLED, cause=Cause.WRONG_SUM)], False),
        (Case("pause", "worker", "b", "push", False), 0, "nalb launch: well", [], True),
        (Case("pause", "worker", "b", "push", False), 4, SAID, [KILLED], False),  # a slow node is not a dead node
        (Case("kill", "worker", "b", "push", True), 137, SAID, [KILLED], False),  # it should have been started again
        (Case("kill", "worker", "b", "push", True), 0, AGAIN, [KILLED], True),
        (Case("kill", "scheduler", "a", "push", False), 4, SAID, [replace(KILLED, cause=Cause.NO_COORDINATOR)], True),
        (Case("link lost", "node", "a", "push", False), 4, SAID, [KILLED], True),
        (Case("kill", "launcher", "a", "push", False), -9, "", [], True),
        (DATA, 4, f"nalb launch: {render(STUCK)}", [STUCK], True),  # it names nobody: nobody is at fault
        (DATA, 0, "nalb launch: well", [], True),  # nothing was under way
        (DATA, 4, "", [], False),
        (CONTROL, 4, f"nalb launch: {render(STUCK)}", [STUCK], False),  # what it carries is said again
        (CONTROL, 0, "nalb launch: well", [], True),
        (Case("disk full", "launcher", "a", "push", False), 3, "nalb launch: x: File too large: make room", [], True),
        (
            Case("memory full", "launcher", "a", "init", False),
            3,
            "nalb launch: no memory is left: free memory",
            [],
            True,
        ),
        (Case("memory full", "launcher", "a", "init", False), 3, "nalb launch: no process is left", [], False),
    ],
)
def test_an_outcome_is_right_only_where_it_is(
    case: Case, code: int, output: str, failures: list[Failure], right: bool
) -> None:
    assert judge(case, code, output, failures)[1] is right


ALONE = replace_in(KILL, venue="torch, network, alone")
ENDED = "[a] nalb.failures.JobFailed: iteration 4: agent b lost its training process"
OTHER = ENDED.replace("agent b", "agent a")


@pytest.mark.parametrize(
    ("case", "code", "lines", "right"),
    [
        (ALONE, 1, [ENDED], True),
        (ALONE, 1, [OTHER], False),  # another is named
        (ALONE, 1, ["[a] RuntimeError: agent b"], False),  # not by nalb
        (ALONE, 1, [ENDED.replace("[a]", "[b]")], False),  # whoever lives must say it
        (ALONE, 0, ["[a] last step"], False),
        (ALONE, 1, [ENDED, "[a] AssertionError: wrong sum in step 3"], False),
        (replace_in(ALONE, victim="agent"), 1, [ENDED], False),  # its script lives
        (replace_in(ALONE, victim="agent"), 1, [ENDED, "[b] nalb: worker b lost its agent"], True),
        (replace_in(ALONE, fault="pause"), 0, ["[a] last step"], True),
        (replace_in(ALONE, fault="pause"), 1, [ENDED, "[b] nalb: agent b"], False),
        (replace_in(ALONE, fault="link lost", victim="node"), 1, [OTHER], False),  # b says nothing
        (replace_in(ALONE, fault="gloo reset"), 1, [OTHER, "[b] RuntimeError: gloo"], True),
        (replace_in(ALONE, fault="gloo reset"), 1, ["[a] RuntimeError: gloo", "[b] RuntimeError: gloo"], False),
        (replace_in(ALONE, phase="end"), 0, ["[a] last step"], True),
    ],
)
def test_a_job_that_nobody_supervises_names_the_failure_in_each_rank_that_lives(
    case: Case, code: int, lines: list[str], right: bool
) -> None:
    assert judge_alone(case, code, lines)[1] is right


def test_jobs_with_another_deadline_are_no_part_of_a_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "run", lambda *_: ("went on, ended well", True, 0.0))
    faults.campaign(2, 1, tmp_path / "seed-1.jsonl", 5.0)
    assert [row["number"] for row in faults.recorded(tmp_path, 5.0)] == [0, 1]
    with pytest.raises(InputError, match=r"seed-1\.jsonl has jobs with another --deadline-s than 10"):
        faults.recorded(tmp_path, 10.0)


def test_the_table_counts_outcomes() -> None:
    row = {
        "venue": "local",
        "fault": "kill",
        "victim": "worker",
        "right": True,
        "late": False,
        "took_s": 2.0,
        "outcome": "worker b was killed",
    }
    others = [
        row | {"late": True, "took_s": 4.0, "outcome": "worker b was killed, restarted, ended well"},
        row | {"right": False},
    ]
    lines = table([row, *others]).splitlines()
    assert lines[2] == "| local | kill | worker | 3 | 0 | 1 | 2 | 2.0 | 4.0 |"
    assert lines[-1] == "3 jobs, 1 not as they should be, 1 late"


def test_each_venue_gets_the_faults_that_can_happen_there() -> None:
    drawn = {name: {draw(random.Random(number), name).fault for number in range(300)} for name in VENUES}
    for name, faults_of_venue in drawn.items():
        assert faults_of_venue == set(possible(VENUES[name], list(faults.VICTIMS)))
    assert "link lost" in drawn["network"] & drawn["hosts"]
    assert "link lost" not in drawn["local"] | drawn["batches"]
    assert "courier reset" in drawn["tokens"] & drawn["network, tokens"]
    assert "courier reset" not in drawn["sites"]
    assert [name for name, those in drawn.items() if "ssh reset" in those] == ["hosts", "torch, hosts"]
    assert all(("gloo reset" in those) == VENUES[name].is_of_torch for name, those in drawn.items())
    assert {draw(random.Random(number), "torch, alone", ["kill"]).victim for number in range(99)} == {
        "worker", "agent", "scheduler"}  # fmt: skip
    assert {draw(random.Random(number), "sites", ["kill"]).victim for number in range(99)} == {
        "worker", "site server", "global server", "scheduler", "launcher"}  # fmt: skip
