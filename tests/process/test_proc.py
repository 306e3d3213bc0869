"""Ids read from /proc are signalled only where they are those of our own PID namespace."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nalb.process.proc import Stop, require_own_proc, stopped_at

BYSTANDER = """
import subprocess, sys
from nalb.process.guardian import kill_marked
marked_pid = int(sys.argv[1])
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(marked_pid - 1))
bystander = subprocess.Popen(["sleep", "20"])
assert bystander.pid == marked_pid, "the same id, in this PID namespace"
try:
    kill_marked("a-job")
except Exception as error:
    print(error)
print("killed" if bystander.poll() else "lives")
bystander.kill()
"""


def test_the_usual_proc_is_our_own():
    require_own_proc()


def test_a_name_that_the_kernel_cuts_within_a_character_is_no_matter(tmp_path: Path):
    program = tmp_path / "abcdefghijklmné"  # 15 bytes end in the middle of its last letter
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "20"]) as one:
        try:
            assert stopped_at(one.pid) is None
            os.kill(one.pid, signal.SIGSTOP)
            os.waitpid(one.pid, os.WUNTRACED)
            assert stopped_at(one.pid) is not None
        finally:
            one.kill()


def test_an_idle_process_that_is_stopped_again_is_told_from_one_that_still_is():
    with subprocess.Popen(["sleep", "20"]) as one:
        try:
            told = []
            for _ in range(5):
                os.kill(one.pid, signal.SIGSTOP)
                os.waitpid(one.pid, os.WUNTRACED)
                told.append(stopped_at(one.pid))
                assert stopped_at(one.pid) == told[-1]
                os.kill(one.pid, signal.SIGCONT)
            assert len(set(told)) == 5
        finally:
            one.kill()
    assert stopped_at(one.pid) is None


def test_a_stop_begins_anew_where_the_process_has_run_in_between():
    stop, looks = Stop(), [(None, 1.0), (7, 2.0), (7, 5.0), (8, 6.0), (8, 6.5), (None, 7.0), (8, 9.0)]
    assert [stop.seen(switches, now_s) for switches, now_s in looks] == [0, 0, 3, 0, 0.5, 0, 0]


@pytest.mark.root
def test_a_process_that_has_an_id_of_another_pid_namespace_is_spared():
    """`unshare --pid` without --mount-proc: /proc still shows the processes outside."""
    environment = {**os.environ, "NALB_JOB": "a-job:slug"}
    with subprocess.Popen(["sleep", "20"], env=environment) as marked:
        try:
            argv = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", BYSTANDER, str(marked.pid)]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert "/proc shows the processes of another PID namespace" in done.stdout
            assert done.stdout.endswith("lives\n")
        finally:
            marked.kill()
