"""Runs one workload under several schemes on one network, in held jobs that are told which scheme to iterate next.

On a static network the schemes take turns in short blocks, round after round, so that slow changes of the machine affect all
schemes alike. On a network that changes with time each scheme runs in one go, from the network's start.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from nalb.compare.progress import Lines
from nalb.compare.ring import RING
from nalb.compare.variants import Variant
from nalb.errors import JobError
from nalb.events import IdleEvent, IterationEvent, LayoutEvent
from nalb.launch.network import Changes
from nalb.launch.venue import RunningJob
from nalb.protocol import wire
from nalb.reporting.record import follows
from nalb.reporting.run_file import LinkError, SchemeResult
from nalb.schemes import ORACLE, SCHEMES
from nalb.units import GOODPUT_PART
from netem.emulation import Emulation
from netem.network import Network

PEERS = (RING,)
COMPARED = (*SCHEMES, *PEERS)
BLOCK = 5  # iterations in a turn of a scheme
ALPHA_ITERATIONS = 3  # iterations in a turn of an alpha
STARTUP_S = 180.0  # the limit for processes to start and meet
FIRST_SUMS = 12  # bounds that the first sums may take: parameters, and gradients in small pieces without a plan
FILLED_PART = 0.85  # a plan fills a link that it keeps busy for at least this part of the planned time
SAMPLES_PER_BATCH = 32  # Cai et al., Table 1


@dataclass
class Series:
    """The measurements of a scheme's iterations so far."""

    communication_s: list[float] = field(default_factory=list)
    iteration_s: list[float] = field(default_factory=list)
    plan_wait_s: list[float] = field(default_factory=list)
    link_errors: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)  # iterations of each job, where a script runs several times
    printed: str | None = None  # the last line that a script printed
    _ended_s: float = 0.0
    _last: IterationEvent | None = None  # since the clock was started

    def begin(self, at_s: float) -> None:
        """Start the clock of the next iteration at `at_s`, so that time before it does not count."""
        self._ended_s, self._last = at_s, None

    def add(self, event: IterationEvent) -> None:
        """Add one iteration.

        An iteration lasts from the slowest worker's end of the iteration before to the slowest worker's end of this one. The
        workers' own times would count a fast worker's wait for a slow one in two iterations. Only these are known of one that
        comes after an iteration that was broken off.
        """
        began_s, self._ended_s = self._ended_s, max(event.finished_s.values())
        self.communication_s.append(max(event.communication_s.values()))
        is_next = self._last is None or follows(event, self._last)
        took_s = self._ended_s - began_s if is_next else max(event.iteration_s.values())
        self._last = event
        self.iteration_s.append(max(0.0, took_s))
        self.plan_wait_s.append(max(event.plan_wait_s.values()))
        self.link_errors.extend(link_errors(event))

    def end_round(self) -> None:
        """The iterations since the last call were a job of their own."""
        self.rounds.append(len(self.iteration_s) - sum(self.rounds))

    def result(self, samples: int | None) -> SchemeResult:
        """The scheme's entry in run.json. samples: of all workers' batches of an iteration; None: not known."""
        errors, took_s = np.array(self.link_errors), max(sum(self.iteration_s), 1e-9)
        return SchemeResult(
            communication_s=self.communication_s,
            iteration_s=self.iteration_s,
            samples_per_min=None if samples is None else 60.0 * samples * len(self.iteration_s) / took_s,
            plan_wait_s=self.plan_wait_s,
            link_error=LinkError(float(np.median(errors)), float(np.quantile(errors, 0.95))) if len(errors) else None,
            rounds=self.rounds if len(self.rounds) > 1 else None,
            printed=self.printed,
        )


def link_errors(event: IterationEvent) -> list[float]:
    """The errors |estimate / (configured less headers) - 1|, one for each link direction that the iteration's plan filled."""
    configured, estimate, planned_s = event.configured, event.estimate, event.planned_s
    if configured is None or estimate is None or planned_s is None or not event.measured:
        return []
    errors = []
    for rates, found in ((configured.up, estimate.up), (configured.down, estimate.down)):
        for node, load_bytes in event.load_bytes.items():
            rate, estimated = rates[node], found.get(node)
            if load_bytes and rate and estimated and load_bytes >= FILLED_PART * rate * planned_s:
                errors.append(abs(estimated / (rate * GOODPUT_PART) - 1))
    return errors


