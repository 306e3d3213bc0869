"""Trains one model once per batching, from the same seed, on one network, and reads what the coordinator noted."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from nalb.batching.schemes import BASELINES
from nalb.errors import JobError, MachineError
from nalb.events import AnyEvent, BatchEvent, decode_line
from nalb.launch.network import Changes, inside, job_network, places_in
from nalb.launch.roles import process_specs
from nalb.launch.supervisor import Job
from nalb.options import JOINT_BATCHING, JobOptions
from nalb.reporting.batching_file import BatchingResult
from nalb.schemes import JOINT, STOCK
from netem.network_file import Network

POLL_S = 0.1


@dataclass
class EventTail:
    """The events that were written to a samples.jsonl since the last look; MXNet alone has no observers to tell."""

    path: Path
    _read: int = field(default=0, init=False)

    def fresh(self) -> Iterator[AnyEvent]:
        """Those of whole lines."""
        if not self.path.exists():
            return
        with open(self.path, "rb") as file:
            file.seek(self._read)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        for line in text.splitlines():
            if (event := decode_line(line)) is not None:
                yield event


def run_batching(
    batching: str,
    network: Network,
    command: Sequence[str],
    options: JobOptions,
    run_dir: Path,
    on_batch: Callable[[BatchEvent], None],
) -> BatchingResult:
    """One training, observed. JobError where it fails.

    batching: NAME, or NAME@SCHEME for a distribution of its own. options: of the job, except what the batching decides.
    """
    try:
        run_dir.mkdir()
    except OSError as error:
        raise MachineError(f"{run_dir}: {error.strerror}: choose another --out") from None
    name, _, scheme = batching.partition("@")
    baseline = BASELINES.get(name)
    is_joint = name == JOINT_BATCHING
    scheme = JOINT.name if is_joint else STOCK.name if baseline else scheme or options.scheme
    samples = run_dir / "samples.jsonl"
    options = replace(
        options, scheme=scheme, batching=None if is_joint else name, observers=None, samples_path=str(samples)
    )
    together = baseline is None or baseline.iterations_ahead == 0
    result = BatchingResult(together, [], [], [], [], None, None)
    tail = EventTail(samples)

    def note(line: str) -> None:
        found = line.find("] {")
        if found >= 0:  # rank 0's row of an epoch
            row = msgspec.json.decode(line[found + 2 :], type=dict[str, Any])
            result.loss, result.accuracy = row["loss"], row["accuracy"]
            result.curve.append((row["updates"], row["accuracy"]))

    with ExitStack() as stack:
        emulation = stack.enter_context(job_network(network))
        specs = process_specs(places_in(emulation), list(command), options, os.environ)
        job = stack.enter_context(Job(specs, inside(emulation), os.environ, run_dir / "logs", note))
        changes = Changes(network, run_dir)
        is_over = False
        while not is_over:
            is_over = job.finished()
            changes.check()
            time.sleep(POLL_S)
            for event in tail.fresh():
                if isinstance(event, BatchEvent):
                    if not changes.started:
                        stack.enter_context(changes.start(emulation))
                    result.add(event)
                    on_batch(event)
    if not result.sizes:
        raise JobError(f"the training under batching {batching} reported no batch; its logs: {run_dir / 'logs'}")
    return result
