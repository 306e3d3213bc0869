"""A run as the report needs it: run.json joined with what samples.jsonl says of each iteration.

An iteration event belongs to the k-th iteration of its scheme, as in run.json. A 'samples' event comes just before the
iteration event of the same number; numbers start again with every job ('ready'), which training has one of per scheme.
What a file does not say stays None or empty here: no figure may fill it in.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nalb.errors import InputError
from nalb.events import (
    ChangeEvent,
    IterationEvent,
    Rates,
    ReadyEvent,
    Row,
    SamplesEvent,
    SharedUplinkEvent,
    TokenRow,
    TokensEvent,
    TokenShapeEvent,
)
from nalb.reporting.run_file import LONGEST_S, RunFile, read_events, read_run
from nalb.units import GOODPUT_PART

SATURATED_PART = 0.85  # a node that moved this part of what it could was limited by its own link
LONGEST_US = 1e6 * LONGEST_S
LEVEL = re.compile(r"(F|B|FB)[1-9][0-9]?")
LARGEST_BYTES = 1e15  # of one message; above it is a damaged file


@dataclass(frozen=True)
class Step:
    """One iteration of one scheme."""

    place: int  # among all iterations of the run
    begin_s: float  # when the one before it ended; its own end where it is the first
    event: IterationEvent
    rows: list[Row]  # [] where it was not measured
    rows_at_s: float = 0.0  # what their times count from

    @property
    def communication_s(self) -> float:
        """Of the slowest worker, as in run.json; 0 where no worker reported."""
        return max(self.event.communication_s.values(), default=0.0)

    def saturated(self, direction: str, node: str) -> bool:
        """Whether the node's own link limited it, in which case the measured rate is the link's."""
        load, configured = self.event.load_bytes.get(node), rate(self.event.configured, direction, node)
        if load is None or configured is None:
            return False
        return load >= SATURATED_PART * GOODPUT_PART * configured * self.communication_s


@dataclass
class Timeline:
    """What samples.jsonl says of a run."""

    nodes: list[str] = field(default_factory=list)
    servers: list[str] = field(default_factory=list)  # nodes by server rank
    steps: dict[str, list[Step]] = field(default_factory=dict)
    changes: list[ChangeEvent] = field(default_factory=list)
    has_events: bool = False
    shared_uplinks: list[SharedUplinkEvent] = field(default_factory=list)
    shapes: list[TokenShapeEvent] = field(default_factory=list)  # of the last job that computed tokens
    tokens: list[TokensEvent] = field(default_factory=list)  # of the same, by iteration

    def ordered(self) -> list[Step]:
        """All iterations in the order that they ran."""
        return sorted((step for steps in self.steps.values() for step in steps), key=lambda step: step.place)


@dataclass
class Record(Timeline):
    """A whole run."""

    run: RunFile = field(kw_only=True)

    def bounds_s(self, scheme: str) -> list[float]:
        """The lossless bound of each of the scheme's iterations: its own where the events say, else the run's."""
        steps = self.steps.get(scheme, [])
        told = [self.run.bound_s if step.event.bound_s is None else step.event.bound_s for step in steps]
        count = len(self.run.schemes[scheme].communication_s)
        return (told + [self.run.bound_s] * (count - len(told)))[:count]

    def change_places(self, scheme: str) -> list[float]:
        """Where the scheme's iterations saw a change: 2.5 is half-way through its third iteration (number 2)."""
        places = []
        for number, step in enumerate(self.steps.get(scheme, [])):
            length_s = step.event.at_s - step.begin_s
            for change in self.changes:
                if step.begin_s < change.at_s <= step.event.at_s:
                    places.append(number + (change.at_s - step.begin_s) / length_s)
        return places


def rate(rates: Rates | None, direction: str, node: str) -> float | None:
    """One node's rate in bytes per second, where it is known."""
    if rates is None:
        return None
    return (rates.up if direction == "up" else rates.down).get(node)


class TokenTimes(NamedTuple):
    """Of a token, seconds since its event's `at_s`. Between its inputs and its start a worker waits for the model's last step."""

    given_s: float
    inputs_s: float  # all were there
    start_s: float  # of its computing
    done_s: float

    @staticmethod
    def of(row: TokenRow) -> "TokenTimes":
        """Reports arrive at once: computing ends where they do."""
        given_s, done_s = 1e-6 * row.given_us, 1e-6 * row.done_us
        inputs_s = min(given_s + 1e-6 * row.fetch_us, done_s)
        return TokenTimes(given_s, inputs_s, max(inputs_s, done_s - 1e-6 * row.compute_us), done_s)


