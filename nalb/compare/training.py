"""Runs one training on an emulated network and hands its events on."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nalb.errors import MachineError
from nalb.events import AnyEvent
from nalb.launch.roles import mxnet_program
from nalb.launch.run_dir import failure_noted
from nalb.launch.venue import Emulated, JobOrder
from nalb.options import JobOptions
from netem.network import Network


def observed_training(
    network: Network,
    command: Sequence[str],
    options: JobOptions,
    run_dir: Path,
    note: Callable[[str], None],
    counts: type[AnyEvent],
) -> Iterator[AnyEvent]:
    """Run a training and yield its events as they come; after the last event no process is left. Raises JobError where it fails.

    run_dir: this directory is made, for samples.jsonl and logs. note: is called with each line that the script prints. counts: the
    first event of this type starts the clock of the network's changes.
    """
    try:
        run_dir.mkdir()
    except OSError as error:
        raise MachineError(f"{run_dir}: {error.strerror}: choose another --out") from None
    with failure_noted(run_dir), Emulated(network) as venue:
        yield from venue.start(JobOrder(mxnet_program(command), options, run_dir, show=note)).follow(counts)
