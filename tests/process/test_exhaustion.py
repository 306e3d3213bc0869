"""What a process may open."""

import subprocess

import pytest

from nalb.process.exhaustion import FILES_ENOUGH
from nalb.process.own_program import ROOT, own_code_argv

RAISE = """
import resource
from nalb.process.exhaustion import raise_file_limit
raise_file_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "found"), [(64, 512, 512), (512, 512, 512), (64, 2 * FILES_ENOUGH, FILES_ENOUGH)]
)
def test_files_up_to_what_the_system_allows(soft: int, hard: int, found: int) -> None:
    limited = f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"'
    done = subprocess.run(
        ["bash", "-c", limited, "-", *own_code_argv(RAISE)], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode and hard > FILES_ENOUGH:
        pytest.skip(f"this system allows fewer: {done.stderr}")
    assert done.stdout.split() == [str(found), str(hard)], done.stderr
