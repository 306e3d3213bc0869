"""The script of docs/recipes/from-horovod.md, after the change, is a job."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/recipes/from-horovod.md"
JOB_LIMIT_S = 90.0


@pytest.mark.jobs
@pytest.mark.torch
def test_it_learns(tmp_path: Path) -> None:
    (block, *_) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "train.py"
    script.write_text("".join(line[1:] + "\n" for line in block.splitlines() if line[:1] != "-"))
    words = ["launch", "--local", "2", "--out", str(tmp_path / "run"), "--", sys.executable, str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "nalb.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=JOB_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(one) for one in re.findall(r"\[n0 worker\] step \d loss ([\d.]+)", done.stdout)]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
