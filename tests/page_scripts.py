"""The scripts that pages of docs/recipes change, by diffs, run as jobs of two nodes."""

import re
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "docs/recipes"
JOB_LIMIT_S = 90.0


def sides(page: str) -> list[tuple[str, str]]:
    """Of each script that a page changes: as it was, and as it becomes."""
    blocks = re.findall(r"```diff\n(.*?)```", (RECIPES / page).read_text(encoding="utf-8"), re.DOTALL)
    scripts = [block for block in blocks if "import" in block]

    def side(block: str, other: str) -> str:
        return "".join(line[1:] + "\n" for line in block.splitlines() if line[:1] != other)

    return [(side(block, "+"), side(block, "-")) for block in scripts]


def run_script(path: Path, *flags: str) -> str:
    """What `nalb launch --local 2` prints of it."""
    words = ["launch", "--local", "2", "--out", str(path.with_suffix("")), *flags, "--", sys.executable, str(path)]
    done = subprocess.run(
        [sys.executable, "-m", "nalb.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
