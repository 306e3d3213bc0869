"""The backend on real processes of PyTorch."""

import ast
import os
import re
import signal
from pathlib import Path

import pytest

from tests.torch import ranks

PITFALLS = Path(__file__).with_name("pitfalls.py")
BY_PLANE = {"NALB_SCHEME": "average"}  # never leaves sums to the ring, however fast links are


def sections() -> list[str]:
    """Names of the script's sections."""
    for node in ast.parse(PITFALLS.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SECTIONS":
            assert isinstance(node.value, ast.List)
            return [ast.unparse(one) for one in node.value.elts]
    raise AssertionError("no sections")


@pytest.fixture(scope="module")
def ended() -> list[ranks.Rank]:
    """One job for all sections: to start torch takes seconds."""
    return ranks.run(PITFALLS.name, size=3, **BY_PLANE)


@pytest.mark.torch
@pytest.mark.parametrize("section", [*sections(), "again"])
def test_each_pitfall_is_as_with_gloo(ended: list[ranks.Rank], section: str) -> None:
    for one in ended:
        assert f"ok {section}\n" in one.output, re.split(r"^(?:ok|failed) ", one.output, flags=re.MULTILINE)[-8:]


@pytest.mark.torch
def test_the_job_of_all_pitfalls_ends_well(ended: list[ranks.Rank]) -> None:
    assert [one.code for one in ended] == [0, 0, 0], [one.output[-2000:] for one in ended]


def require_named(ended: list[ranks.Rank], *words: str) -> None:
    """All ranks failed, and the output of each that names a failure has the words."""
    assert all(one.code for one in ended), ended
    for word in words:
        assert any(word in one.output for one in ended), [one.output[-3000:] for one in ended]
    assert not any("killed after" in one.output or "nothing has ended" in one.output for one in ended), ended


@pytest.mark.torch
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("exception", ["ValueError: the data are gone", "JobFailed"]),
        ("exit", ["JobFailed"]),
        ("other sums", ["6000 elements", "all workers must make the same"]),
        ("fewer sums", ["JobFailed"]),
    ],
)
def test_a_rank_that_fails_ends_all_and_is_named(how: str, words: list[str]) -> None:
    require_named(ranks.run("endings.py", how, size=2, within_s=100.0, **BY_PLANE), *words)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("whom", "how", "word"),
    [("script", "", "JobFailed"), ("agent", "backward", "JobFailed"), ("agent", "barrier", "nalb: ")],
)
def test_a_rank_that_is_killed_ends_all_and_is_named(whom: str, how: str, word: str) -> None:
    started = ranks.start("endings.py", how, size=2, **BY_PLANE)
    victim = started[1]
    assert victim.stdout is not None
    for line in victim.stdout:
        if line == "trains\n":
            break
    agents = ranks.agents_of(victim.pid)
    os.kill(victim.pid if whom == "script" else agents[0], signal.SIGKILL)
    require_named(ranks.wait(started, 60.0), word)
    assert agents
    assert not any(map(ranks.runs, agents))


@pytest.mark.torch
def test_gloo_alone_runs_the_same_script_without_agents() -> None:
    started = ranks.start("endings.py", "end", size=2, NALB_SCHEME="gloo")
    ended = ranks.wait(started, 60.0)
    assert [(one.code, "by gloo\n" in one.output) for one in ended] == [(0, True)] * 2


@pytest.mark.torch
def test_forked_ranks_without_variables_leave_in_good_order() -> None:
    (script,) = ranks.run("forked.py", size=1, within_s=90.0, MASTER_ADDR="", **BY_PLANE)
    assert (script.code, script.output) == (0, "")
