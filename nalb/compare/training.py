"""Runs one training on an emulated network and reads the events that its coordinator writes."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from nalb.errors import MachineError
from nalb.events import AnyEvent
from nalb.launch.network import Changes, inside, job_network, places_in
from nalb.launch.roles import process_specs
from nalb.launch.supervisor import Job
from nalb.options import JobOptions
from nalb.reporting.run_file import event_of
from netem.network_file import Network

POLL_S = 0.1


@dataclass
class EventTail:
    """Reads the events appended to a samples.jsonl since the last look; a job of MXNet alone has no socket for observers."""

    path: Path
    _read: int = field(default=0, init=False)

    def fresh(self) -> Iterator[AnyEvent]:
        """Yield the new events, from whole lines only. Raises InputError for a line that is no event."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self._read)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        for line in text.splitlines(keepends=True):
            event = event_of(line, f"{self.path}, byte {self._read}")
            self._read += len(line)
            if event is not None:
                yield event


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
    tail = EventTail(run_dir / "samples.jsonl")
    options = replace(options, observers=None, samples_path=str(tail.path))
    with ExitStack() as stack:
        emulation = stack.enter_context(job_network(network))
        specs = process_specs(places_in(emulation), list(command), options, os.environ)
        job = stack.enter_context(
            Job(specs, inside(emulation), os.environ, run_dir / "logs", note, check=emulation.check)
        )
        changes = Changes(network, run_dir)
        is_over = False
        while not is_over:
            is_over = job.finished()
            changes.check()
            time.sleep(POLL_S)
            for event in tail.fresh():
                if isinstance(event, counts) and not changes.started:
                    stack.enter_context(changes.start(emulation))
                yield event
