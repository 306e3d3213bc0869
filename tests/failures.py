"""What tests ask of failures: the data that a process leaves for its launcher, and a launcher for whoever reads its run's files."""

import os
from pathlib import Path

from nalb.events import FailureEvent
from nalb.failures import Failure, Phase
from nalb.process.guardian import VARIABLE
from nalb.process.last_words import failure_in
from nalb.reporting.run_file import read_events

AS_LAUNCHED = os.environ | {VARIABLE: "test:n0.worker"}  # the environment of a process that tells its launcher

Who = tuple[str | None, str | None]  # role and node
When = tuple[Phase | None, int | None]


def told_in(output: str) -> Failure:
    """The failure that a process has told its launcher in this output: exactly one."""
    (failure,) = [failure for line in output.split("\n") if (failure := failure_in(line)[1]) is not None]
    return failure


def all_noted_in(run_dir: Path) -> list[Failure]:
    """The failures that the launcher has noted, of this attempt."""
    return [event.failure for event in read_events(run_dir) if isinstance(event, FailureEvent)]


def noted_in(run_dir: Path) -> Failure:
    """The same where there is exactly one."""
    (failure,) = all_noted_in(run_dir)
    return failure


def who(failure: Failure | None) -> Who:
    """Whose failure it is."""
    assert failure is not None
    return failure.role, failure.node


def when(failure: Failure | None) -> When:
    """What the job was about."""
    assert failure is not None
    return failure.phase, failure.iteration
