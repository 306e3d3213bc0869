"""What nalb starts on a node: its own programs, and none of the user's in their place."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from nalb.process.exhaustion import FILES_ENOUGH
from tests.launch.conftest import START_LIMIT_S, STEPS, Launch, Launched
from tests.process.test_own_program import PLANTED

OWN = """
from dataclasses import replace
from nalb.schemes import AVERAGE
OWN = replace(AVERAGE, name="own")
"""


def guardians(launched: Launched) -> dict[int, list[str]]:
    """The commands of what lives of the job and is no worker; by pid."""
    found = {}
    for pid in launched.processes():
        with suppress(FileNotFoundError):  # it has ended meanwhile
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return {pid: words for pid, words in found.items() if "nalb.process.guardian" in words}


@pytest.mark.jobs
@pytest.mark.mxnet
def test_modules_in_the_folder_of_the_command_run_in_none_of_nalbs_processes(launch: Launch, tmp_path: Path) -> None:
    """A user's own scheme is found there all the same. A guardian that is killed has a successor."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in ("ctypes", "queue", "select"):
        (folder / f"{name}.py").write_text(PLANTED)
    (folder / "own.py").write_text(OWN)
    few_files = f'cd "{folder}" && ulimit -Sn 256 && exec "$@"'
    wrap = ["bash", "-c", few_files, "-"]
    launched = launch("--local", "2", "--scheme", "own:OWN", "--", *STEPS, wrap=wrap)
    launched.wait_for("step 3", 2)
    (first,) = guardians(launched)
    os.kill(first, signal.SIGKILL)
    end_s = time.monotonic() + START_LIMIT_S
    while not (later := guardians(launched)) or first in later:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    own = {role: Path(f"/proc/{launched.pid(role, 'n0')}/cmdline").read_text() for role in ("scheduler", "server")}
    for words in (*own.values(), *map("\0".join, later.values())):
        assert "\0-P\0-m\0" in words
    limits = Path(f"/proc/{launched.pid('scheduler', 'n0')}/limits").read_text()
    soft, hard = next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3:5]
    assert soft == hard or int(soft) == FILES_ENOUGH, "its clients may be thousands"
    launched.signal(signal.SIGTERM)
    assert launched.end()[0] == 128 + signal.SIGTERM
    assert list(folder.glob("*.ran")) == []
    launched.assert_nothing_left()
