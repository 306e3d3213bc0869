"""The script of docs/recipes/from-horovod.md, after the change, is a job."""

import re
from pathlib import Path

import pytest

from tests.page_scripts import run_script, sides


@pytest.mark.jobs
@pytest.mark.torch
def test_it_learns(tmp_path: Path) -> None:
    ((_, after), *_) = sides("from-horovod.md")
    script = tmp_path / "train.py"
    script.write_text(after)
    losses = [float(one) for one in re.findall(r"\[n0 worker\] step \d loss ([\d.]+)", run_script(script))]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
