"""Trains one model once per way to share it out, from the same seed, on one network, and reads what the coordinator noted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from nalb.compare.batch_comparison import epoch_row
from nalb.compare.training import observed_training
from nalb.errors import JobError
from nalb.events import TokensEvent, TokenShapeEvent
from nalb.options import JobOptions
from nalb.reporting.parallel_file import ParallelResult
from nalb.tokens.policies import FELAS
from netem.network_file import Network


def run_parallel(
    way: str,
    network: Network,
    command: Sequence[str],
    options: JobOptions,
    run_dir: Path,
    on_iteration: Callable[[TokensEvent], None],
) -> ParallelResult:
    """One training, observed. JobError where it fails.

    way: NAME, or NAME@SCHEME for a distribution of its own. options: of the job, except what the way decides; weights and subset
    are fela's alone.
    """
    name, _, scheme = way.partition("@")
    options = replace(options, parallel=name, scheme=scheme or options.scheme)
    if name not in FELAS:
        options = replace(options, token_weights=None, token_subset=None, token_apart=False)
    result = ParallelResult(options.scheme, 0)

    def note(line: str) -> None:
        if (row := epoch_row(line)) is not None:
            result.loss = row["loss"]

    for event in observed_training(network, command, options, run_dir, note, TokensEvent):
        if isinstance(event, TokensEvent | TokenShapeEvent):
            result.add(event)
        if isinstance(event, TokensEvent):
            on_iteration(event)
    if not result.iteration_s:
        raise JobError(f"the training by {way} completed no iteration; its logs: {run_dir / 'logs'}")
    return result