def turns(schemes: Sequence[str], iterations: int, changes: bool) -> list[tuple[str, int]]:
    """The order of the blocks, as (scheme, iterations): rounds of short blocks, or one block per scheme if the network changes."""
    if changes:
        return [(scheme, iterations) for scheme in schemes]
    order: list[tuple[str, int]] = []
    left = iterations
    while left > 0:
        block = BLOCK if left >= 2 * BLOCK or left == BLOCK else left
        order.extend((scheme, block) for scheme in schemes)
        left -= block
    return order


def compare(
    lanes: Sequence[tuple[Variant, RunningJob]],
    emulation: Emulation,
    network: Network,
    iterations: int,
    progress: Lines,
    run_dir: Path,
    bound_s: float,
) -> dict[str, Series]:
    """Drive held jobs through all turns and return each scheme's series. Raises JobError when a job fails or never starts.

    lanes: the schemes with their options, in order, each with the held job that runs it; MXNet's p3 needs another kind of ps-lite
    and so a job of its own. bound_s: the lossless bound of an iteration.
    """
    by_word, changing = {variant.word: (variant, job) for variant, job in lanes}, not network.is_static
    schemes, jobs = list(by_word), list(dict.fromkeys(job for _, job in lanes))
    for job in jobs:
        _wait_for_layout(job, bound_s)
    series = {scheme: Series() for scheme in schemes}
    for scheme, count in turns(schemes, iterations, changing):
        variant, job = by_word[scheme]
        block = variant.block(count)
        progress.turn(scheme, count)
        if not changing:
            _run_block(job, block, series[scheme], progress)
            continue
        changes = Changes(network, run_dir)
        with changes.start(emulation):
            _run_block(job, block, series[scheme], progress, partial(changes.tell, job.watch.send))
    for job in jobs:
        job.end()
    return series


def _wait_for_layout(job: RunningJob, bound_s: float) -> None:
    limit_s = STARTUP_S + FIRST_SUMS * bound_s
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        job.processes.finished()
        if any(isinstance(event, IdleEvent) for event in job.watch.events(0.2)):
            return
    raise JobError(f"the job did not register its tensors within {limit_s:.0f} s; see the run's logs")


@dataclass
class AlphaTimes:
    """The slice size, in bytes, and the communication times of the iterations under one alpha."""

    slice_bytes: int = 0
    times_s: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """Median communication time in seconds; needs at least one iteration."""
        return statistics.median(self.times_s)


def run_alphas(job: RunningJob, alphas: Sequence[float], rounds: int, bound_s: float) -> dict[float, AlphaTimes]:
    """Time iterations under each alpha, in rounds. The oracle plans the shares, so that only the slice size differs."""
    _wait_for_layout(job, bound_s)
    found = {alpha: AlphaTimes() for alpha in alphas}
    for _ in range(rounds):
        for alpha in alphas:
            iterations = []
            for event in job.block(wire.RunBlock(ORACLE.name, ALPHA_ITERATIONS, alpha)):
                if isinstance(event, LayoutEvent):
                    found[alpha].slice_bytes = event.slice_bytes
                elif isinstance(event, IterationEvent):
                    iterations.append(max(event.communication_s.values()))
            found[alpha].times_s += iterations[1:]  # the first iteration makes the servers' slots and is not timed
    job.end()
    return found


def _run_block(
    job: RunningJob,
    block: wire.RunBlock,
    series: Series,
    progress: Lines,
    look: Callable[[], None] = lambda: None,
) -> None:
    scheme = block.label or block.scheme
    series.begin(time.monotonic())
    for event in job.block(block, look):
        if isinstance(event, IterationEvent) and event.scheme == scheme:
            series.add(event)
            progress.iteration(scheme, event)
