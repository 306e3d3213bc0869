"""scripts/figures/ablate_rules.py leaves each rule out by other values of fields of Rules."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "figures"
EACH_DIFFERS = """
from dataclasses import replace
from ablate_rules import RULES, WITHOUT
assert [name for name, fields in WITHOUT.items() if replace(RULES, **fields) == RULES] == ["all rules"]
"""
ONE_RULE = """
import ablate_rules
ablate_rules.STAR_FAMILIES = ("changing",)
ablate_rules.WITHOUT = {name: ablate_rules.WITHOUT[name] for name in ("all rules", "proof by one end alone")}
ablate_rules.main()
"""


def output_of(code: str, *arguments: str) -> str:
    """What this code prints beside the script."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, cwd=SCRIPTS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_each_rule_a_field_differs():
    output_of(EACH_DIFFERS)


@pytest.mark.jobs
def test_a_network_that_changes_takes_longer_without_proof_by_one_end_alone():
    with_all, without = output_of(ONE_RULE, "--seeds", "97009").splitlines()
    assert with_all == "all rules: 1.000, worst 1.000 (changing); all 1.000, 1.000 (changing)"
    matched = re.fullmatch(r"proof by one end alone: .*; all ([\d.]+), [\d.]+ \(changing\)", without)
    assert matched is not None
    assert float(matched[1]) > 1.1
