"""Trains one model once per way to divide its work among workers, from the same seed, on one network; collects token events."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nalb.compare.batch_comparison import epoch_row
from nalb.compare.progress import say
from nalb.compare.training import observed_training
from nalb.errors import JobError
from nalb.events import TokensEvent, TokenShapeEvent
from nalb.options import JobOptions
from nalb.reporting.parallel_file import ParallelResult
from nalb.tokens.policies import FELAS
from netem.network import Network


def run_parallel(
    way: str,
    network: Network,
    command: Sequence[str],
    options: JobOptions,
    run_dir: Path,
) -> ParallelResult:
    """Run and observe one training by a way to divide the work. Raises JobError where it fails or completes no iteration.

    way: NAME, or NAME@SCHEME where this training uses a scheme of its own. options: the job's options, but for those that the way
    decides; weights and subset apply to fela alone.
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
            say(f"{way}, iteration {event.iteration}: {event.iteration_s:.3f} s, tokens {event.tokens}")
    if not result.iteration_s:
        raise JobError(f"the training by {way} completed no iteration; its logs: {run_dir / 'logs'}")
    return result