def read_record(run_dir: Path) -> Record:
    """Read both files of a run directory. InputError names the file and what is wrong with it."""
    record = Record(run=read_run(run_dir))
    _read_into(record, run_dir)
    _check_agreement(record, run_dir / "samples.jsonl")
    return record


def read_timeline(run_dir: Path) -> Timeline:
    """Read samples.jsonl alone, which is all that `nalb launch` writes. InputError as read_record."""
    timeline = Timeline()
    _read_into(timeline, run_dir)
    return timeline


def _read_into(record: Timeline, run_dir: Path) -> None:
    path = run_dir / "samples.jsonl"
    previous_s, place = 0.0, 0
    rows: dict[int, SamplesEvent] = {}
    for number, event in enumerate(read_events(run_dir), 1):
        if isinstance(event, ReadyEvent):
            record.nodes, record.servers, rows, previous_s = event.nodes, event.servers, {}, event.at_s
        elif isinstance(event, SamplesEvent):
            rows[event.iteration] = event
        elif isinstance(event, ChangeEvent):
            record.changes.append(event)
        elif isinstance(event, SharedUplinkEvent):
            record.shared_uplinks.append(event)
        elif isinstance(event, TokenShapeEvent):
            if event.iteration == 0:
                record.shapes, record.tokens = [], []
            record.shapes.append(event)
        elif isinstance(event, TokensEvent):
            _check_tokens(event, f"{path}, event {number}")
            record.nodes = record.nodes or event.workers
            record.tokens.append(event)
        elif isinstance(event, IterationEvent):
            record.nodes = record.nodes or list(event.estimate.up if event.estimate else event.communication_s)
            own = rows.pop(event.iteration, SamplesEvent(at_s=0.0, iteration=event.iteration, rows=[]))
            step = Step(place, min(previous_s or event.at_s, event.at_s), event, own.rows, own.at_s)
            _check_step(step, record.nodes, f"{path}, event {number}")
            record.steps.setdefault(event.scheme, []).append(step)
            previous_s, place = event.at_s, place + 1
    record.has_events = place > 0


def _check_step(step: Step, nodes: list[str], where: str) -> None:
    event = step.event
    for value in (*event.communication_s.values(), event.bound_s or 0.0):
        if not 0 <= value <= LONGEST_S:
            raise InputError(f"{where}: a time of {value:g} s; restore the file, or remove it")
    for source, target, _, size_bytes, start_us, end_us in step.rows:
        if not (0 <= source < len(nodes) and 0 <= target < len(nodes)):
            raise InputError(f"{where}: samples name node {max(source, target)} of {len(nodes)}; restore the file")
        in_time = -LONGEST_US <= start_us <= end_us <= LONGEST_US
        if not (in_time and 0 <= size_bytes <= LARGEST_BYTES):
            raise InputError(
                f"{where}: a sample of {size_bytes} bytes from {start_us} to {end_us} us; restore the file"
            )


def _check_tokens(event: TokensEvent, where: str) -> None:
    workers = len(event.workers)
    lists = (event.tokens, event.helped, event.compute_s, event.fetch_s, event.fetched_bytes)
    if any(len(one) != workers for one in lists):
        raise InputError(f"{where}: tokens of {workers} workers have lists of other lengths; restore the file")
    for value in (event.iteration_s, *event.compute_s, *event.fetch_s):
        if not 0 <= value <= LONGEST_S:
            raise InputError(f"{where}: a time of {value:g} s; restore the file, or remove it")
    if not all(
        0 <= count <= LARGEST_BYTES for count in (event.iteration, *event.tokens, *event.helped, *event.fetched_bytes)
    ):
        raise InputError(f"{where}: a count of tokens or bytes that cannot be; restore the file")
    for row in event.rows or ():
        in_time = 0 <= row.given_us <= row.done_us <= LONGEST_US
        if not (in_time and 0 <= row.fetch_us <= LONGEST_US and 0 <= row.compute_us <= LONGEST_US):
            raise InputError(f"{where}: a token from {row.given_us} to {row.done_us} us; restore the file")
        if not (0 <= row.worker < workers and 0 <= row.owner < workers) or LEVEL.fullmatch(row.level) is None:
            raise InputError(f"{where}: a token {row.level!r} of worker {row.worker} of {workers}; restore the file")


def _check_agreement(record: Record, path: Path) -> None:
    """That both files are of one run: no scheme has more iterations here than run.json says."""
    for scheme, steps in record.steps.items():
        result = record.run.schemes.get(scheme)
        if result is None or len(result.communication_s) < len(steps):
            counted = 0 if result is None else len(result.communication_s)
            raise InputError(
                f"{path}: has {len(steps)} iterations of scheme {scheme!r} where run.json has {counted}: "
                "put the two files of one run together"
            )
