"""scripts/figures/all.sh runs every script of figures, and goes on where it was ended."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "figures"
# docs/simulation.md has the commands of these: they judge the simulator and rules, and make no table of docs/results.
OF_THE_SIMULATOR = {"ablate_rules.py", "simulate_recorded.py", "name_the_pace.py"}


def test_every_script_is_run() -> None:
    text = (SCRIPTS / "all.sh").read_text(encoding="utf-8")
    assert (
        set(re.findall(r"scripts/figures/(\w+\.py)", text))
        == {one.name for one in SCRIPTS.glob("*.py")} - OF_THE_SIMULATOR
    )


def test_every_stored_comparison_has_its_command() -> None:
    text = (SCRIPTS / "all.sh").read_text(encoding="utf-8")
    named = set(re.findall(r"^ +emulated ([a-z][\w-]*) ", text, re.MULTILINE))
    families = re.findall(r"for family in (.*); do", text)[0].split()
    balances = re.findall(r"^ +joint ([\w-]+) ", text, re.MULTILINE)
    made = named | {f"family-{one}" for one in families} | {f"joint-{one}" for one in balances}
    assert {path.stem for path in (ROOT / "docs" / "results" / "data").glob("*.json")} == made
