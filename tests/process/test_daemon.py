"""Processes in the background: one that ends is noticed, and a guardian that died has a successor that knows as much."""

import os
import select
import signal
from pathlib import Path

import pytest

from nalb.errors import MachineError
from nalb.process import daemon
from nalb.process.own_program import own_code_argv

LISTENS = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"
DETACHES = "import signal; from nalb.process import daemon; daemon.detach('up 7'); signal.pause()"


def wait() -> None:
    """Until the only guardian is dead, which is left to be noticed."""
    (pid,) = daemon.GUARDIANS
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def kill() -> None:
    """As someone else may, and until it is gone."""
    (pid,) = daemon.GUARDIANS
    os.kill(pid, signal.SIGKILL)
    wait()


def test_a_guardian_that_dies_has_a_successor_that_hears_the_last_line(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    guardian = daemon.Guardian(own_code_argv(LISTENS, str(heard)), "the guardian")
    guardian.say(b"making\n")
    guardian.check()
    kill()
    guardian.say(b"made\n")
    guardian.check()
    guardian.dismiss(10.0)
    assert heard.read_bytes() == b"made\n"
    assert not daemon.GUARDIANS


def test_guardians_that_do_not_stay_alive_are_told() -> None:
    guardian = daemon.Guardian(own_code_argv("raise SystemExit(7)"), "the guardian")
    for _ in range(daemon.DEATHS_MOST - 1):
        wait()
        guardian.check()
    wait()
    with pytest.raises(MachineError, match=r"the guardian has ended 3 times, the last time with 7: "):
        guardian.check()
    guardian.dismiss(10.0)


def test_a_guardian_that_was_stopped_hears_the_last_line_too(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    guardian = daemon.Guardian(own_code_argv(LISTENS, str(heard)), "the guardian")
    (pid,) = daemon.GUARDIANS
    os.kill(pid, signal.SIGSTOP)
    guardian.say(b"done\n")
    guardian.dismiss(10.0)
    assert heard.read_bytes() == b"done\n"
    assert not daemon.GUARDIANS


def test_a_guardian_that_does_not_end_is_killed() -> None:
    guardian = daemon.Guardian(own_code_argv("import signal; signal.pause()"), "the guardian")
    (pid,) = daemon.GUARDIANS
    guardian.dismiss(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not daemon.GUARDIANS


def test_a_daemon_that_ends_is_noticed() -> None:
    started = daemon.start(own_code_argv(DETACHES), "the helper")
    assert started.said == "up 7"
    started.check()
    ended = os.pidfd_open(started.pid)
    os.kill(started.pid, signal.SIGKILL)
    select.select([ended], [], [], 10.0)
    os.close(ended)
    with pytest.raises(MachineError, match=r"^the helper has ended, killed by"):
        started.check()
    started.end()
