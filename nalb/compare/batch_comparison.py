"""Trains one model once per batching, from the same seed, on one network, and collects the coordinator's batch events."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from nalb.batching.schemes import BASELINES
from nalb.compare.progress import say
from nalb.compare.training import observed_training
from nalb.errors import JobError
from nalb.events import BatchEvent
from nalb.options import JOINT_BATCHING, JobOptions
from nalb.reporting.batching_file import BatchingResult
from nalb.schemes import JOINT, STOCK
from netem.network import Network


def run_batching(
    batching: str,
    network: Network,
    command: Sequence[str],
    options: JobOptions,
    run_dir: Path,
) -> BatchingResult:
    """Run and observe one training under a batching. Raises JobError where it fails or reports no batch.

    batching: NAME, or NAME@SCHEME where this training uses a scheme of its own. options: the job's options, but for those that the
    batching decides.
    """
    name, _, scheme = batching.partition("@")
    baseline = BASELINES.get(name)
    is_joint = name == JOINT_BATCHING
    scheme = JOINT.name if is_joint else STOCK.name if baseline else scheme or options.scheme
    options = replace(options, scheme=scheme, batching=None if is_joint else name)
    together = baseline is None or baseline.iterations_ahead == 0
    result = BatchingResult(together, [], [], [], [], None, None)

    def note(line: str) -> None:
        if (row := epoch_row(line)) is not None:
            result.loss, result.accuracy = row["loss"], row["accuracy"]
            result.curve.append((row["updates"], row["accuracy"]))

    for event in observed_training(network, command, options, run_dir, note, BatchEvent):
        if isinstance(event, BatchEvent):
            result.add(event)
            say(
                f"{batching}, iteration {event.iteration + 1}: compute s {' '.join(f'{one:.3f}' for one in event.compute_s)}"
            )
    if not result.sizes:
        raise JobError(f"the training under batching {batching} reported no batch; its logs: {run_dir / 'logs'}")
    return result


def epoch_row(line: str) -> dict[str, Any] | None:
    """The row of an epoch that rank 0's script printed, as a dict; None where the line is no such row."""
    found = line.find("] {")
    return None if found < 0 else msgspec.json.decode(line[found + 2 :], type=dict[str, Any])
