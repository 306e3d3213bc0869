"""scripts/figures/ablate_rules.py edits sources, so it must follow them."""

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts" / "figures"
LEAVE_EACH_OUT = "import ablate_rules as a; [a.leave_out(*edits) for edits in a.RULES.values()]"


def test_every_rule_is_where_it_says():
    done = subprocess.run(
        [sys.executable, "-c", LEAVE_EACH_OUT], capture_output=True, text=True, check=False, cwd=SCRIPTS
    )
    assert done.returncode == 0, done.stderr
