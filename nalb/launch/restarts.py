"""Restarts a job that failed, from its newest checkpoint and without the nodes that are lost.

A node is lost when its host cannot be reached, or when it failed in two attempts in a row. Lost nodes are left out for good
if --min-nodes allows that; otherwise all nodes are tried again. Only a failure of the job (JobFailed) leads to a restart, unless
wrong input is its cause. Errors of the user or the machine and Ctrl-C do not.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from nalb.checkpoints import folder
from nalb.errors import CheckpointError, InputError, JobError, listed
from nalb.failures import Failure, JobFailed, Phase
from nalb.launch.roles import Place
from nalb.launch.run_dir import note_failure
from nalb.launch.signals import failed_before
from nalb.planning.nodes import Node

FIRST_WAIT_S, LONGEST_WAIT_S = (
    1.0,
    60.0,
)  # the wait before a restart doubles each time: a failed host may need a while to recover


@dataclass(frozen=True)
class Attempt:
    """One start of the job."""

    number: int  # the first attempt is 0
    run_dir: Path  # this attempt's run directory
    left_out: tuple[str, ...] = ()  # lost nodes
    last_failed: str | None = None  # the node whose failure ended the attempt before


@dataclass(frozen=True)
class RestartPolicy:
    """The restarts that the user allows."""

    max_restarts: int
    min_nodes: int | None  # the fewest nodes with which the job may go on; None: no node may be left out
    checkpoints: Path | None  # the folder of checkpoints; None: this machine cannot read it

    def check(self, nodes: int) -> None:
        """Raise InputError where the policy contradicts itself or the number of `nodes`."""
        if not 0 <= self.max_restarts <= 1000:
            raise InputError(f"--max-restarts {self.max_restarts}: choose 0 to 1000")
        if self.min_nodes is not None and not self.max_restarts:
            raise InputError("--min-nodes says how a job restarts: add --max-restarts")
        if self.min_nodes is not None and not 1 <= self.min_nodes <= nodes:
            raise InputError(f"--min-nodes {self.min_nodes}: the job has {nodes} nodes; choose 1 to {nodes}")


def after_failure(
    attempt: Attempt,
    failed: str | None,
    unreachable: Collection[str],
    nodes: Sequence[Place | Node],
    min_nodes: int | None,
) -> tuple[Attempt | None, str]:
    """The next attempt and a text about its nodes; None and the reason where too few nodes are left, or no worker or server.

    failed: the node whose process failed, where that is known. nodes: all nodes of the job, in order. Each attempt has
    a run directory of its own, with the attempt's number.
    """
    lost = set(unreachable)
    if failed is not None and failed == attempt.last_failed:
        lost.add(failed)
    number = attempt.number + 1
    base = attempt.run_dir if attempt.number == 0 else attempt.run_dir.parent
    following = Attempt(number, base / f"restart-{number}", attempt.left_out, failed)
    before = [node for node in nodes if node.name not in attempt.left_out]
    new = [node.name for node in before if node.name in lost]
    left = [node for node in before if node.name not in lost]
    if not new or min_nodes is None:
        return (
            following,
            f"on the {len(before)} nodes left" if attempt.left_out else "on all nodes",
        )
    if len(left) < min_nodes:
        return None, f"{listed(new)} would be left out, and --min-nodes {min_nodes} needs more than {len(left)}"
    for role in ("worker", "server"):
        if not any(getattr(node, f"is_{role}") for node in left):
            return None, f"{listed(new)} would be left out, and no other node has a {role}"
    return replace(following, left_out=(*attempt.left_out, *new)), f"without {listed(new)}"


def see_through(
    run: Callable[[Attempt], None],
    run_dir: Path,
    nodes: Sequence[Place | Node],
    policy: RestartPolicy,
    unreachable: Callable[[], Collection[str]],
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> Path:
    """Run the job, and again where it fails and the policy allows; return the run directory of the attempt that ended well.

    `unreachable` gives the nodes whose hosts cannot be reached. For each restart, `say` gets a line with the failure and the
    iteration from which the job goes on, and the run directory is made. Raises JobError for the last failure.
    """
    attempt = Attempt(0, run_dir)
    if policy.checkpoints is not None:
        folder.sweep(policy.checkpoints)
    while True:
        try:
            run(attempt)
            return attempt.run_dir
        except KeyboardInterrupt as interrupt:
            if (failed := failed_before(interrupt)) is not None:
                note_failure(_dated(failed.failure, policy.checkpoints), attempt.run_dir)
            raise
        except JobFailed as error:
            failure = _dated(error.failure, policy.checkpoints)
            note_failure(failure, attempt.run_dir)
            dated = JobFailed(failure, error.exit_code, error.where)
            message = str(dated)
            if not policy.max_restarts:
                raise dated from None
            if failure.is_wrong_input:
                raise JobError(f"{message}; no restart: it would end so again", error.exit_code) from None
            if attempt.number == policy.max_restarts:
                raise JobError(f"{message}; restarts: all {policy.max_restarts} are used", error.exit_code) from None
            lost = [] if policy.min_nodes is None else unreachable()  # which takes up to 20 s for every eight hosts
            following, where = after_failure(attempt, failure.culprit, lost, nodes, policy.min_nodes)
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


def _dated(failure: Failure, checkpoints: Path | None) -> Failure:
    """The failure with the checkpoint that it interrupted, if that can be read; also removes unfinished checkpoints."""
    if checkpoints is None:
        return failure
    try:
        cut_short = folder.cut_short(checkpoints)
        folder.sweep(checkpoints)
    except CheckpointError:
        return failure
    if failure.node not in cut_short:
        return failure
    return msgspec.structs.replace(failure, phase=Phase.CHECKPOINT, iteration=cut_short[failure.node])


def _goes_on(checkpoints: Path | None) -> str:
    """From where the job goes on, for people. The workers, which read the checkpoint whole, may find it damaged and say so."""
    if checkpoints is None:
        return "from the newest checkpoint on the hosts, or from the beginning if they have none"
    try:
        progress, skipped = folder.newest_progress(checkpoints)
    except CheckpointError as error:
        return f"where {error}"
    damaged = f" ({len(skipped)} damaged, skipped)" if skipped else ""
    if progress is None:
        folders = sorted(one for one in checkpoints.glob("*") if one.is_dir())  # of a script with several Checkpoints
        if within := list(filter(None, map(_newest_in, folders))):
            return f"from {listed(within)}"
        return f"from where the script begins: no checkpoint of nalb's{damaged} in {checkpoints}"
    return f"from iteration {progress.iteration} (epoch {progress.epoch}, batch {progress.batch}){damaged}"


def _newest_in(checkpoints: Path) -> str:
    """The iteration of the folder's newest checkpoint, for people; empty where there is none that can be read."""
    with suppress(CheckpointError):
        if progress := folder.newest_progress(checkpoints)[0]:
            return f"iteration {progress.iteration} of {checkpoints.name}"
    return ""
