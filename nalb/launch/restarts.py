"""What follows a failure of the job: the same job again from its newest checkpoint, without the nodes that are lost.

A node is lost when its host cannot be reached, or when it failed in two attempts in a row. Lost nodes are left out for good
if --min-nodes allows; otherwise all are tried again. Only a failure of the job is answered so: neither what the user or
the machine got wrong, nor Ctrl-C, which is no JobError here.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from nalb.checkpoints import folder
from nalb.errors import CheckpointError, InputError, JobError, MachineError, listed
from nalb.events import FailureEvent
from nalb.failures import Failure, JobFailed, Phase
from nalb.launch.job_phase import moment_of
from nalb.launch.run_dir import append_event

FIRST_WAIT_S, LONGEST_WAIT_S = (
    1.0,
    60.0,
)  # before a restart, twice as long each time: what failed may need a moment to be well


@dataclass(frozen=True)
class Attempt:
    """One start of the job."""

    number: int  # 0: the first
    run_dir: Path  # of this attempt
    left_out: tuple[str, ...] = ()  # lost nodes
    last_failed: str | None = None  # whose failure ended the attempt before


@dataclass(frozen=True)
class Policy:
    """What the user allows."""

    max_restarts: int
    min_nodes: int | None  # None: all nodes or none
    checkpoints: Path | None  # None: no folder that can be seen from here

    def check(self, nodes: int) -> None:
        """InputError for what cannot be."""
        if not 0 <= self.max_restarts <= 1000:
            raise InputError(f"--max-restarts {self.max_restarts}: choose 0 to 1000")
        if self.min_nodes is not None and not self.max_restarts:
            raise InputError("--min-nodes says how a job restarts: add --max-restarts")
        if self.min_nodes is not None and not 1 <= self.min_nodes <= nodes:
            raise InputError(f"--min-nodes {self.min_nodes}: the job has {nodes} nodes; choose 1 to {nodes}")


def after_failure(
    attempt: Attempt, failed: str | None, unreachable: Collection[str], nodes: Sequence[str], min_nodes: int | None
) -> tuple[Attempt | None, str]:
    """The next attempt with the reason for its nodes, or None: too few are left. Run directories count up.

    failed: the node whose process failed, where that is known. nodes: all of the job's, in order.
    """
    lost = {name for name in nodes if name in unreachable}
    if failed is not None and failed == attempt.last_failed:
        lost.add(failed)
    number = attempt.number + 1
    base = attempt.run_dir if attempt.number == 0 else attempt.run_dir.parent
    following = Attempt(number, base / f"restart-{number}", attempt.left_out, failed)
    new = [name for name in nodes if name in lost and name not in attempt.left_out]
    left = [name for name in nodes if name not in lost and name not in attempt.left_out]
    if not new or min_nodes is None:
        return (
            following,
            f"on the {len(nodes) - len(attempt.left_out)} nodes left" if attempt.left_out else "on all nodes",
        )
    if len(left) < min_nodes:
        return None, f"{listed(new)} would be left out, and --min-nodes {min_nodes} needs more than {len(left)}"
    return replace(following, left_out=(*attempt.left_out, *new)), f"without {listed(new)}"


def see_through(
    run: Callable[[Attempt], None],
    run_dir: Path,
    nodes: Sequence[str],
    policy: Policy,
    unreachable: Callable[[], Collection[str]],
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> Path:
    """Run the job, again where it fails and the policy allows; returns the run directory of the attempt that ended well.

    JobError is the last failure's. A line for each restart says what failed, and where the job goes on. Makes the restarts'
    run directories.
    """
    attempt = Attempt(0, run_dir)
    if policy.checkpoints is not None:
        folder.sweep(policy.checkpoints)
    while True:
        try:
            run(attempt)
            return attempt.run_dir
        except JobFailed as error:
            failure = _dated(error.failure, attempt, policy.checkpoints)
            _note(failure, attempt.run_dir)
            dated = JobFailed(failure, error.exit_code, error.where)
            message = str(dated)
            if not policy.max_restarts:
                raise dated from None
            if attempt.number == policy.max_restarts:
                raise JobError(f"{message}; restarts: all {policy.max_restarts} are used", error.exit_code) from None
            following, where = after_failure(attempt, failure.culprit, unreachable(), nodes, policy.min_nodes)
            if following is None:
                raise JobError(f"{message}; no restart: {where}", error.exit_code) from None
            attempt = following
            try:
                attempt.run_dir.mkdir(parents=True, exist_ok=True)
            except OSError as refusal:
                what = f"{message}; no restart: {attempt.run_dir}: {refusal.strerror}"
                raise JobError(what, error.exit_code) from None
            say(
                f"nalb launch: {message}; restart {attempt.number} of {policy.max_restarts} {where}, "
                f"{_goes_on(policy.checkpoints)}"
            )
            wait(min(FIRST_WAIT_S * 2 ** (attempt.number - 1), LONGEST_WAIT_S))


def _dated(failure: Failure, attempt: Attempt, checkpoints: Path | None) -> Failure:
    """The failure with what the job was about, unless it says so itself; sweeps what was left of a checkpoint."""
    cut_short = {} if checkpoints is None else folder.cut_short(checkpoints)
    if checkpoints is not None:
        folder.sweep(checkpoints)
    if failure.node in cut_short:
        return msgspec.structs.replace(failure, phase=Phase.CHECKPOINT, iteration=cut_short[failure.node])
    if failure.has_moment:
        return failure
    phase, iteration = moment_of(attempt.run_dir / "samples.jsonl")
    return msgspec.structs.replace(failure, phase=phase, iteration=iteration)


def _note(failure: Failure, run_dir: Path) -> None:
    """Into the run's file, for whoever reads it as data."""
    with suppress(MachineError):  # a full disk is no other failure: it is said anyway
        append_event(run_dir / "samples.jsonl", FailureEvent(at_s=time.monotonic(), failure=failure))


def _goes_on(checkpoints: Path | None) -> str:
    if checkpoints is None:
        return "from the newest checkpoint on the hosts"
    try:
        found, skipped = folder.newest(checkpoints)
    except CheckpointError as error:
        return f"where {error}"
    damaged = f" ({len(skipped)} damaged, skipped)" if skipped else ""
    if found is None:
        return f"from the beginning: no checkpoint{damaged} in {checkpoints}"
    progress = found.checkpoint.progress
    return f"from iteration {progress.iteration} (epoch {progress.epoch}, batch {progress.batch}){damaged}"
