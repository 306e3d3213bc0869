"""What a process may open, and what is said where nothing is left."""

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


LAST_THREAD = """
import resource, threading
from nalb.errors import MachineError
from nalb.process.exhaustion import explained
pages = int(open("/proc/self/statm").read().split()[0])
limit_bytes = pages * resource.getpagesize() + (1 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
try:
    with explained("the last thread"):
        threading.Thread(target=print).start()
except MachineError as error:
    print(error)
"""


def test_a_thread_may_lack_processes_or_memory() -> None:
    said = subprocess.run(
        own_code_argv(LAST_THREAD), cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    ).stdout
    assert said == (
        "the last thread cannot be started (can't start new thread, for lack of processes or memory): raise ulimit -u or -v, or "
        "the container's limits of processes and memory, or use fewer nodes\n"
    )
